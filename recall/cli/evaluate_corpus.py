"""Stores that ``recall eval`` makes for a folder of session logs and drops afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recall.cli.backend import Backend, open_backend
from recall.cli.ingest import progress_bar
from recall.cli.output import note, notes
from recall.config import Settings
from recall.errors import UsageError
from recall.identity import load_identity

if TYPE_CHECKING:
    from recall_ingester.run import Selection

#: The name of the machine under which a corpus is loaded; keys in labels do not have it.
_HOST = "eval"
#: How often the embedder is asked whether it is done.
_ASK_SECONDS = 0.5


@contextmanager
def scratch_store(settings: Settings, folders: Sequence[str], *, embed: bool) -> Iterator[Backend]:
    """A store of its own that holds the folders and nothing else, and is gone afterwards."""
    from recall_sql.store import open_store

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recall-eval-")))
        own = replace(settings, home=home, url=None, database_url=None, keep_raw=False, host=_HOST)
        url = stack.enter_context(open_store(own))
        load_corpus(own, url, folders)
        if embed:
            embed_corpus(own, url)
        analyze(url)
        yield stack.enter_context(open_backend(own))


def load_corpus(settings: Settings, url: str, folders: Sequence[str]) -> None:
    """Store what the folders hold."""
    from recall_ingester.run import run_once

    identity = load_identity(settings.home, host=_HOST)
    with progress_bar("loading the corpus") as advance:
        summary = run_once(
            settings,
            identity,
            database_url=url,
            sources=corpus_sources(settings, folders),
            progress=advance,
        )
    note(f"{summary.messages:,} messages of {summary.sessions:,} sessions in a store of their own")


def corpus_sources(settings: Settings, folders: Sequence[str]) -> list[Selection]:
    """What to read of ``[NAME=]DIR``. Raises :class:`UsageError` for a folder without sources."""
    from recall_ingester.run import select_sources
    from recall_ingester.sources import all_sources

    known = all_sources(settings)
    wanted = []
    for item in folders:
        name, equals, _ = item.partition("=")
        if equals and name in known:
            wanted.append(item)
            continue
        folder = Path(item).expanduser()
        if not folder.is_dir():
            raise UsageError(f"`{item}` is not a folder")
        found = [f"{name}={folder / name}" for name in sorted(known) if (folder / name).is_dir()]
        if not found:
            raise UsageError(
                f"`{item}` has no folder that is named like a source",
                hint=f"name the source: --corpus claude-code={item}",
            )
        wanted += found
    return select_sources(settings, wanted)


def embed_corpus(settings: Settings, url: str) -> None:
    """Give every passage its vector, with the embedder that otherwise works in the background.

    Where there is no model the store stays without vectors, and the search says why.
    """
    from recall_embedder.model import load_model
    from recall_embedder.run import Embedder
    from recall_embedder.store import EmbedStore

    embedder = Embedder(
        settings,
        url,
        _HOST,
        lambda name: load_model(replace(settings, embed_model=name)),
        beat_seconds=_ASK_SECONDS,
    )
    with closing(EmbedStore(url)) as store, _passage_bar() as show:

        def is_done() -> bool:
            show(embedder.health.embedded_total, sum(store.waiting().values()))
            generations = store.generations()
            filled = generations and all(store.is_filled(item.number) for item in generations)
            return embedder.health.problem is not None or bool(filled)

        embedder.run(until=is_done)
    if embedder.health.problem:
        note(f"without vectors: {embedder.health.problem}")


@contextmanager
def _passage_bar() -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("embedding passages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task("embed", total=None)
        yield lambda done, waiting: bar.update(task, completed=done, total=done + waiting)


def analyze(url: str) -> None:
    """Gather the statistics that the ranking reads, which a running store does some time later."""
    from recall_sql.connection import connect

    with connect(url, application="recall eval", autocommit=True) as connection:
        connection.execute("analyze")
