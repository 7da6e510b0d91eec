"""``recall reembed``: make all vectors again, with another model or other settings."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from recall import log
from recall.cli.embedder import loader, run_until, stop_on_signal
from recall.cli.embedding_progress import EmbeddingProgress
from recall.cli.extras import need_server
from recall.cli.output import note, screen
from recall.cli.own_store import need_own_store
from recall.config import Settings, load_settings
from recall.identity import load_identity
from recall.processes import yield_to_others

if TYPE_CHECKING:
    from recall_embedder.store import EmbedStore, Generation

_LOOK_SECONDS = 1.0


def reembed(
    model: str | None = typer.Option(
        None, "--model", metavar="NAME", help="The new model; the one of the settings by default."
    ),
    drop_old: bool = typer.Option(
        False, "--drop-old", help="Delete the vectors that are not used any more."
    ),
) -> None:
    """Make all vectors again, with another model or other settings (`embed_...`).

    Search goes on with the old vectors until the new ones are complete. Interrupted, the command
    goes on where it was when it is called again. A running embedder does the work, else this
    command does.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    need_own_store(settings)
    need_server("embedder")
    if model is not None:
        settings = replace(settings, embed_model=model)
    from recall_embedder.generations import shape_of
    from recall_embedder.store import EmbedStore
    from recall_sql.migrate import refuse_newer_database
    from recall_sql.store import open_store

    shape = shape_of(settings, loader(settings)(settings.embed_model))
    with open_store(settings, migrate=settings.database_url is None) as url:
        refuse_newer_database(url)
        store = EmbedStore(url, application="recall reembed")
        try:
            _reembed(settings, url, store, shape)
            if drop_old:
                _drop_old(store)
            if model not in (None, load_settings().embed_model):
                note(f'to keep it, set `embed_model = "{model}"` in config.toml')
        finally:
            store.close()


def _reembed(settings: Settings, url: str, store: EmbedStore, shape: dict[str, Any]) -> None:
    generation = _begin(store, shape)
    if generation is None:
        screen.print(f"the vectors are of `{shape['model']}` and these settings already")
        return
    note(f"making vectors with `{generation.model}`; searches use the old ones meanwhile")
    if not _fill(settings, url, store, generation):
        note("interrupted; `recall reembed` goes on where it was")
        raise typer.Exit(130)
    store.activate(generation.number)
    store.tell_workers()
    screen.print(f"searches by meaning use `{generation.model}` now", markup=False)


def _begin(store: EmbedStore, shape: dict[str, Any]) -> Generation | None:
    """The generation that is to be filled; ``None`` if the active one is as wanted.

    One that was begun with other settings is of no use to anybody and is dropped.
    """
    from recall_embedder.generations import has_shape

    found = store.generations()
    if any(one.state == "active" and has_shape(one, shape) for one in found):
        return None
    for one in found:
        if one.state == "filling":
            if has_shape(one, shape):
                note(f"going on with `{one.model}`, which was begun before")
                return one
            note(f"dropping the unfinished vectors of `{one.model}`")
            store.drop(one.number)
    number = store.create_generation(shape, only_first=False)
    store.tell_workers()
    return next(one for one in store.generations() if one.number == number)


def _fill(settings: Settings, url: str, store: EmbedStore, generation: Generation) -> bool:
    """Wait for a running embedder, or be one; whether the generation is filled."""
    from recall_embedder.run import ALIVE_SECONDS, Embedder

    try:
        with EmbeddingProgress(url, generation.number) as progress:
            while store.running_embedders(generation.number, seconds=ALIVE_SECONDS):
                if store.is_filled(generation.number):
                    return True
                progress.show()
                time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return False
    host = load_identity(settings.home, host=settings.host).host
    yield_to_others()
    running = Embedder(settings, url, host, loader(settings))
    with stop_on_signal(running):
        run_until(running, url, generation.number)
    return store.is_filled(generation.number)


def _drop_old(store: EmbedStore) -> None:
    for number in store.retired():
        store.drop(number)
        screen.print(f"the vectors of generation {number} are deleted")
