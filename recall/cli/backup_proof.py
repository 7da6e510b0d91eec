"""Proving a backup: restore it where nobody looks, compare, search, and only then believe it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recall.cli.ingest import progress_bar
from recall.cli.output import note
from recall.config import Settings
from recall.errors import DamagedError

if TYPE_CHECKING:
    import psycopg

    from recall_api.query_vectors import QueryVectors
    from recall_api.search import Mode
    from recall_sql.backup_manifest import Backup

    Connection = psycopg.Connection[tuple[Any, ...]]

#: So many of the newest and of the oldest entries are looked at for something to search for.
_CANDIDATES = 40
_CANARIES = 3
_WORD = re.compile(r"(?<!\w)[^\W\d_]{3,30}(?!\w)")
_WORDS_OF_ENTRY = 12
#: A word that stands in more entries is not rare; all entries with a rarer one fit into one answer.
_MOST_ENTRIES = 150
_MOST_HITS = 200
_LEAST_CHARS, _FRAGMENT_CHARS = 4, 60
_SEARCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What was looked at. ``found`` says for each mode how many searches came back with what they
    were made for; ``skipped`` says what could not be looked at, and why."""

    backup: Backup
    tables: int
    rows: int
    found: dict[str, int]
    skipped: dict[str, str]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        manifest = self.backup.manifest.as_json()
        return {
            "file": str(self.backup.dump),
            "verified_at": manifest["verified_at"],
            "bytes": manifest["bytes"],
            "tables": self.tables,
            "rows": self.rows,
            "found": self.found,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
        }


def prove(settings: Settings, backup: Backup, scratch: Path | None = None) -> Proof:
    """Restore a backup into a scratch database, compare every row, search in it, and note in the
    manifest that it is good. Raises :class:`DamagedError` for one that is not."""
    from recall_sql.backup_manifest import check_whole, mark_verified
    from recall_sql.backup_restore import (
        check_indexes,
        check_server,
        compare,
        fill,
        mark_vectors_missing,
    )
    from recall_sql.backup_scratch import open_scratch, restore_lock
    from recall_sql.migrate import migrate, refuse_newer

    started, manifest = time.monotonic(), backup.manifest
    refuse_newer(manifest.schema_version, "backup")
    with restore_lock(settings.home):
        with progress_bar("checking the file") as advance:
            check_whole(backup, advance)
        with open_scratch(settings, manifest, scratch) as (url, power):
            check_server(url, manifest)
            with progress_bar("restoring into a scratch database") as advance:
                fill(url, backup, power, advance)
            compare(url, manifest)
            migrate(url)
            mark_vectors_missing(url, manifest)
            found, skipped = look_for_canaries(url, settings)
            if (reason := check_indexes(url, power)) is not None:
                skipped["pg_amcheck"] = reason
    proven = mark_verified(backup, datetime.now(UTC))
    return Proof(
        proven, len(manifest.tables), manifest.rows, found, skipped, time.monotonic() - started
    )


def print_proof(proof: Proof) -> None:
    """For a person."""
    found = ", ".join(f"{count} by {mode}" for mode, count in proof.found.items() if count)
    note(
        f"restored and compared: {proof.rows:,} rows of {proof.tables} tables;"
        f" searches that found what they should: {found or 'none was possible'}"
    )
    for what, reason in proof.skipped.items():
        note(f"not looked at: {what} ({reason})")


@dataclass(frozen=True, slots=True)
class _Entry:
    id: str
    ts: datetime | None
    content: str


def look_for_canaries(url: str, settings: Settings) -> tuple[dict[str, int], dict[str, str]]:
    """Search for what is known to be in a restored database, in every mode: how many searches were
    made for each, and which were not possible. Raises :class:`DamagedError` if one fails."""
    from recall_sql.connection import connect, translate_errors
    from recall_sql.loader import load

    found = {"exact": 0, "text": 0, "semantic": 0}
    skipped: dict[str, str] = {}
    with (
        translate_errors(),
        connect(url, application="recall restore", autocommit=True) as connection,
    ):
        rows = connection.execute(load("backup")["canary_entries"], {"most": _CANDIDATES})
        entries = [_Entry(*row) for row in rows]
        looks: list[tuple[Mode, Callable[[Connection, _Entry], str | None]]]
        looks = [("exact", _fragment), ("text", _rare_word)]
        for mode, query_of in looks:
            found[mode] = _search_for(connection, entries, mode, query_of)
            if not found[mode]:
                skipped[mode] = "no entry has a text to look for"
        if _look_by_meaning(connection, settings):
            found["semantic"] = 1
        else:
            skipped["semantic"] = "no vectors, or none of a text that stands only once"
    return found, skipped


