"""opencode: what is found, what the rows of a session give as lines, and what the lines say."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import SourceError
from recall.jsontext import MalformedLine
from recall.records import Message
from recall_ingester.sources.base import Document, SourceFile
from recall_ingester.sources.opencode import OpenCode
from recall_ingester.sources.opencode_parser import SessionParser
from recall_ingester.sources.opencode_parts import STRIDE

Json = dict[str, Any]

_SCHEMA = """
create table project(
  id text primary key, worktree text, time_created integer, time_updated integer);
create table session(
  id text primary key, project_id text, parent_id text, fork_session_id text, directory text,
  title text, version text, revert text, model text, time_created integer, time_updated integer);
create table message(
  id text primary key, session_id text, time_created integer, time_updated integer, data text);
create table part(
  id text primary key, message_id text, session_id text, time_created integer,
  time_updated integer, data text);
create table session_message(
  id text primary key, session_id text, type text, seq integer, time_created integer,
  time_updated integer, data text);
create table account(id text primary key, access_token text);
create table credential(id text primary key, value text);
"""


class Store:
    """A database of opencode's, as a client would fill it."""

    def __init__(self, path: Path, schema: str = _SCHEMA) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(schema)

    def add(self, table: str, **row: Any) -> None:
        values = [json.dumps(v) if isinstance(v, dict | list) else v for v in row.values()]
        marks = ", ".join("?" for _ in row)
        self.run(f"insert into {table}({', '.join(row)}) values ({marks})", values)

    def run(self, sql: str, values: Iterable[Any] = ()) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(sql, tuple(values))

    def session(self, id: str = "ses_1", **row: Any) -> None:
        fields = {"title": "Stock", "directory": "/srv/shop", "version": "1.4.3"}
        self.add("session", id=id, time_created=1000, time_updated=2000, **{**fields, **row})

    def message(self, id: str, at: int, data: object, session: str = "ses_1") -> None:
        self.add("message", id=id, session_id=session, time_created=at, time_updated=at, data=data)

    def part(self, id: str, message: str, at: int, data: object, session: str = "ses_1") -> None:
        self.add(
            "part", id=id, message_id=message, session_id=session,
            time_created=at, time_updated=at, data=data,
        )  # fmt: skip

    def second(self, id: str, seq: int, type: str, at: int = 0, **data: Any) -> None:
        self.add(
            "session_message", id=id, session_id="ses_1", type=type, seq=seq,
            time_created=at, time_updated=at, data=data,
        )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "opencode" / "opencode.db")


def found(root: Path) -> list[SourceFile]:
    return list(OpenCode().discover(root))


def members(file: SourceFile) -> dict[str, str]:
    with OpenCode().container(file) as container:
        return {member.external_id: member.watermark for member in container.members()}


def slots(file: SourceFile, session: str = "ses_1") -> list[bytes]:
    with OpenCode().container(file) as container:
        return list(container.slots(session))


def read(lines: Iterable[bytes], session: str = "ses_1") -> tuple[SessionParser, Document]:
    parser = SessionParser(session)
    return parser, parser.document(b"".join(lines))


def document(store: Store, session: str = "ses_1") -> Document:
    return read(slots(found(store.path)[0], session), session)[1]


def said(document: Document) -> list[tuple[int, str, str, str]]:
    return [
        (unit.ordinal, message.role, message.kind, message.text)
        for unit in document.units
        for message in unit.parsed.messages
    ]


def messages(document: Document) -> list[Message]:
    return [message for unit in document.units for message in unit.parsed.messages]


