"""What `recall up` found, and one search that shows what it is good for."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.table import Table

from recall.cli.output import note, notes
from recall.cli.purge import SAMPLE
from recall.cli.terminal import highlight, one_line, short_time
from recall.config import Settings
from recall.errors import RecallError
from recall.identity import load_identity

if TYPE_CHECKING:
    import psycopg

#: Words as people write them in prose; whatever has digits may be a key or a hash.
_WORD = re.compile(r"[A-Za-z][A-Za-z_-]{4,23}")
_PLAIN = frozenset(
    {
        "about", "after", "again", "already", "always", "because", "before", "being", "could",
        "doing", "every", "first", "going", "maybe", "might", "never", "other", "please",
        "really", "right", "should", "since", "still", "their", "there", "these", "thing",
        "think", "those", "through", "under", "until", "using", "where", "which", "while",
        "would", "wrong", "yours", "thanks",
    }
)  # fmt: skip
_LONG_TEXT = 2_000
_EXAMPLE_HITS = 3
#: Notes are shown only where there are any.
_COLUMNS = ("files", "sessions", "messages", "notes", "problems")


def print_found(settings: Settings, database_url: str, *, ingest: bool) -> None:
    """Print, on stderr, what is stored for this machine by source, and an example search."""
    from recall_sql.connection import connect, translate_errors

    identity = load_identity(settings.home, host=settings.host)
    with translate_errors(), connect(database_url, application="recall up") as connection:
        counts = _counts(connection, identity.host)
        if ingest:
            _print_counts(counts)
        if query := pick_query(_recent_texts(connection)):
            _print_example(connection, settings, query)


def pick_query(texts: Sequence[str]) -> str | None:
    """Two neighbouring words of a recent text that few other texts hold; newest text first."""
    words = [_words(text) for text in texts]
    spread = Counter(word.lower() for found in words for word in set(found))
    best: tuple[float, str] | None = None
    for age, (text, found) in enumerate(zip(texts, words, strict=True)):
        for first, second in pairwise(found):
            if first.lower() == second.lower() or f"{first} {second}" not in text:
                continue
            common = spread[first.lower()] + spread[second.lower()]
            score = common + age / 10 - (len(first) + len(second)) / 10
            if best is None or score < best[0]:
                best = (score, f"{first} {second}")
    return best[1] if best else None


def _words(text: str) -> list[str]:
    if len(text) > _LONG_TEXT or text.lstrip().startswith(("<", "/", "{")):
        return []
    return [word for word in _WORD.findall(text) if word.lower() not in _PLAIN]


def _counts(connection: psycopg.Connection[Any], host: str) -> list[dict[str, Any]]:
    from psycopg.rows import dict_row

    from recall_sql.loader import load

    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("operate")["found_by_source"], {"host": host}).fetchall()


def _recent_texts(connection: psycopg.Connection[Any]) -> list[str]:
    from recall_sql.loader import load

    return [str(row[0]) for row in connection.execute(load("operate")["recent_user_texts"])]


def _print_counts(counts: Sequence[dict[str, Any]]) -> None:
    names = [row["source"] for row in counts]
    if all(name == SAMPLE for name in names):
        note("no session log of a known agent was found on this machine")
    if SAMPLE in names:
        note(
            "invented sample sessions are loaded under the source name `sample`;"
            " `recall purge --source sample` removes them"
        )
    if not counts:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("source")
    titles = [title for title in _COLUMNS if title != "notes" or any(row[title] for row in counts)]
    for title in titles:
        table.add_column(title, justify="right")
    for row in counts:
        table.add_row(row["source"], *(f"{row[title]:,}" for title in titles))
    notes.print(table)


def _print_example(connection: psycopg.Connection[Any], settings: Settings, query: str) -> None:
    """A real search with its answer; one that fails is left out, for it is only an example."""
    from recall_api.reading import reading
    from recall_api.search import SearchRequest, search

    request = SearchRequest(query=query, limit=_EXAMPLE_HITS)
    try:
        with reading(connection) as snapshot:
            answer = search(snapshot, request, budget_seconds=settings.search_timeout_seconds)
    except RecallError as error:
        note(f"the example search did not answer: {error.message}")
        return
    note(f"\n$ recall search {shlex.quote(query)}")
    for hit in answer["hits"]:
        place = [short_time(hit["ts"]), hit["source"], one_line(hit["project"], 60)]
        note("  " + "  ".join(part for part in place if part))
        notes.print("   ", highlight(hit["snippet"].strip(), styled=notes.is_terminal))