def _search_for(
    connection: Connection,
    entries: Sequence[_Entry],
    mode: Mode,
    query_of: Callable[[Connection, _Entry], str | None],
) -> int:
    """Search for some of the newest and oldest entries; how many searches told something."""
    tried, found = set(), 0
    for pair in zip(entries, reversed(entries), strict=True):
        for entry in pair:
            if found < _CANARIES and entry.id not in tried:
                tried.add(entry.id)
                query = query_of(connection, entry)
                found += query is not None and _is_found(connection, entry, mode, query)
    return found


def _fragment(_connection: Connection, entry: _Entry) -> str | None:
    """The beginning of the longest line."""
    line = max(entry.content.split("\n"), key=len).strip()
    fragment = line[:_FRAGMENT_CHARS].strip()
    return fragment if len(fragment) >= _LEAST_CHARS else None


def _rare_word(connection: Connection, entry: _Entry) -> str | None:
    """The word of an entry that stands in the fewest entries, if that is rare."""
    from recall_sql.loader import load

    counts: dict[str, int] = {}
    for word in _longest(_WORD.findall(entry.content[:20_000])):
        values = {"id": entry.id, "word": word, "most": _MOST_ENTRIES + 1}
        row = connection.execute(load("backup")["canary_word"], values).fetchone()
        is_there, count = row or (False, 0)
        if is_there and count == 0:
            raise DamagedError(f"the text index does not find a word of entry {entry.id}")
        if is_there and count <= _MOST_ENTRIES:
            counts[word] = count
    return min(counts, key=counts.__getitem__, default=None)


def _longest(words: Iterable[str]) -> list[str]:
    return sorted(set(words), key=lambda word: (-len(word), word))[:_WORDS_OF_ENTRY]


def _is_found(connection: Connection, entry: _Entry, mode: Mode, query: str) -> bool:
    """Search as the API does. An answer that is full or ran out of time tells nothing; one that is
    complete without the entry raises :class:`DamagedError`."""
    from recall_api.search import SearchRequest, search

    until = entry.ts + timedelta(seconds=1) if entry.ts and mode == "exact" else None
    request = SearchRequest(query, mode=mode, limit=_MOST_HITS, until=until)
    answer = search(connection, request, budget_seconds=_SEARCH_SECONDS)
    if entry.id in {hit["id"] for hit in answer["hits"]}:
        return True
    if answer["degraded"] or answer["next_cursor"]:
        return False
    raise DamagedError(
        f"a search ({mode}) in the restored database does not find entry {entry.id}",
        hint="keep this dump, and make another backup",
    )


def _look_by_meaning(connection: Connection, settings: Settings) -> bool:
    """Search with the stored vector of a passage, which needs no model; whether there is one."""
    from recall_api.search import SearchRequest, search
    from recall_sql.loader import load

    row = connection.execute(load("backup")["canary_passage"]).fetchone()
    if row is None:
        return False
    entry_id, model, vector = row
    connection.execute("set recall.scan_rows = '0'")  # else a small store is read row by row
    request = SearchRequest("canary", mode="semantic", limit=_MOST_HITS)
    vectors = _stored_vector(settings, model, vector)
    answer = search(connection, request, budget_seconds=_SEARCH_SECONDS, vectors=vectors)
    if entry_id not in {hit["id"] for hit in answer["hits"]}:
        raise DamagedError(
            f"a search by meaning in the restored database does not find entry {entry_id}",
            hint="restore without vectors, or make another backup",
        )
    return True


class _Vector(list[float]):
    """What a model gives, without the library that models need: a backup may run where none is."""

    def tolist(self) -> list[float]:
        """As of an array."""
        return list(self)


def _stored_vector(settings: Settings, model_name: str, vector: list[float]) -> QueryVectors:
    """Gives every query the vector of the passage."""
    from recall_api.query_vectors import QueryVectors

    class Stored:
        name = model_name
        dimension = len(vector)
        pooling = ""
        max_tokens = 0
        threads_safe = True

        def spans(self, _text: str) -> list[tuple[int, int]]:
            return []

        def embed(self, texts: Sequence[str]) -> Any:
            return [_Vector(vector) for _ in texts]

    return QueryVectors(settings, lambda _settings: Stored())