def lines(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def v1(data: object, *parts: object) -> Json:
    rows = [
        {"id": f"prt_{number}", "data": part if isinstance(part, str) else json.dumps(part)}
        for number, part in enumerate(parts)
    ]
    text = data if isinstance(data, str) else json.dumps(data)
    return {"message": {"id": "msg_1", "time_created": 5, "data": text}, "parts": rows}


def v2(type: str, **data: Any) -> Json:
    return {"session_message": {"id": "msg_1", "type": type, "data": json.dumps(data)}}


def parse(*values: object) -> Document:
    return SessionParser("ses_1").document(lines({"session": {"id": "ses_1"}}, *values))


def one(*parts: object, role: str = "assistant", **data: Any) -> list[tuple[str, str, str]]:
    return [entry[1:] for entry in said(parse(v1({"role": role, **data}, *parts)))]


USER = {"role": "user", "time": {"created": 1785574800000}}
ASSISTANT = {"role": "assistant", "modelID": "sonnet", "providerID": "anthropic"}


# Where sessions are found


def test_roots_are_the_data_folder_and_a_database_elsewhere(tmp_path: Path) -> None:
    data = tmp_path / ".local/share/opencode"
    source = OpenCode()
    assert source.roots({}, tmp_path) == [data]
    assert source.roots({"XDG_DATA_HOME": "/data"}, tmp_path) == [Path("/data/opencode")]
    assert source.roots({"OPENCODE_DB": "opencode-dev.db"}, tmp_path) == [data]
    assert source.roots({"OPENCODE_DB": "my.db"}, tmp_path) == [data / "my.db", data]
    assert source.roots({"OPENCODE_DB": "/x/my.db"}, tmp_path) == [Path("/x/my.db"), data]
    assert source.roots({"OPENCODE_DB": ":memory:"}, tmp_path) == [data]


def test_databases_come_first_and_other_files_not_at_all(tmp_path: Path) -> None:
    data = tmp_path / ".local/share/opencode"
    names = (
        "opencode.db", "opencode.db-wal", "opencode-dev.db", "opencode-wal-1.db", "other.db",
        "opencode.db.corrupt-17", "opencode-x.corrupt-17.db", "log/opencode.db",
    )  # fmt: skip
    for name in (*names, "storage/session/p/ses_1.json"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
    files = found(tmp_path)
    assert [(file.label, file.relative, file.always) for file in files] == [
        ("database", ".local/share/opencode/opencode-dev", False),
        ("database", ".local/share/opencode/opencode", False),
        ("storage", ".local/share/opencode/storage", True),
    ]
    assert files[1].companions == (data / "opencode.db-wal",)
    assert files[1].supersedes == data / "storage"
    assert {file.shape for file in files} == {"container"}


def test_root_may_be_a_database_or_a_storage_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "renamed.db")
    assert [(file.path, file.relative) for file in found(store.path)] == [(store.path, "renamed")]
    folder = tmp_path / "old"
    (folder / "session/p").mkdir(parents=True)
    (folder / "session/p/ses_1.json").touch()
    assert [(file.path, file.relative) for file in found(folder)] == [(folder, "old")]


def test_missing_root_is_an_error_of_the_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        found(tmp_path / "nowhere")


def test_older_client_of_the_same_name_says_so(tmp_path: Path) -> None:
    store = Store(
        tmp_path / ".opencode/opencode.db",
        "create table sessions(id text); create table messages(id text)",
    )
    (file,) = found(tmp_path)
    assert file.path == store.path
    with pytest.raises(SourceError, match="older opencode"):
        members(file)


def test_database_without_sessions_table_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "opencode.db", "create table t(a)")
    with pytest.raises(SourceError, match="no table `session`"):
        members(found(store.path)[0])


# What a database gives


def test_every_session_is_a_member_with_a_mark_of_times_and_counts(store: Store) -> None:
    store.add("project", id="p", worktree="/srv", time_created=1, time_updated=9000)
    store.session("ses_1", project_id="p")
    store.session("ses_2", project_id="gone")
    store.session("ses_3")
    store.message("msg_1", 3000, USER, session="ses_2")
    store.part("prt_1", "msg_1", 4000, {"type": "text", "text": "x"}, session="ses_2")
    store.add("session_message", id="m", session_id="ses_3", type="user", seq=1, time_updated=5000)
    file = found(store.path)[0]
    assert members(file) == {"ses_1": "9000:0.0.0", "ses_2": "4000:1.1.0", "ses_3": "5000:0.0.1"}


@pytest.mark.parametrize(
    "change",
    [
        "update session set time_updated = 9000",
        "update message set time_updated = 9000",
        "update part set time_updated = 9000",
        "delete from part",
        "update project set time_updated = 9000",
    ],
)
def test_mark_moves_with_every_kind_of_change(store: Store, change: str) -> None:
    store.add("project", id="p", worktree="/srv", time_created=1, time_updated=1)
    store.session(project_id="p")
    store.message("msg_1", 3000, USER)
    store.part("prt_1", "msg_1", 3000, {"type": "text", "text": "x"})
    file = found(store.path)[0]
    before = members(file)
    store.run(change)
    assert members(file) != before


def test_members_read_no_text_and_nothing_reads_secrets(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.session()
    store.message("msg_1", 3000, USER)
    store.part("prt_1", "msg_1", 3000, {"type": "text", "text": "x"})
    store.second("m", 1, "user", text="y")
    store.add("account", id="a", access_token="sk-secret")
    used: set[tuple[str, str]] = set()
    connect = sqlite3.connect

    class Watched(sqlite3.Connection):
        def set_authorizer(self, allow: Any) -> None:
            def watch(action: int, table: str | None, column: str | None, *rest: Any) -> int:
                if action == sqlite3.SQLITE_READ:
                    used.add((table or "", column or ""))
                return int(allow(action, table, column, *rest))

            super().set_authorizer(watch)

    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **more: connect(*args, factory=Watched, **more)
    )
    file = found(store.path)[0]
    with OpenCode().container(file) as container:
        assert [member.external_id for member in container.members()] == ["ses_1"]
        assert ("message", "time_updated") in used
        assert not [pair for pair in used if pair[1] in ("data", "title")]
        data = b"".join(container.slots("ses_1"))
    assert ("part", "data") in used
    assert not {table for table, _ in used} & {"account", "credential"}
    assert b"sk-secret" not in data


