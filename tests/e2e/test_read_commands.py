"""`recall search`, `sessions`, `show` and `status` as a person or a script runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from recall import processes
from recall.cli import app
from recall.cli.found import print_found
from recall.cli.search import SearchCommand
from recall.config import Settings
from recall.identity import load_identity
from recall.keys import message_id
from recall_sql.connection import connect
from tests.db.note_store import NOW, Entry, add_note, memory
from tests.db.serving import Line, Store, serving
from tests.double.ports import TakenPort

pytestmark = pytest.mark.timeout(600)

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]

COLOURED = "\x1b[31m needle\x1b[0m\x1b]0;owned\x07 in a \x1b[2Jlog"


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    return kept | {"RECALL_HOME": str(home)} | dict(more)


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def recall(home: Path, database: str) -> Run:
    """Runs the command on the database of this test."""

    def run(*arguments: str, **more: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "recall", *arguments],
            env=environment(home, {"RECALL_DATABASE_URL": database, **more}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def talk(store: Store) -> str:
    """A session of four messages; its key."""
    return store.add_session(
        "0b7f2c9e-5d1a",
        [
            "please raise --shm-size for the needle container",
            Line("I will look", role="assistant"),
            Line(COLOURED, role="tool", kind="tool_result", tool="Bash"),
            Line("done", role="assistant"),
        ],
        title="Shared memory\x1b[31m",
    )


def test_a_hit_says_where_it_is_and_how_to_open_it(recall: Run, talk: str) -> None:
    done = recall("search", "needle", "container")
    assert done.returncode == 0, done.stderr
    number = str(message_id(talk, 0, 0))
    header, snippet = done.stdout.splitlines()[:2]
    for part in ("claude-code", "laptop", "shop", "user/text", number, "Shared memory"):
        assert part in header
    assert "«needle»" in snippet
    assert "\x1b" not in done.stdout + done.stderr
    assert f"recall show {number}" in done.stderr
    assert "mode text" in done.stderr


def test_copies_are_one_hit_that_says_so(recall: Run, store: Store) -> None:
    store.add_session("0b7f2c9e", [Line("a needle", copy=9)])
    store.add_session("1c7f2c9e", [Line("a needle", copy=9)])
    assert "also in: 1 other place\n" in recall("search", "needle").stdout


def test_search_as_json_is_the_answer_of_the_api(recall: Run, talk: str, database: str) -> None:
    done = recall("search", "needle", "--role", "user", "--json")
    ours = json.loads(done.stdout)
    with serving(database) as api:
        theirs = api.get("/search", params={"q": "needle", "role": "user"}).json()
    for answer in (ours, theirs):
        assert answer.pop("took_ms") >= 0
    assert ours == theirs
    assert len(ours["hits"]) == 1


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_nothing_found_is_exit_code_1(recall: Run, talk: str, more: list[str]) -> None:
    done = recall("search", "absentword", *more)
    assert done.returncode == 1
    if more:
        assert json.loads(done.stdout)["hits"] == []
    else:
        assert done.stdout == ""
        assert "nothing found for `absentword`" in done.stderr
        assert "searched: 4 messages" in done.stderr
        assert "claude-code on laptop" in done.stderr


def test_hits_of_which_none_is_close_are_shown_with_a_note(recall: Run, talk: str) -> None:
    done = recall("search", "look at the printer driver of the reception")
    assert done.returncode == 0, done.stderr
    assert "«look»" in done.stdout
    notes = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: no hit is close to the query, these are only the nearest: the best hit by words"
        " holds 14% of the query"
    ]
    assert "note:" not in recall("search", "needle").stderr


def test_strict_finds_nothing_rather_than_hits_of_which_none_is_close(
    recall: Run, talk: str
) -> None:
    done = recall("search", "--strict", "look at the printer driver of the reception")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing found for `look at the printer" in done.stderr
    assert "note: no hit is close to the query, so `--strict` gives none: " in done.stderr
    assert recall("search", "--strict", "needle").returncode == 0
    told = recall("search", "--strict", "--json", "look at the printer driver of the reception")
    assert told.returncode == 1
    assert json.loads(told.stdout)["weak"] is True


def test_the_next_page_goes_on_behind_the_first(recall: Run, talk: str) -> None:
    first = json.loads(recall("search", "needle", "--limit", "1", "--json").stdout)
    cursor = first["next_cursor"]
    second = recall("search", "needle", "--limit", "1", "--cursor", cursor, "--json")
    ids = {hit["id"] for hit in first["hits"] + json.loads(second.stdout)["hits"]}
    assert ids == {str(message_id(talk, 0, 0)), str(message_id(talk, 2, 0))}


REGISTERED = isinstance(getattr(get_command(app), "commands", {})["search"], SearchCommand)


@pytest.mark.xfail(not REGISTERED, reason="registered without `cls=SearchCommand`", strict=True)
@pytest.mark.parametrize("arguments", [["--shm-size"], ["--shm-size", "--limit", "3", "-done"]])
def test_what_looks_like_an_option_can_be_searched_for(
    recall: Run, talk: str, arguments: list[str]
) -> None:
    done = recall("search", *arguments)
    assert done.returncode == 0, done.stderr
    assert str(message_id(talk, 0, 0)) in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["search"], 2),
        (["search", "x", "--mode", "guess"], 2),
        (["search", "x", "--since", "whenever"], 2),
        (["search", "x", "--cursor", "nonsense"], 2),
        (["search", "(", "--mode", "regex"], 2),
        (["search", "x", "--session", "unknown"], 4),
        (["sessions", "--relation", "cousin"], 2),
        (["show", "unknown-ref"], 4),
        (["show", "123"], 4),
    ],
)
def test_what_cannot_be_has_its_exit_code_and_no_traceback(
    recall: Run, arguments: list[str], code: int
) -> None:
    done = recall(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_sessions_are_listed_with_what_is_hidden(recall: Run, store: Store, talk: str) -> None:
    store.add_session("0b7f2c9e-5d1a/tool-results/a", relation="spill", parent_key=talk)
    store.add_session("0b7f2c9e-5d1a/agent-a", relation="subagent", parent_key=talk, title="Help")
    done = recall("sessions")
    assert "0b7f2c9e-5d1a/agent-a" in done.stdout
    assert "subagent: Help" in done.stdout
    assert "tool-results" not in done.stdout
    assert "2 of 2 sessions; 1 with spilled tool output hidden" in done.stderr
    assert "\x1b" not in done.stdout
    assert len(json.loads(recall("sessions", "--include-spills", "--json").stdout)["sessions"]) == 3


def test_a_message_is_shown_with_its_neighbours(recall: Run, talk: str) -> None:
    done = recall("show", str(message_id(talk, 1, 0)), "--context", "1")
    assert done.returncode == 0, done.stderr
    place = [done.stdout.index(text) for text in ("--shm-size", "I will look", "needle in a log")]
    assert place == sorted(place)
    assert "> assistant/text" in done.stdout
    assert talk in done.stdout
    assert "done\n" not in done.stdout


@pytest.mark.parametrize("ref", ["claude-code:laptop:0b7f2c9e-5d1a", "0b7f2c9e-5d1a", "0b7f2c"])
def test_a_session_is_shown_by_key_id_or_beginning(recall: Run, talk: str, ref: str) -> None:
    done = recall("show", ref)
    assert done.returncode == 0, done.stderr
    texts = ("Shared memory", "--shm-size", "I will look", "tool/tool_result Bash", "done")
    place = [done.stdout.index(text) for text in texts]
    assert place == sorted(place)
    assert "4 messages" in done.stderr
    assert "\x1b" not in done.stdout


def test_a_session_id_that_begins_with_digits_is_no_message(recall: Run, store: Store) -> None:
    store.add_session("12345678-aaaa", ["hello"])
    assert "hello" in recall("show", "12345678").stdout


def test_an_ambiguous_beginning_names_the_sessions(recall: Run, store: Store) -> None:
    store.add_session("0b7f2c9e-aaaa")
    store.add_session("0b7f2c9e-bbbb")
    done = recall("show", "0b7f2c9e")
    assert done.returncode == 2
    assert "0b7f2c9e-aaaa" in done.stderr
    assert "0b7f2c9e-bbbb" in done.stderr


def test_a_long_session_is_shown_in_parts(recall: Run, store: Store) -> None:
    key = store.add_session("0b7f2c9e", [f"message-{number:03}." for number in range(450)])
    part = recall("show", key, "--from", "10", "--limit", "3")
    assert [number for number in range(450) if f"message-{number:03}." in part.stdout] == [
        10,
        11,
        12,
    ]
    assert f"recall show {key} --from 13" in part.stderr
    whole = recall("show", key, "--limit", "0")
    assert whole.stdout.count("message-") == 450
    as_json = json.loads(recall("show", key, "--limit", "2", "--json").stdout)
    assert [row["content"] for row in as_json["messages"]] == ["message-000.", "message-001."]
    assert as_json["next_cursor"]


def test_a_message_on_a_branch_that_was_left_is_marked(recall: Run, store: Store) -> None:
    lines = [Line("one", role="assistant", on_active_branch=False), Line("two", role="assistant")]
    key = store.add_session("0b7f2c9e", lines)
    headers = [line for line in recall("show", key).stdout.splitlines() if "#" in line]
    assert ["abandoned" in header for header in headers] == [True, False]
    number = str(message_id(key, 0, 0))
    assert "assistant/text abandoned" in recall("show", number).stdout


def run_on_terminal(arguments: list[str], env: dict[str, str]) -> str:
    """What the command writes to a terminal."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "recall", *arguments],
        env=env,
        stdin=child,
        stdout=child,
        stderr=child,
    ) as process:
        os.close(child)
        written = b"".join(iter(lambda: read_terminal(parent), b""))
        process.wait(timeout=240)
    os.close(parent)
    return written.decode()


