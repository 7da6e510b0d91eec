"""Nothing that can stand in the place of a client's file costs more than that file."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from recall.errors import RecallError
from recall_ingester.sources.ledger import LedgerTable
from recall_ingester.summary import Summary
from tests.contract.cases import CASES, IN_DATABASES, READ_IN_PASSES
from tests.contract.script import Case, add, run_sql
from tests.contract.store import Store

pytestmark = pytest.mark.timeout(600)

_WRONG = {
    "id": [1], "type": {"a": 1}, "kind": 0, "v": [[1]], "k": 5, "sessionId": 7, "timestamp": {},
    "message": 5, "messages": {"x": [None]}, "requests": "no", "payload": [1], "mapping": 3,
    "chat_messages": 4, "memories": 5, "recall": "x", "content": {"deep": [{"er": None}]},
    "body": 1, "items": {}, "session": [], "toolUseResult": [[]], "$set": {"messages": [[]]},
}  # fmt: skip
_NOISE = random.Random(11).randbytes(3_000)

#: What a file holds instead, made from what it held.
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "random": lambda _: _NOISE,
    "random-lines": lambda _: _NOISE[::-1] + b"\n" + _NOISE + b"\n",
    "torn": lambda _: b'{"half": "of a rec',
    "list": lambda _: b"[]",
    "object": lambda _: b"{}",
    "null": lambda _: b"null\n",
    "deep": lambda _: b"[" * 20_000 + b"]" * 20_000 + b"\n",
    "deep-objects": lambda _: b'{"message":' * 5_000 + b"1" + b"}" * 5_000 + b"\n",
    "nuls": lambda _: b"\x00" * 5_000 + b"\n",
    "huge": lambda _: b'"' + b"x" * 3_000_000 + b'"\n',
    "wrong-shape": lambda _: json.dumps(_WRONG).encode() + b"\n",
    "truncated": lambda whole: whole[: len(whole) * 2 // 3],
}
#: There is nothing in these that could be told or used.
_NOTHING = {"empty", "list", "object"}


def _a_folder(path: Path) -> None:
    path.mkdir()


def _a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def _shut(path: Path) -> None:
    path.write_bytes(b"{}\n")
    path.chmod(0)


PLACEHOLDERS: dict[str, Callable[[Path], None]] = {
    "folder": _a_folder, "pipe": _a_pipe, "loop": _a_loop,
}  # fmt: skip
if os.geteuid() != 0:  # who can read every file
    PLACEHOLDERS["unreadable"] = _shut

#: So often a table of a case is asked for rows at most; more is a loop without an end.
_MOST_READS = 200


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reading that would never end fail."""
    reads: Counter[int] = Counter()
    rows = LedgerTable.rows

    def counted(table: LedgerTable, after_id: int | None, limit: int) -> list[tuple[int, bytes]]:
        reads[id(table)] += 1
        assert reads[id(table)] < _MOST_READS, "the table is read without end"
        return rows(table, after_id, limit)

    monkeypatch.setattr(LedgerTable, "rows", counted)
    opened = Path.open

    def guarded(path: Path, *arguments: Any, **named: Any) -> Any:
        assert not path.is_fifo(), "a pipe is opened, and whoever opens it waits"
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", guarded)


each_case = pytest.mark.parametrize("case", READ_IN_PASSES, ids=lambda case: case.name)