def test_lines_keep_every_column_and_the_exact_text_of_json(store: Store) -> None:
    exact = '{"role": "user",  "b":1, "a":1.50, "a":2}'
    store.add("project", id="p", worktree="/srv", time_created=1, time_updated=2)
    store.session(project_id="p")
    store.message("msg_1", 3000, exact)
    store.part("prt_1", "msg_1", 3000, "not json \u2028")
    first, second = slots(found(store.path)[0])
    header = json.loads(first)
    assert list(header["session"])[:3] == ["id", "project_id", "parent_id"]
    assert header["project"]["worktree"] == "/srv"
    line = json.loads(second)
    assert line["message"]["data"] == exact
    assert line["parts"][0]["data"] == "not json \u2028"
    assert second.endswith(b"}\n")


def test_order_is_by_time_then_id_and_equal_rows_give_equal_lines(store: Store) -> None:
    store.session()
    store.message("msg_b", 3000, USER)
    store.message("msg_a", 3000, ASSISTANT)
    store.message("msg_0", 4000, USER)
    for id, at in (("prt_9", 10), ("prt_2", 20), ("prt_1", 20)):
        store.part(id, "msg_a", at, {"type": "text", "text": id})
    file = found(store.path)[0]
    before = slots(file)
    rows = [json.loads(line) for line in before[1:]]
    assert [row["message"]["id"] for row in rows] == ["msg_a", "msg_b", "msg_0"]
    assert [part["id"] for part in rows[0]["parts"]] == ["prt_9", "prt_1", "prt_2"]
    store.message("msg_1", 5000, USER)
    assert slots(file)[:-1] == before


def test_parts_without_their_message_are_kept_in_their_place(store: Store) -> None:
    store.session()
    store.message("msg_1", 3000, USER)
    store.part("prt_1", "msg_1", 3000, {"type": "text", "text": "one"})
    store.part("prt_2", "msg_gone", 3500, {"type": "text", "text": "two"})
    store.message("msg_3", 4000, USER)
    store.part("prt_3", "msg_3", 4000, {"type": "text", "text": "three"})
    assert [text for *_, text in said(document(store))] == ["one", "two", "three"]


def test_session_without_messages_is_a_document_of_its_header(store: Store) -> None:
    store.session()
    result = document(store)
    assert (result.units, result.merged, result.skipped, result.bad) == ([], 1, {}, [])


def test_session_that_is_gone_is_an_error_and_no_empty_document(store: Store) -> None:
    with pytest.raises(SourceError, match="no longer holds"):
        slots(found(store.path)[0], "ses_gone")


def test_text_that_is_not_utf8_is_kept_and_readable(store: Store) -> None:
    store.session()
    store.message("msg_1", 3000, USER)
    raw = b'{"type":"text","text":"a\xffb"}'
    store.run("insert into part values ('p', 'msg_1', 'ses_1', 1, 1, cast(? as text))", [raw])
    store.run("insert into part values ('q', 'msg_1', 'ses_1', 2, 2, ?)", [b'{"type":"text"}'])
    line = json.loads(slots(found(store.path)[0])[1])
    assert line["parts"][0]["data"] == {"base64": "eyJ0eXBlIjoidGV4dCIsInRleHQiOiJh/2IifQ=="}
    assert said(document(store)) == [(0, "user", "text", "a\ufffdb")]


def test_second_generation_is_ordered_by_seq(store: Store) -> None:
    store.session()
    store.second("b", 2, "assistant", content=[{"type": "text", "text": "answer"}])
    store.second("a", 10, "user", text="more")
    store.second("c", 1, "user", text="question")
    assert [text for *_, text in said(document(store))] == ["question", "answer", "more"]


def test_session_of_both_generations_tells_each_text_once(store: Store) -> None:
    store.session()
    for number, at in enumerate((100, 300)):
        store.message(f"msg_{number}", at, USER)
        store.part(f"prt_{number}", f"msg_{number}", at, {"type": "text", "text": "continue"})
        store.second(f"v2_{number}", number, "user", at, text="continue")
    store.second("v2_9", 9, "user", 400, text="only here")
    result = document(store)
    texts = [(ordinal, text) for ordinal, _, _, text in said(result)]
    assert texts == [(0, "continue"), (2, "continue"), (4, "only here")]
    assert result.skipped == {"repeats a message of the other generation": 2}


# What a session says about itself


def test_session_has_title_place_version_model_and_times(store: Store) -> None:
    store.session(model={"id": "sonnet", "providerID": "anthropic"}, parent_id="ses_0")
    draft = read(slots(found(store.path)[0]))[0].session
    assert (draft.title, draft.title_rank, draft.cwd) == ("Stock", 50, "/srv/shop")
    assert (draft.client_version, draft.model) == ("1.4.3", "sonnet")
    assert (draft.parent_id, draft.relation) == ("ses_0", "subagent")
    assert draft.started_at == datetime.fromtimestamp(1000, UTC)
    assert draft.ended_at == datetime.fromtimestamp(2000, UTC)