def read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 65_536)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


@pytest.mark.parametrize("what", ["search", "show", "sessions"])
def test_a_log_cannot_control_the_terminal_that_shows_it(
    home: Path, database: str, talk: str, what: str
) -> None:
    arguments = {"search": ["search", "needle"], "show": ["show", talk], "sessions": ["sessions"]}
    env = environment(home, {"RECALL_DATABASE_URL": database, "TERM": "xterm-256color"})
    written = run_on_terminal(arguments[what], env | {"COLUMNS": "200"})
    assert "\x1b[1m" in written or "\x1b[2m" in written  # the command's own styles are there
    for foreign in ("\x1b]", "\x07", "\x1b[2J", "\x1b[31m"):
        assert foreign not in written
    if what == "search":
        assert "\x1b[1mneedle\x1b[0m" in written


def test_status_says_what_is_stored_and_what_is_wrong(recall: Run, store: Store, talk: str) -> None:
    store.add_file("/logs/a.jsonl", key=talk, lines=(10, 6, 1, 1, 2))
    store.add_quarantine("/logs/a.jsonl", 77)
    store.add_file("/logs/b.jsonl", unreadable="permission denied")
    store.beat(seconds_ago=10_000)
    done = recall("status")
    assert done.returncode == 0, done.stderr
    for text in ("1 sessions", "4 messages", "claude-code", "it may be dead"):
        assert text in done.stdout
    assert "running" not in done.stdout  # the database is not that of a `recall up`
    assert "1 lines not readable" in done.stdout
    assert "--problems" in done.stderr
    listed = recall("status", "--problems").stdout
    assert "/logs/a.jsonl: line 4, byte 77, 7 bytes: not JSON (not stored)" in listed
    assert "/logs/b.jsonl: permission denied" in listed