@dataclass
class Tries:
    """What is tried on one case, one thing after the other, and what went wrong."""

    case: Case
    folder: Path
    beside: Path
    store: Store
    wrong: list[str] = field(default_factory=list)
    #: How many words were put into other files; no word is the beginning of another.
    words: int = 0

    @property
    def path(self) -> Path:
        return self.folder / self.case.main

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Note what is wrong with one thing and go on with the next."""
        try:
            yield
        except Exception as error:
            self.wrong.append(f"{name}: {str(error).partition(chr(10))[0] or repr(error)}")


@pytest.fixture
def tries(case: Case, folder_of: Callable[[Case], Path], store: Store, tmp_path: Path) -> Tries:
    """A case in its last state, which the store has read."""
    folder = folder_of(case)
    for state in case.states:
        state(folder)
    store.read(case, folder)
    return Tries(case, folder, tmp_path / "beside", store)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_other_content_costs_its_file_only(case: Case, tries: Tries) -> None:
    whole, wanted = tries.path.read_bytes(), tries.store.live()
    said = tries.store.ever_said()
    for name, content in CONTENTS.items():
        with tries.trying(name):
            tries.path.write_bytes(content(whole))
            if case.way != "pass":
                _check_import(case, tries.folder, tries.store)
                continue
            summary = _check_pass(tries)
            told = _is_counted(case, tries.path, tries.store, summary)
            assert name in _NOTHING or told, "nothing tells what could not be used"
        with tries.trying(f"{name}, restored"):
            tries.path.write_bytes(whole)
            tries.store.read(case, tries.folder)
            _check_restored(tries.store, wanted, said)
    assert tries.wrong == [], "; ".join(tries.wrong)


@each_case
def test_what_is_no_file_costs_its_file_only(case: Case, tries: Tries) -> None:
    whole, wanted = tries.path.read_bytes(), tries.store.live()
    said = tries.store.ever_said()
    for name, place in PLACEHOLDERS.items():
        with tries.trying(name):
            tries.path.unlink()
            place(tries.path)
            _check_pass(tries)
            if not case.takes_back_files:
                _check_restored(tries.store, wanted, said)
        with tries.trying(f"{name}, restored"):
            _take_away(tries.path)
            tries.path.write_bytes(whole)
            tries.store.read(case, tries.folder)
            _check_restored(tries.store, wanted, said)
    assert tries.wrong == [], "; ".join(tries.wrong)


@each_case
def test_what_is_no_file_is_told(case: Case, tries: Tries) -> None:
    whole = tries.path.read_bytes()
    for name, place in PLACEHOLDERS.items():
        with tries.trying(name):
            tries.path.unlink()
            place(tries.path)
            summary = tries.store.read(case, tries.folder)
            told = _is_noted(case, tries.path, tries.store, summary)
            told = told or (case.takes_back_files and summary.retired > 0)
            _take_away(tries.path)
            tries.path.write_bytes(whole)
            tries.store.read(case, tries.folder)
            assert told, "nothing tells it"
    assert tries.wrong == [], "; ".join(tries.wrong)


_SQL: dict[str, Callable[[str, str, str], Sequence[str]]] = {
    "missing-table": lambda table, text, key: [f"drop table {table}"],
    "missing-column": lambda table, text, key: [f"alter table {table} drop column {text}"],
    "blob": lambda table, text, key: [f"update {table} set {text} = x'00ff80c328'"],
    "number": lambda table, text, key: [f"update {table} set {text} = 4.5e300"],
    "null-text": lambda table, text, key: [f"update {table} set {text} = null"],
    "null-id": lambda table, text, key: [
        f"create table other as select * from {table}",
        f"drop table {table}",
        f"alter table other rename to {table}",
        f"update {table} set {key} = null where rowid = 1",
    ],
    "text-id": lambda table, text, key: [
        f"create table other as select * from {table}",
        f"drop table {table}",
        f"alter table other rename to {table}",
        f"update {table} set {key} = 'x''x' where rowid = 1",
    ],
}


@pytest.mark.parametrize("case", IN_DATABASES, ids=lambda case: case.name)
def test_database_of_another_form_costs_itself_only(case: Case, tries: Tries) -> None:
    tries.case = case = replace(case, compares_all=True)
    whole, wanted = tries.path.read_bytes(), tries.store.live()
    said = tries.store.ever_said()
    assert case.table is not None
    damaged = {"half": whole[: len(whole) // 2], "page": whole[:100] + _NOISE + whole[3_100:]}
    for name in (*_SQL, *damaged):
        with tries.trying(name):
            if name in damaged:
                tries.path.write_bytes(damaged[name])
            else:
                run_sql(tries.path, *((sql, ()) for sql in _SQL[name](*case.table)))
            summary = _check_pass(tries)
            assert _is_counted(case, tries.path, tries.store, summary), "nothing tells it"
        with tries.trying(f"{name}, restored"):
            tries.path.write_bytes(whole)
            tries.store.read(case, tries.folder)
            _check_restored(tries.store, wanted, said)
    assert tries.wrong == [], "; ".join(tries.wrong)


def _check_pass(tries: Tries) -> Summary:
    """A pass ends, keeps every text, and stores what is new of the same client and of another."""
    case, store = tries.case, tries.store
    before = store.ever_said()
    sessions = {key for (key,) in store.query("select session_key from recall.session")}
    tries.words += 1
    words = [f"{place}{tries.words:03d}" for place in ("beside", "neighbour")]
    record = {"type": "user", "message": {"role": "user", "content": words[0]}}
    add(tries.beside / "0d0d0d0d-1111-4222-8333-444444444444.jsonl", record)
    if case.neighbour:
        case.neighbour(tries.folder, words[1])
    else:
        del words[1]
    summary = store.read_beside(case, tries.folder, tries.beside)
    assert before - store.ever_said() == set(), "texts are lost"
    kept = {key for (key,) in store.query("select session_key from recall.session")}
    assert sessions <= kept, "sessions are lost"
    live = " ".join(text for text, _, is_live in store.texts() if is_live)
    assert [word for word in words if word not in live] == [], "other files are not stored"
    for path, seen, stored, merged, quarantined, skipped, *_ in store.accounts():
        assert seen == stored + merged + quarantined + skipped, path
    return summary


def _check_import(case: Case, folder: Path, store: Store) -> None:
    """A file that is no export is refused, or it keeps what was stored before."""
    before, said = store.all_rows(), store.ever_said()
    with suppress(RecallError):
        store.read(case, folder)
        assert said <= store.ever_said()
        return
    assert store.all_rows() == before


def _check_restored(store: Store, wanted: dict[str, Any], said: set[str]) -> None:
    """The file is as it was, so its rows are too."""
    found = store.live()
    for name in ("messages", "prompts", "notes"):
        assert [row for row in wanted[name] if row not in found[name]] == [], f"{name} are not live"
    keys = {row[0] for row in wanted["messages"]}
    assert len([row for row in found["messages"] if row[0] in keys]) == len(wanted["messages"]), (
        "more messages"
    )
    assert said <= store.ever_said()


def _is_counted(case: Case, path: Path, store: Store, summary: Summary) -> bool:
    """Whether something of the content was used, or a count or reason says why not."""
    return _is_noted(case, path, store, summary) or any(
        stored + merged + quarantined + skipped + unfinished > 0
        for _, _, stored, merged, quarantined, skipped, _, unfinished, _ in _accounts(
            case, path, store
        )
    )


def _is_noted(case: Case, path: Path, store: Store, summary: Summary) -> bool:
    """Whether the store says that the file cannot be read, or is gone."""
    return str(path) in summary.unreadable or any(
        unreadable is not None or is_missing
        for *_, unreadable, _, is_missing in _accounts(case, path, store)
    )


def _accounts(case: Case, path: Path, store: Store) -> list[tuple[Any, ...]]:
    """The accounts of a file: its own, or those of the sessions in it or in its folder."""
    folder = path.parent.as_posix().partition("/storage/")[0] + "/storage"
    starts = (f"{path}#", f"{folder}#") if case.source == "opencode" else ()
    return [row for row in store.accounts() if row[0] == str(path) or row[0].startswith(starts)]


def _take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()