def test_fork_and_project_folder_are_used_where_nothing_better_is(store: Store) -> None:
    store.add("project", id="p", worktree="/srv", time_created=1, time_updated=2)
    store.session(project_id="p", directory=None, fork_session_id="ses_0")
    draft = read(slots(found(store.path)[0]))[0].session
    assert (draft.cwd, draft.parent_id, draft.relation) == ("/srv", "ses_0", "fork")


def test_placeholder_title_gives_way_to_the_first_prompt() -> None:
    header = {"session": {"id": "ses_1", "title": "New session - 2026-08-01T09:00:00.000Z"}}
    parser = SessionParser("ses_1")
    parser.document(lines(header))
    assert parser.session.title_rank == 1
    parser.document(lines(header, v1(USER, {"type": "text", "text": "why is\nit slow?"})))
    assert (parser.session.title, parser.session.title_rank) == ("why is it slow?", 10)


def test_reverted_messages_are_off_the_active_branch() -> None:
    text = {"type": "text", "text": "x"}
    values = [v1(USER, text) for _ in range(3)]
    for number, value in enumerate(values):
        value["message"]["id"] = f"msg_{number}"
    for revert, active in (
        ({"messageID": "msg_1"}, [True, False, False]),
        ({"messageID": "msg_1", "partID": "prt_0"}, [True, False, False]),
        ({"messageID": "msg_1", "partID": "prt_9"}, [True, True, False]),
        (None, [True, True, True]),
    ):
        header = {"session": {"id": "ses_1", "revert": json.dumps(revert)}}
        result = SessionParser("ses_1").document(lines(header, *values))
        assert [message.on_active_branch for message in messages(result)] == active


# What messages and parts say


def test_message_has_ids_model_time_and_a_scope_for_copies(store: Store) -> None:
    store.session()
    store.message("msg_1", 3000, {**ASSISTANT, "time": {"created": 1785574800000}})
    store.part("prt_1", "msg_1", 3000, {"type": "text", "text": "done"})
    (unit,) = document(store).units
    (message,) = unit.parsed.messages
    assert (message.native_id, message.copy_scope, message.model) == ("msg_1", "prt_1", "sonnet")
    assert unit.parsed.ts == datetime(2026, 8, 1, 9, 0, tzinfo=UTC)


def test_result_that_arrives_later_moves_no_other_part() -> None:
    call: Json = {"type": "tool", "tool": "bash", "callID": "c", "state": {"input": {"a": "b"}}}
    text = {"type": "text", "text": "x"}
    before = {m.text: m.part for m in messages(parse(v1(ASSISTANT, call, text)))}
    call["state"]["output"] = "out"
    after = {m.text: m.part for m in messages(parse(v1(ASSISTANT, call, text)))}
    assert before == {"a: b": 0, "x": STRIDE}
    assert after == {**before, "out": 1}


def test_texts_of_the_client_are_meta() -> None:
    parts = [
        {"type": "text", "text": "said"},
        {"type": "text", "text": "made", "synthetic": True},
        {"type": "text", "text": "hidden", "ignored": True},
        {"type": "reasoning", "text": "thought", "metadata": {"openai": {"x": "encrypted"}}},
        {"type": "subtask", "prompt": "look there", "description": "scan", "agent": "explore"},
        {"type": "agent", "name": "explore", "source": {"value": "@explore", "start": 0}},
    ]
    assert one(*parts, role="user") == [
        ("user", "text", "said"),
        ("user", "meta", "made"),
        ("user", "meta", "hidden"),
        ("assistant", "thinking", "thought"),
        ("user", "meta", "prompt: look there\ndescription: scan\nagent: explore"),
        ("user", "meta", "name: explore\nsource:\nvalue: @explore\nstart: 0"),
    ]


@pytest.mark.parametrize(
    ("state", "failed"),
    [
        ({"status": "completed", "output": "o"}, False),
        ({"status": "completed", "output": "o", "metadata": {"exit": 0}}, False),
        ({"status": "completed", "output": "o", "metadata": {"exit": 2}}, True),
        ({"status": "completed", "output": "o", "metadata": {"exit": None}}, False),
        ({"status": "error", "error": "o"}, True),
    ],
)
def test_tool_gives_a_call_and_a_result(state: Json, failed: bool) -> None:
    tool = {"type": "tool", "tool": "bash", "callID": "c1", "state": {**state, "input": {"k": "v"}}}
    call, result = messages(parse(v1(ASSISTANT, tool)))
    assert (call.role, call.kind, call.text, call.tool, call.call_id) == (
        "assistant", "tool_call", "k: v", "bash", "c1",
    )  # fmt: skip
    assert (result.role, result.kind, result.text, result.call_id) == (
        "tool", "tool_result", "o", "c1",
    )  # fmt: skip
    assert result.is_error is failed


def test_what_else_a_tool_told_is_kept_unless_it_repeats() -> None:
    state = {
        "status": "completed",
        "input": {"command": "ls"},
        "output": "a.txt",
        "title": "ls",
        "metadata": {"output": "a.txt", "note": "cut off", "diff": "- a", "preview": "a"},
    }
    tool = {"type": "tool", "tool": "bash", "state": state}
    assert one(tool)[2:] == [("tool", "meta", "note: cut off")]


