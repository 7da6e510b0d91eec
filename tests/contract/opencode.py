"""opencode: the folder of JSON files, and the database that took its place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.script import Case, Words, insert, ms, put, run_sql

_SESSION = "ses_contract"
_DATABASE = "opencode.db"
_SCHEMA = [
    ("create table project(id text primary key, worktree text, time_updated integer)", ()),
    (
        "create table session(id text primary key, project_id text, parent_id text,"
        " directory text, title text, version text, revert text, time_created integer,"
        " time_updated integer)",
        (),
    ),
    (
        "create table message(id text primary key, session_id text, time_created integer,"
        " time_updated integer, data text)",
        (),
    ),
    (
        "create table part(id text primary key, message_id text, session_id text,"
        " time_created integer, time_updated integer, data text)",
        (),
    ),
]


def _message(number: int, minute: int, role: str, **more: Any) -> dict[str, Any]:
    data = {"role": role, "time": {"created": ms(minute)}, "modelID": "model-one", **more}
    return {"id": f"msg_{number:03d}", "minute": minute, "data": data}


def _part(number: int, message: int, minute: int, **data: Any) -> dict[str, Any]:
    return {
        "id": f"prt_{number:03d}", "message": f"msg_{message:03d}", "minute": minute, "data": data
    }  # fmt: skip


def _history(words: Words) -> dict[str, list[dict[str, Any]]]:
    say, lose = words.say, words.lose
    running = {"status": "running", "input": {"command": say("args", 2)}}
    growing = _part(3, 2, 2, type="tool", tool="bash", callID="call-1", state=running)
    completed = {
        **running, "status": "completed", "output": say("output", 2), "title": say("tooltitle", 2),
        "metadata": {"note": {"deep": say("deeparg", 2)}},
    }  # fmt: skip
    grown = _part(3, 2, 2, type="tool", tool="bash", callID="call-1", state=completed)
    return {
        "first": [
            _message(1, 1, "user"),
            _part(1, 1, 1, type="text", text=say("ask", 1)),
            _message(2, 2, "assistant"),
            _part(2, 2, 2, type="reasoning", text=say("thinking", 2)),
            growing,
        ],
        "update": [{**grown, "minute": 3}],
        "grown": [grown],
        "lost": [
            _message(3, 4, "user"),
            _part(4, 3, 4, type="text", text=lose("rewound", 4)),
        ],
        "last": [
            _message(4, 6, "user"),
            _part(5, 4, 6, type="text", text=say("again", 6)),
            _part(6, 4, 6, type="file", mime="text/plain", filename=say("filename", 6), url="f"),
            _message(5, 7, "assistant", error={"name": "E", "data": {"message": say("error", 7)}}),
            _part(7, 5, 7, type="text", text=say("answer", 7)),
            _part(8, 5, 7, type="never-seen", text=say("unknown", 7)),
        ],
    }


_words = Words("opencodedb")
_rows = _history(_words)
_title = _words.say("title")


def _statement(row: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    times = {"time_created": ms(row["minute"]), "time_updated": ms(row["minute"])}
    if "message" not in row:
        return insert("message", id=row["id"], session_id=_SESSION, data=row["data"], **times)
    return insert(
        "part", id=row["id"], message_id=row["message"], session_id=_SESSION, data=row["data"],
        **times,
    )  # fmt: skip


def _session(title: str, minute: int) -> tuple[str, tuple[Any, ...]]:
    return insert(
        "session", id=_SESSION, project_id="p", directory="/home/dev/shop", title=title,
        version="1.0", time_created=ms(0), time_updated=ms(minute),
    )  # fmt: skip


_PROJECT = insert("project", id="p", worktree="/home/dev/shop", time_updated=ms(0))


def _migrated(root: Path) -> None:
    """The client made a database of the folder, which stays beside it."""
    statements = [*_SCHEMA, _PROJECT, _session("New session - 2026-03-04", 2)]
    run_sql(root / _DATABASE, *statements, *map(_statement, _rows["first"]))


def _folder_before(root: Path) -> None:
    _write_files(root, _rows["first"])


def _continued(root: Path) -> None:
    (update,) = _rows["update"]
    sql = "update part set data = ?, time_updated = ? where id = ?"
    change = (sql, (json.dumps(update["data"]), ms(update["minute"]), update["id"]))
    run_sql(root / _DATABASE, change, *map(_statement, _rows["lost"]))


def _reverted(root: Path) -> None:
    gone = [row["id"] for row in _rows["lost"]]
    deletes = [(f"delete from {table} where id = ?", (id,))
               for table in ("message", "part") for id in gone]  # fmt: skip
    title = ("update session set title = ?, time_updated = ?", (_title, ms(7)))
    run_sql(root / _DATABASE, *deletes, *map(_statement, _rows["last"]), title)


def _all_statements() -> Sequence[tuple[str, tuple[Any, ...]]]:
    rows = [*_rows["first"][:-1], *_rows["grown"], *_rows["last"]]
    return [*_SCHEMA, _PROJECT, _session(_title, 7), *map(_statement, rows)]


def _neighbour_database(root: Path, word: str) -> None:
    path = root / "opencode-beta.db"
    if not path.exists():
        session = insert("session", id="ses_other", title="other", time_updated=1)
        run_sql(path, *_SCHEMA, session, insert("message", id="m", session_id="ses_other", data={}))
    part = {"type": "text", "text": word}
    run_sql(
        path,
        insert("part", id=word, message_id="m", session_id="ses_other", time_created=1, data=part),
    )


def _path_of(row: dict[str, Any]) -> Path:
    storage = Path("storage")
    kind, folder = ("part", row["message"]) if "message" in row else ("message", _SESSION)
    return Path(storage, kind, folder, f"{row['id']}.json")


def _write_files(root: Path, rows: Sequence[dict[str, Any]]) -> None:
    info = {"id": _SESSION, "directory": "/home/dev/shop", "version": "0.9", "title": "",
            "time": {"created": ms(0), "updated": ms(2)}}  # fmt: skip
    if not (path := root / "storage/session/p" / f"{_SESSION}.json").exists():
        put(path, json.dumps(info))
    for row in rows:
        ids = {"id": row["id"], "sessionID": _SESSION}
        if "message" in row:
            ids["messageID"] = row["message"]
        put(root / _path_of(row), json.dumps({**ids, **row["data"]}, indent=2))


_file_words = Words("opencodefiles")
_files = _history(_file_words)
_file_title = _file_words.say("title")


def _files_begun(root: Path) -> None:
    _write_files(root, _files["first"])


def _files_continued(root: Path) -> None:
    _write_files(root, [*_files["update"], *_files["lost"]])


def _files_reverted(root: Path) -> None:
    for row in _files["lost"]:
        (root / _path_of(row)).unlink()
    _write_files(root, _files["last"])
    info = {"id": _SESSION, "directory": "/home/dev/shop", "title": _file_title,
            "time": {"created": ms(0), "updated": ms(7)}}  # fmt: skip
    put(root / "storage/session/p" / f"{_SESSION}.json", json.dumps(info))


def _neighbour_files(root: Path, word: str) -> None:
    put(root / "storage/message/ses_other/msg_1.json", '{"id":"msg_1","role":"user"}')
    part = {"id": "prt_1", "messageID": "msg_1", "type": "text", "text": word}
    put(root / "storage/part/msg_1/prt_1.json", json.dumps(part))


CASES = [
    Case(
        "opencode-database",
        "opencode",
        _words,
        [_folder_before, _migrated, _continued, _reverted],
        main=_DATABASE,
        folder="opencode",
        neighbour=_neighbour_database,
        statements=_all_statements(),
        table=("part", "data", "id"),
    ),
    Case(
        "opencode-files",
        "opencode",
        _file_words,
        [_files_begun, _files_continued, _files_reverted],
        main=f"storage/part/msg_005/{_files['last'][4]['id']}.json",
        folder="opencode",
        neighbour=_neighbour_files,
        takes_back_files=True,
    ),
]