def test_status_counts_notes_only_where_there_are_any(
    recall: Run, store: Store, talk: str, database: str
) -> None:
    store.add_file("/logs/a.jsonl", key=talk, lines=(1, 1, 0, 0, 0))
    assert "notes" not in recall("status").stdout
    with connect(database, application="tests") as connection:
        add_note(connection, Entry("moved the cache"))
        add_note(connection, memory("prefers tabs"))
        add_note(connection, memory("prefers spaces"), replaced_at=NOW)
    shown = recall("status").stdout
    assert ", 2 notes" in shown
    table = [line.split() for line in shown.splitlines() if line.startswith(("host", "laptop"))]
    assert table[0][:6] == ["host", "source", "files", "sessions", "notes", "lines"]
    assert [row[1:6] for row in table[1:]] == [
        ["claude-code", "1", "1", "1", "1"],
        ["ledger", "0", "0", "1", "0"],
    ]


def test_what_was_found_counts_notes_only_where_there_are_any(
    home: Path, database: str, store: Store, talk: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add_file("/logs/a.jsonl", key=talk)
    settings = Settings(home=home)
    load_identity(home, host="laptop")
    print_found(settings, database, ingest=True)
    assert ["source", "files", "sessions", "messages", "problems"] in _rows(capsys)
    with connect(database, application="tests") as connection:
        add_note(connection, Entry("moved the cache"))
        add_note(connection, memory("prefers spaces"), replaced_at=NOW)
    print_found(settings, database, ingest=True)
    table = _rows(capsys)
    assert ["source", "files", "sessions", "messages", "notes", "problems"] in table
    assert ["claude-code", "1", "1", "4", "0", "0"] in table
    assert ["ledger", "0", "0", "0", "1", "0"] in table


def _rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().err.splitlines()]