def test_attachments_are_stubs() -> None:
    image = {"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:;base64,AAAA"}
    pdf = {"type": "file", "mime": "application/pdf", "url": "data:;base64,AAAA"}
    link = {
        "type": "file", "mime": "text/plain", "filename": "b.py", "url": "file:///b.py",
        "source": {"type": "file", "path": "src/b.py", "text": {"value": "@b.py", "start": 0}},
    }  # fmt: skip
    tool = {"type": "tool", "tool": "read", "state": {"input": {}, "attachments": [image]}}
    texts = [text for _, _, text in one(image, pdf, link, tool, role="user")]
    stub = "3 bytes, sha256 709e80c88487]"
    assert texts == [
        f"a.png\n[image image/png, {stub}",
        f"[file application/pdf, {stub}",
        "b.py\nfile:///b.py",
        "path: src/b.py\nvalue: @b.py",
        "read",
        f"a.png\n[image image/png, {stub}",
    ]


def test_message_of_bounds_only_is_skipped_with_a_reason() -> None:
    silent = [{"type": name, "snapshot": "abc"} for name in ("step-start", "snapshot", "patch")]
    result = parse(v1(ASSISTANT, *silent), v1(USER, {"type": "text", "text": "x"}))
    assert result.skipped == {"no text": 1}
    assert said(result) == [(1, "user", "text", "x")]


def test_events_and_unknown_parts_are_kept() -> None:
    retry = {"type": "retry", "attempt": 1, "error": {"data": {"message": "overloaded"}}}
    assert one({"type": "compaction", "auto": True}, retry, {"type": "new", "a": "b"}) == [
        ("system", "event", "compaction\nauto: true"),
        ("system", "event", "retry\nattempt: 1\nerror:\ndata:\nmessage: overloaded"),
        ("assistant", "unknown", '{"type":"new","a":"b"}'),
    ]


def test_error_system_prompt_and_summary_of_a_message_are_kept() -> None:
    error = {
        "name": "APIError",
        "data": {"message": "too long", "responseHeaders": {"x": "y"}, "responseBody": "{}"},
    }
    text = {"type": "text", "text": "hi"}
    result = one(text, system="be brief", summary={"title": "Greets", "body": "hi"}, error=error)
    assert result == [
        ("assistant", "text", "hi"),
        ("system", "meta", "be brief"),
        ("system", "meta", "Greets"),
        ("system", "event", "name: APIError\nmessage: too long\nresponseBody: {}"),
    ]


def test_system_prompt_that_comes_with_every_message_is_kept_once() -> None:
    text = {"type": "text", "text": "hi"}
    values = [v1({"role": "user", "system": prompt}, text) for prompt in ("a", "a", "b")]
    kept = [(entry[0], entry[3]) for entry in said(parse(*values)) if entry[2] == "meta"]
    assert kept == [(0, "a"), (2, "b")]


def test_compaction_summary_is_a_summary_and_its_unknown_fields_are_kept() -> None:
    assert one({"type": "text", "text": "so far"}, summary=True, later={"a": "b"}) == [
        ("assistant", "summary", "so far"),
        ("system", "unknown", '{"later":{"a":"b"}}'),
    ]


def test_messages_of_the_first_versions_are_read() -> None:
    info = {
        "id": "msg_1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "look"},
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result", "toolCallId": "c", "toolName": "bash",
                    "args": {"command": "ls"}, "result": "a.txt",
                },
            },
            {"type": "source-url", "url": "https://x.example", "title": "X"},
        ],
        "metadata": {
            "time": {"created": 1785574800000},
            "assistant": {"modelID": "sonnet", "system": ["be brief"]},
            "error": {"name": "Aborted"},
        },
    }  # fmt: skip
    result = parse(v1(info))
    assert said(result) == [
        (0, "assistant", "text", "look"),
        (0, "assistant", "tool_call", "command: ls"),
        (0, "tool", "tool_result", "a.txt"),
        (0, "assistant", "text", "X\nhttps://x.example"),
        (0, "system", "meta", "be brief"),
        (0, "system", "event", "name: Aborted"),
    ]
    assert result.units[0].parsed.ts == datetime(2026, 8, 1, 9, 0, tzinfo=UTC)
    assert result.units[0].parsed.messages[0].model == "sonnet"


