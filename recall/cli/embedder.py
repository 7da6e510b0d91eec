"""``recall embedder``: give the texts in the store vectors, so that they are found by meaning."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from recall import log
from recall.cli.address import bind, parse_listen
from recall.cli.embedding_progress import EmbeddingProgress
from recall.cli.extras import need_server
from recall.cli.output import note
from recall.config import Settings, load_settings
from recall.errors import BusyError, ModelError
from recall.identity import load_identity
from recall.processes import yield_to_others

if TYPE_CHECKING:
    from recall_embedder.model import Model
    from recall_embedder.run import Embedder

#: While somebody waits for the end, it is looked for this often.
_LOOK_SECONDS = 1.0


def embedder(
    once: bool = typer.Option(False, "--once", help="End when every text has its vector."),
) -> None:
    """Give the texts in the store vectors, so that they are found by meaning.

    `recall up` runs this for you. Any number of embedders, on any machines, can work on one store.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    need_server("embedder")
    from recall_embedder.health_server import serve_health
    from recall_embedder.run import Embedder
    from recall_sql.migrate import refuse_newer_database
    from recall_sql.store import open_store

    host = load_identity(settings.home, host=settings.host).host
    migrate = settings.database_url is None
    with open_store(settings, migrate=migrate) as url:
        refuse_newer_database(url)
        with _listener(settings) as listener:
            yield_to_others()
            running = Embedder(settings, url, host, loader(settings))
            with serve_health(running.health, listener), stop_on_signal(running):
                if once:
                    _run_once(running, url)
                else:
                    running.run()


def loader(settings: Settings) -> Callable[[str], Model]:
    """Loads the model of a name as the setting `embed_model` would."""

    def load(name: str) -> Model:
        from recall_embedder.model import load_model

        return load_model(replace(settings, embed_model=name))

    return load


def run_until(running: Embedder, url: str, number: int | None) -> None:
    """Work, with a bar, until a generation (``None``: each) is filled, or its model is not had."""
    from recall_embedder.index_keeper import refresh
    from recall_embedder.store import EmbedStore

    store = EmbedStore(url)
    running.beat_seconds = _LOOK_SECONDS

    def is_done() -> bool:
        progress.show()
        found = [one.number for one in store.generations() if number in (None, one.number)]
        cannot = number is None and running.health.problem is not None
        return cannot or all(map(store.is_filled, found))

    with EmbeddingProgress(url, number) as progress:
        try:
            running.run(until=is_done)
            refresh(store)
        finally:
            store.close()


def _run_once(running: Embedder, url: str) -> None:
    run_until(running, url, None)
    if running.health.problem:
        raise ModelError(running.health.problem, hint=running.health.hint)


@contextmanager
def stop_on_signal(running: Embedder) -> Iterator[None]:
    """The first SIGINT or SIGTERM lets the batches end; a second one ends the process at once."""

    def ask(number: int, _frame: Any) -> None:
        running.stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listener(settings: Settings) -> Iterator[socket.socket | None]:
    """The socket of `/health`; without one the embedder works all the same.

    Whether it is alive is in the store as well, and a second embedder on one machine is welcome.
    """
    if settings.embed_listen is None:
        yield None
        return
    try:
        listener = bind(parse_listen(settings.embed_listen))
    except BusyError as error:
        note(f"{error.message}: this embedder has no `/health` of its own (RECALL_EMBED_LISTEN)")
        yield None
        return
    with listener:
        yield listener