def test_status_shows_the_parts_that_run_here(recall: Run, home: Path, talk: str) -> None:
    parts: list[dict[str, Any]] = [
        {"name": "api", "pid": 1, "state": "running", "restarts": 0},
        {
            "name": "ingest", "pid": None, "state": "waiting", "restarts": 3, "last_exit": -9,
            "next_try_at": "2026-03-01T12:00:00+00:00",
        },
    ]  # fmt: skip
    state = {
        "pid": os.getpid(), "process": processes.identify(os.getpid()),
        "url": "http://127.0.0.1:7717", "parts": parts,
    }  # fmt: skip
    (home / "run").mkdir()
    (home / "run" / "up.json").write_text(json.dumps(state))
    shown = recall("status").stdout
    assert "running   http://127.0.0.1:7717" in shown
    assert "api: running, pid 1" in shown
    assert "ingest: waiting, 3 restarts, last exit -9, next try 2026-03-01T12:00:00" in shown
    assert json.loads(recall("status", "--json").stdout)["running"] == state


@pytest.fixture
def served(database: str) -> Iterator[str]:
    with serving(database) as api:
        yield str(api.base_url)


def test_the_commands_say_the_same_over_http(recall: Run, served: str, talk: str) -> None:
    for arguments in (["search", "needle"], ["sessions"], ["show", talk], ["show", "123"]):
        local = recall(*arguments)
        remote = recall(*arguments, RECALL_URL=served)
        assert (local.returncode, local.stdout) == (remote.returncode, remote.stdout)


def test_a_home_without_a_store_says_so_and_stays_empty(tmp_path: Path) -> None:
    home = tmp_path / "new"
    for command in (["search", "x"], ["sessions"], ["show", "x"], ["status"]):
        done = subprocess.run(
            [sys.executable, "-m", "recall", *command],
            env=environment(home, {}), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 4
        assert "nothing has been ingested yet" in done.stderr
        assert "hint: `recall up`" in done.stderr
        assert not home.exists()


def test_a_server_that_is_not_there_is_one_hint(recall: Run) -> None:
    with TakenPort() as nobody:
        done = recall("search", "x", RECALL_URL=nobody.url)
    assert done.returncode == 69
    assert "no Recall server answers" in done.stderr
    assert done.stderr.count("hint:") == 1