def test_rows_of_the_second_generation_are_read() -> None:
    tool = {
        "type": "tool", "id": "c", "name": "bash",
        "state": {
            "status": "error", "input": {"command": "ls"}, "error": {"type": "x", "message": "no"},
            "content": [{"type": "text", "text": "out"}, {"type": "file", "uri": "file:///a"}],
            "structured": {"note": "more"},
        },
    }  # fmt: skip
    values = [
        v2("user", text="hi", files=[{"mime": "text/plain", "name": "n", "data": "aGVsbG8="}],
           agents=[{"name": "explore"}], references=[{"name": "docs"}]),
        v2("assistant", content=[{"type": "reasoning", "text": "hm"}, tool],
           error={"message": "e"}),
        v2("synthetic", text="made", description="why"),
        v2("system", text="rules"),
        v2("shell", callID="s", command="pwd", output="/srv"),
        v2("compaction", reason="auto", summary="so far", recent="the end"),
        v2("agent-switched", agent="plan"),
        v2("later", a="b"),
    ]  # fmt: skip
    assert said(parse(*values)) == [
        (0, "user", "text", "hi"),
        (0, "user", "text", "n\n[file text/plain, 5 bytes, sha256 2cf24dba5fb0]\nhello"),
        (0, "user", "meta", "name: explore"),
        (0, "system", "meta", "name: docs"),
        (1, "assistant", "thinking", "hm"),
        (1, "assistant", "tool_call", "command: ls"),
        (1, "tool", "tool_result", "out\nfile:///a\nmessage: no"),
        (1, "tool", "meta", "note: more"),
        (1, "system", "event", "message: e"),
        (2, "user", "meta", "made"),
        (2, "system", "meta", "description: why"),
        (3, "system", "meta", "rules"),
        (4, "user", "tool_call", "pwd"),
        (4, "tool", "tool_result", "/srv"),
        (5, "assistant", "summary", "so far"),
        (5, "system", "meta", "the end"),
        (5, "system", "meta", "reason: auto"),
        (6, "system", "event", "agent-switched\nagent: plan"),
        (7, "system", "unknown", '{"type":"later","a":"b"}'),
    ]


def test_parts_of_a_message_are_numbered_without_clashes() -> None:
    everything = [
        v1(
            {"role": "user", "system": "s", "error": "e", "x": ["y"]}, {"type": "text", "text": "a"}
        ),
        v2("assistant", text="t", content=[{"type": "text", "text": "b", "x": "y"}], error="e"),
    ]
    for unit in parse(*everything).units:
        numbers = [message.part for message in unit.parsed.messages]
        assert numbers == sorted(set(numbers))


# What cannot be read


def test_line_that_is_no_json_is_a_bad_span_at_its_place() -> None:
    data = lines({"session": {}}) + b"{half\n[1]\n" + lines(v1(USER, {"type": "text", "text": "x"}))
    result = SessionParser("ses_1").document(data)
    assert [(bad.ordinal, bad.data, bad.reason) for bad in result.bad] == [
        (0, b"{half", "not JSON"),
        (1, b"[1]", "not an object"),
    ]
    assert all(data[bad.byte_offset :].startswith(bad.data) for bad in result.bad)
    assert said(result) == [(2, "user", "text", "x")]


def test_message_that_is_no_json_is_a_bad_span() -> None:
    result = parse(v1("{half"), v1(USER, {"type": "text", "text": "x"}))
    assert [(bad.ordinal, bad.reason) for bad in result.bad] == [
        (0, "a JSON text inside is not JSON")
    ]
    assert said(result) == [(1, "user", "text", "x")]


def test_part_that_is_no_json_is_told_and_its_text_stays_findable() -> None:
    result = parse(v1(USER, {"type": "text", "text": "x"}, '{"text": "half'))
    assert len(result.bad) == 1
    assert said(result) == [(0, "user", "text", "x"), (0, "user", "unknown", '{"text": "half')]


