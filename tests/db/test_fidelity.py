"""No text is lost: every string of the originals is in the store, or left out for a written reason.

The first part pins this for all sample logs; a loss there is a bug of a parser, or needs a line in
its `leaves_out` that says why. The second part shows that the measure sees a loss.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.bench.fidelity import FOLDERS, Fidelity, as_json, measure, report
from recall.config import Settings
from recall.declared import DeclaredSource
from recall_sql.connection import connect
from tests.db.ingesting import rows

#: Files among the samples that no client writes: conversions and dumps made by other programs.
NOT_READ = {
    "claude-code": {"claude-code-transcripts/sample_session.json"},
    "opencode": {"moraine/opencode/session.jsonl", "tokscale/msg_test001.json"},
}
SESSION = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"
TIME = "2026-08-01T09:00:00.000Z"


@pytest.mark.corpus
@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_of_the_sample_logs_is_lost(database: str, corpus: Path, folder: str) -> None:
    result = measure(database, FOLDERS[folder], corpus / folder)
    assert dict(result.lost_paths) == {}
    assert result.strings == result.found + result.left_out.total() + result.lost
    assert result.found > 0
    assert set(result.not_read) == NOT_READ.get(result.source, set())


def lines(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def claude(folder: Path) -> Settings:
    """Each place of a transcript where somebody's words can stand, with words of its own."""

    def entry(kind: str, number: int, **fields: object) -> dict[str, Any]:
        ids = {"uuid": f"0000-{number}", "sessionId": SESSION, "timestamp": TIME}
        return {"type": kind, **ids, "cwd": "/home/dev/shop", "userType": "external", **fields}

    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "make it"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "shown to the model"}
    blocks = [
        {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmVk"},
        {"type": "text", "text": "an answer"},
        call,
        {"type": "unheard_of", "deep": [{"er": "from a later version"}]},
    ]
    lines(
        folder / "projects/-home-dev-shop" / f"{SESSION}.jsonl",
        entry("user", 1, message={"role": "user", "content": "a question"}),
        entry("assistant", 2, message={"role": "assistant", "model": "opus", "content": blocks}),
        entry(
            "user",
            3,
            message={"role": "user", "content": [result]},
            toolUseResult={"stdout": "shown to nobody", "file": {"content": "a file\nof its own"}},
        ),
        entry("system", 4, subtype="stop_hook_summary", hookErrors=["a hook failed"]),
        entry("attachment", 5, attachment={"type": "hook_success", "stdout": "a hook's words"}),
        entry("unheard_of", 6, text="a new kind of record"),
        {"type": "summary", "summary": "a summary", "leafUuid": "0000-4"},
        {"type": "tag", "tag": "a tag", "sessionId": SESSION},
    )
    lines(folder / "history.jsonl", {"display": "typed", "timestamp": 1, "project": "/home/dev"})
    return Settings()


def codex(folder: Path) -> Settings:
    """The same for a rollout, its prompt history and its title index."""

    def item(**payload: object) -> dict[str, Any]:
        return {"timestamp": TIME, "type": "response_item", "payload": payload}

    def event(**payload: object) -> dict[str, Any]:
        return {"timestamp": TIME, "type": "event_msg", "payload": payload}

    said = [{"type": "input_text", "text": "a question"}]
    arguments = json.dumps({"cmd": ["make", "it\nnow"], "note": 'with "quotes"'})
    output = json.dumps({"output": "what came of it", "metadata": {"exit_code": 0}})
    lines(
        folder / "sessions/2026/08/01" / f"rollout-2026-08-01T09-00-00-{SESSION}.jsonl",
        {
            "timestamp": TIME,
            "type": "session_meta",
            "payload": {"id": SESSION, "cwd": "/home/dev/shop", "cli_version": "0.125.0"},
        },
        {"type": "turn_context", "payload": {"user_instructions": "a standing order"}},
        item(type="message", role="user", content=said),
        item(type="reasoning", summary=[{"type": "summary_text", "text": "a thought"}]),
        item(type="function_call", name="shell", call_id="call_1", arguments=arguments),
        item(type="function_call_output", call_id="call_1", output=output),
        item(type="unheard_of", text="from a later version"),
        event(type="user_message", message="a question"),
        event(type="agent_message", message="an answer"),
        event(type="error", message="a failure"),
    )
    lines(folder / "history.jsonl", {"session_id": SESSION, "ts": 1, "text": "typed"})
    lines(folder / "session_index.jsonl", {"id": SESSION, "thread_name": "a name"})
    return Settings()


def ledger(folder: Path) -> Settings:
    """A table with a column of each role and two of its own."""
    path = folder / "ledger.db"
    columns = ("id", "session_id", "created_at", "project", "title", "summary", "mood", "extra")
    row = (1, SESSION, TIME, "/home/dev/shop", "a title", "a summary", "glad", '{"a": ["a list"]}')
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"create table ledger ({', '.join(columns)})")
        database.execute("insert into ledger values (?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.commit()
    return Settings(ledger_path=path)


def memory(folder: Path) -> Settings:
    """A note with a head, a list of entries and a file of lines."""
    (folder / "note.md").write_text("---\nname: a name\n---\n# A title\n\nwhat to remember\n")
    entries = [{"id": "one", "content": "an entry", "tags": ["a tag"]}]
    (folder / "entries.json").write_text(json.dumps({"memories": entries}))
    lines(folder / "entries.jsonl", {"text": "a line", "source": "a place"})
    return Settings(memory_paths=(folder,))


def declared(folder: Path) -> Settings:
    """A client that only its user knows."""
    lines(folder / "log.jsonl", {"who": "me", "what": ["said here", "and here"], "in": "s1"})
    source = DeclaredSource(
        "mine", (str(folder),), text=("what[*]",), session=("in",), role=("who",)
    )
    return Settings(declared_sources=(source,))


MADE: dict[str, Callable[[Path], Settings]] = {
    "claude-code": claude,
    "codex": codex,
    "ledger": ledger,
    "memory": memory,
    "mine": declared,
}
#: The only strings of these originals that need not be in the store.
LEFT_OUT = {
    "claude-code": {
        "what kind of record or block it is; unknown kinds are kept whole",
        "a switch or the state of the client, nothing that anybody wrote",
        "a signature of the model's reasoning, not text",
        "ids between records; a message is stored with its own",
    },
    "codex": {"what kind of record or part it is; unknown kinds are kept whole"},
    "mine": {
        "a declared source stores the fields that its table names; the original bytes are kept"
        " whole"
    },
}


@pytest.mark.parametrize("source", MADE)
def test_every_marked_place_is_stored(database: str, tmp_path: Path, source: str) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    settings = MADE[source](folder)
    result = measure(database, source, settings.ledger_path or folder, settings)
    assert (result.lost, dict(result.lost_paths), result.not_read) == (0, {}, {})
    assert set(result.left_out) <= LEFT_OUT.get(source, set())


def lost(result: Fidelity) -> list[tuple[str, str]]:
    return [(item.file, item.path) for item in result.examples]


def again(database: str, folder: Path, statement: str) -> Fidelity:
    """Measure, change the store, and measure what is there now."""
    settings = claude(folder)
    assert measure(database, "claude-code", folder, settings).lost == 0
    with connect(database, application="tests") as connection:
        connection.execute(statement.encode())
    return measure(database, "claude-code", folder, settings)


TRANSCRIPT = f"projects/-home-dev-shop/{SESSION}.jsonl"


def test_message_that_is_not_in_the_store_is_lost(database: str, tmp_path: Path) -> None:
    result = again(database, tmp_path, "delete from recall.message where content = 'an answer'")
    assert result.lost == 1
    assert lost(result) == [(f"{TRANSCRIPT}:2", "message.content.1.text")]
    assert dict(result.lost_paths) == {"message.content.*.text": 1}
    assert 0 < result.share < 1 and result.share_found < result.share


def test_text_that_is_cut_short_is_lost(database: str, tmp_path: Path) -> None:
    result = again(
        database,
        tmp_path,
        "update recall.message set content = left(content, 9) where content = 'shown to nobody'",
    )
    assert lost(result) == [(f"{TRANSCRIPT}:3", "toolUseResult.stdout")]


def test_text_in_another_session_is_no_excuse(database: str, tmp_path: Path) -> None:
    other = SESSION.replace("5d0f", "6e1f")
    lines(
        tmp_path / "projects/p" / f"{other}.jsonl",
        {"type": "user", "message": {"content": "an answer"}, "timestamp": TIME},
    )
    result = again(
        database,
        tmp_path,
        f"delete from recall.message where content = 'an answer' and session_key like '%{SESSION}'",
    )
    assert lost(result) == [(f"{TRANSCRIPT}:2", "message.content.1.text")]


def test_prompt_that_is_not_in_the_store_is_lost(database: str, tmp_path: Path) -> None:
    result = again(database, tmp_path, "delete from recall.prompt")
    assert ("history.jsonl:1", "display") in lost(result)


def test_what_was_taken_back_is_still_in_the_store(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    path = lines(folder / f"{SESSION}.jsonl", {"type": "user", "message": {"content": "first"}})
    original = path.read_bytes()
    measure(database, "claude-code", folder)
    lines(path, {"type": "user", "message": {"content": "other, and longer"}})
    measure(database, "claude-code", folder)
    assert rows(database, "select content from recall.message_retracted") == [("first",)]
    (folder / f"{SESSION}.bak").write_bytes(original)
    assert measure(database, "claude-code", folder).not_read == {}


def test_line_that_is_no_json_is_found_among_the_quarantined(database: str, tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_text('{"type": "user", "message": {"content": "hello"}}\n{"broken: said\n{"torn')
    result = measure(database, "claude-code", tmp_path)
    assert (result.lost, result.found) == (0, 3)
    assert dict(result.left_out)["an unfinished last line; it is read once it ends"] == 1


def test_file_that_nobody_reads_is_named_and_one_that_is_left_out_is_counted(
    database: str, tmp_path: Path
) -> None:
    lines(tmp_path / f"{SESSION}.jsonl", {"type": "user", "message": {"content": "hello"}})
    (tmp_path / "stray.json").write_text('{"text": "nowhere else"}')
    (tmp_path / "sessions-index.json").write_text('{"text": "nowhere else"}')
    result = measure(database, "claude-code", tmp_path)
    assert result.not_read == {"stray.json": 1}
    assert dict(result.files_left_out) == {"an index that the client makes from the sessions": 1}
    assert result.lost == 0


def test_report_names_what_is_lost_and_shows_no_text_unasked(database: str, tmp_path: Path) -> None:
    result = again(database, tmp_path, "delete from recall.message where content = 'an answer'")
    whole = json.dumps(as_json(result))
    assert '"lost": 1' in whole and '"message.content.*.text": 1' in whole
    assert "an answer" in report([result], show=True)
    text = report([result])
    assert "an answer" not in text
    assert "message.content.1.text" in text and "9 characters" in text