def test_nothing_at_all_takes_nothing_back() -> None:
    with pytest.raises(MalformedLine):
        SessionParser("ses_1").document(b"")


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_WORDS = [
    "type", "text", "role", "parts", "data", "id", "state", "input", "output", "metadata",
    "error", "summary", "system", "revert", "model", "content", "files", "agents",
    "toolInvocation", "mime", "url", "name", "time", "created", "messageID", "session",
    "message", "session_message", "project", "attachments", "raw", "title", "user", "assistant",
    "tool", "file", "retry", "base64",
]  # fmt: skip
_JSON = st.recursive(
    _SCALARS | st.sampled_from(_WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)
_VALID: list[Json] = [
    {"session": {"id": "s", "title": "t", "revert": '{"messageID":"msg_1"}', "model": "{}"}},
    v1(
        {"role": "user", "time": {"created": 1}, "summary": {"title": "t"}, "error": {"a": "b"}},
        {"type": "tool", "tool": "x", "state": {"input": {}, "metadata": {"exit": 1}}},
    ),
    v2("user", text="t", files=[{"mime": "text/plain", "data": "AA=="}], agents=[{"name": "a"}]),
    v2("assistant", content=[{"type": "tool", "state": {"content": [{"type": "text"}]}}]),
]


def _replaced(value: Any, path: list[int], put: Any) -> Any:
    """The value with another one at a place that the numbers lead to, inside JSON texts too."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        return json.dumps(_replaced(json.loads(value), path, put))
    if not path or not isinstance(value, dict | list) or not value:
        return put
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = _replaced(value[key], path[1:], put)
    return changed


@given(
    st.integers(0, len(_VALID) - 1),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    _JSON,
)
def test_any_value_at_any_place_is_read(line: int, path: list[int], put: Any) -> None:
    values: list[Any] = list(_VALID)
    values[line] = _replaced(values[line], path, put)
    data = lines(*values)
    parser = SessionParser("ses_1")
    result = parser.document(data)
    assert parser.document(data) == result
    counted = {unit.ordinal for unit in result.units} | {bad.ordinal for bad in result.bad}
    assert len(counted) + sum(result.skipped.values()) + result.merged >= len(values) - 1
    for message in messages(result):
        assert message.text.strip()


@given(_JSON, st.sampled_from(["", *_WORDS]), st.sampled_from([*_WORDS, "shell", "compaction"]))
def test_any_row_is_read(put: Any, name: str, type: str) -> None:
    part = {**put, "type": name} if isinstance(put, dict) else put
    parse(v1({"role": "user"}, part), {"session_message": {"type": type, "data": json.dumps(put)}})


def test_deep_nesting_is_read() -> None:
    deep: Any = "end"
    for _ in range(900):
        deep = {"a": deep}
    tool = {"type": "tool", "tool": "x", "state": {"input": deep, "metadata": deep}}
    assert parse(v1(USER, tool, {"type": "new", "a": deep})).units
    assert parse(v1('{"a":' * 100_000)).bad


# The storage folder of before the database


class Folder:
    """A storage folder, written file by file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, value: object) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def session(self, id: str = "ses_1", project: str = "p", **fields: Any) -> None:
        value = {"id": id, "projectID": project, "title": "Old", "directory": "/srv", **fields}
        self.write(f"session/{project}/{id}.json", value)

    def exchange(self) -> None:
        self.write("message/ses_1/msg_2.json", {"id": "msg_2", **ASSISTANT})
        self.write("message/ses_1/msg_1.json", {"id": "msg_1", **USER})
        self.write("part/msg_1/prt_1.json", {"id": "prt_1", "type": "text", "text": "question"})
        self.write("part/msg_2/prt_3.json", {"id": "prt_3", "type": "text", "text": "world"})
        self.write("part/msg_2/prt_2.json", {"id": "prt_2", "type": "text", "text": "hello"})

    @property
    def file(self) -> SourceFile:
        return next(file for file in found(self.path) if file.label == "storage")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "opencode" / "storage")


def test_files_of_a_session_become_the_same_lines(folder: Folder) -> None:
    folder.session(parentID="ses_0", version="0.5", time={"created": 1e12, "updated": 2e12})
    folder.write("project/p.json", {"id": "p", "worktree": "/srv"})
    folder.exchange()
    assert list(members(folder.file)) == ["ses_1"]
    parser, result = read(slots(folder.file))
    assert [entry[3] for entry in said(result)] == ["question", "hello", "world"]
    assert [message.native_id for message in messages(result)] == ["msg_1", "msg_2", "msg_2"]
    assert [message.copy_scope for message in messages(result)] == ["prt_1", "prt_2", "prt_3"]
    draft = parser.session
    assert (draft.title, draft.cwd, draft.client_version) == ("Old", "/srv", "0.5")
    assert (draft.parent_id, draft.relation) == ("ses_0", "subagent")
    assert draft.started_at == datetime.fromtimestamp(1e9, UTC)
    assert json.loads(slots(folder.file)[0])["project"]["id"] == "p"


def test_mark_of_a_folder_session_moves_with_each_of_its_files(folder: Folder) -> None:
    folder.session()
    folder.session("ses_2")
    folder.exchange()
    file = folder.file
    marks = [members(file)]
    os.utime(folder.path / "part/msg_2/prt_2.json", ns=(1, 2**62))
    marks.append(members(file))
    folder.write("part/msg_2/prt_4.json", {"type": "text", "text": "!"})
    marks.append(members(file))
    (folder.path / "message/ses_1/msg_1.json").unlink()
    marks.append(members(file))
    assert len({mark["ses_1"] for mark in marks}) == 4
    assert len({mark["ses_2"] for mark in marks}) == 1


def test_layout_of_the_first_versions_is_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "opencode/project/srv-shop/storage")
    folder.write("session/info/ses_1.json", {"id": "ses_1", "title": "First"})
    folder.write("session/message/ses_1/msg_1.json", {"id": "msg_1", **USER})
    part = {"id": "prt_1", "type": "text", "text": "question"}
    folder.write("session/part/ses_1/msg_1/prt_1.json", part)
    parser, result = read(slots(folder.file))
    assert said(result) == [(0, "user", "text", "question")]
    assert parser.session.title == "First"


def test_first_layout_leaves_sessions_to_the_folder_that_they_moved_to(tmp_path: Path) -> None:
    old = Folder(tmp_path / "opencode/project/srv-shop/storage")
    for id in ("ses_1", "ses_2"):
        old.write(f"session/info/{id}.json", {"id": id})
    Folder(tmp_path / "opencode/storage").session("ses_1")
    assert list(members(old.file)) == ["ses_2"]


def test_sessions_that_a_database_holds_are_not_listed(folder: Folder, store: Store) -> None:
    for id in ("ses_1", "ses_2", "ses_3"):
        folder.session(id)
    store.session("ses_1")
    Store(store.path.with_name("opencode-dev.db")).session("ses_3")
    assert list(members(folder.file)) == ["ses_2"]


def test_folder_is_not_read_while_a_database_beside_it_cannot_be(folder: Folder) -> None:
    folder.session()
    (folder.path.parent / "opencode.db").write_bytes(b"garbage" * 100)
    with pytest.raises(SourceError, match="may have moved on"):
        members(folder.file)


def test_torn_file_is_told_and_costs_only_itself(folder: Folder) -> None:
    folder.session()
    folder.exchange()
    folder.write("part/msg_2/prt_2.json", '{"type": "text", "te')
    folder.write("message/ses_1/msg_3.json", "{")
    result = read(slots(folder.file))[1]
    assert [bad.ordinal for bad in result.bad] == [1, 2]
    assert [text for *_, text in said(result)] == ["question", '{"type": "text", "te', "world"]


def test_messages_without_their_session_file_are_a_session(folder: Folder) -> None:
    folder.session("ses_0")
    folder.exchange()
    assert list(members(folder.file)) == ["ses_0", "ses_1"]
    assert len(said(read(slots(folder.file))[1])) == 3


def test_moved_session_counts_once_by_its_newest_file(folder: Folder) -> None:
    folder.session(project="z-global", title="Before")
    folder.session(project="a-real", title="After")
    os.utime(folder.path / "session/z-global/ses_1.json", (1, 1))
    assert list(members(folder.file)) == ["ses_1"]
    assert read(slots(folder.file))[0].session.title == "After"


def test_ids_inside_files_lead_to_no_other_folder(folder: Folder, tmp_path: Path) -> None:
    folder.session()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.json").write_text('{"type": "text", "text": "hidden words"}')
    folder.write("message/ses_1/msg_1.json", {"id": str(secret), **USER})
    folder.write("message/ses_1/msg_2.json", {"id": "../../../secret", **USER})
    folder.write("session/p/ses_2.json", {"id": "ses_2", "projectID": "../../../secret/x"})
    for session in ("ses_1", "ses_2"):
        assert b"hidden words" not in b"".join(slots(folder.file, session))


# The shared sample logs


def _copied(corpus: Path, name: str, tmp_path: Path) -> Path:
    target = tmp_path / Path(name).name
    shutil.copytree(corpus / name, target)
    return target


def _texts(root: Path) -> Mapping[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for file in found(root):
        for session in members(file):
            result = read(slots(file, session), session)[1]
            texts[f"{file.path.name}:{session}"] = [text for *_, text in said(result)]
            assert not result.bad
            assert result.merged == 1
            assert len(result.units) + sum(result.skipped.values()) == len(slots(file, session)) - 1
    return texts


@pytest.mark.corpus
def test_sample_database_is_read_with_its_wal(corpus: Path, tmp_path: Path) -> None:
    data = _copied(corpus, "opencode/synthetic/opencode", tmp_path)
    file = next(file for file in found(data) if file.path.name == "opencode.db")
    main = "ses_0b1c2d3e4f5aAbCdEfGhIjKlMn"
    rows = [json.loads(line) for line in slots(file, main)[1:]]
    assert sum(len(row["parts"]) for row in rows) == 6
    assert members(file)[main].endswith(":2.6.0")
    texts = _texts(data)
    assert texts[f"opencode.db:{main}"][-1] == "No validation of qty."
    assert texts[f"opencode-dev.db:{main}"] == [
        "Why 500?",
        "hm",
        "command: ls",
        "a",
        "No validation.",
    ]
    for path in sorted((corpus / "opencode/synthetic/opencode").iterdir()):
        assert (data / path.name).read_bytes() == path.read_bytes()


@pytest.mark.corpus
def test_sample_storage_folders_are_read(corpus: Path, tmp_path: Path) -> None:
    texts = _texts(_copied(corpus, "opencode/agent-sessions", tmp_path))
    assert texts["storage_legacy:s_stage0_drift"][-1] == "Read README and extracted the title."
    assert len(texts["storage_v2:s_stage0_large"]) == 11
    assert texts["storage_v2:s_stage0_small"][-1] == "Found 2 files."


@pytest.mark.corpus
def test_client_with_the_same_schema_can_be_read(corpus: Path, tmp_path: Path) -> None:
    data = _copied(corpus, "kilo/ctx/kilo", tmp_path)
    source = OpenCode("kilo", "Kilo", stem="kilo", variable="KILO_DB")
    (file,) = source.discover(data)
    with source.container(file) as container:
        (member,) = container.members()
        result = read(container.slots(member.external_id), member.external_id)[1]
    texts = [text for *_, text in said(result)]
    assert texts == ["kilo fixture import oracle", "native kilo import ok"]
