"""`recall restore` and `recall verify` as a person or a script runs them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recall.identity import load_identity
from recall.lock import HomeLock
from recall_sql.connection import connect
from tests.db.ingesting import rows
from tests.db.raw_rows import Kept, add_blob, add_segments, digest_of, keep
from tests.db.serving import Store, serving

pytestmark = pytest.mark.timeout(600)

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]

HOST = "laptop"
MTIME_NS = 1_770_000_000_123_456_789
LINES = b"".join(b'{"n": %d, "text": "a line\xff of a log"}\n' % n for n in range(300))
TORN = b'{"n": 300, "te'
WHOLE = LINES + TORN


@pytest.fixture
def recall(home: Path, database: str) -> Run:
    """Runs the command on the database of this test, as the host that fed it."""
    load_identity(home, host=HOST)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}

    def run(*arguments: object, **more: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "recall", *map(str, arguments)],
            env=kept | {"RECALL_HOME": str(home), "RECALL_DATABASE_URL": database, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "projects"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def key(database: str) -> str:
    return Store(database).add_session("0b7f2c9e-5d1a")


@pytest.fixture
def log(database: str, logs: Path, key: str) -> Path:
    """A file that was read and is gone since, with an earlier generation."""
    path = logs / "a.jsonl"
    earlier = {1: LINES[:1234]}
    file = Kept(str(path), LINES, TORN, session_key=key, generation=2, earlier=earlier)
    keep(database, file)
    return path


def errors_of(done: Done) -> str:
    text = done.stderr.decode()
    assert "Traceback" not in text, text
    return " ".join(text.split())


def all_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def identity_of(path: Path) -> tuple[int, ...]:
    """What changes when something is put in the place of a file; not when it is read."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


@pytest.mark.parametrize("ref", ["0b7f2c", "0b7f2c9e-5d1a", "claude-code:laptop:0b7f2c9e-5d1a"])
def test_a_file_is_put_back_as_it_was(recall: Run, log: Path, ref: str) -> None:
    done = recall("restore", ref)
    assert done.returncode == 0, errors_of(done)
    assert log.read_bytes() == WHOLE
    status = log.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_mtime_ns == MTIME_NS
    assert list(log.parent.iterdir()) == [log]
    assert b"restored" in done.stdout


def test_missing_folders_are_made_for_their_owner_alone(recall: Run, log: Path) -> None:
    log.parent.rmdir()
    log.parent.parent.rmdir()
    assert recall("restore", "0b7f2c").returncode == 0
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(log.parent.parent.stat().st_mode) == 0o700


def test_equal_files_stay_untouched(recall: Run, log: Path) -> None:
    log.write_bytes(WHOLE)
    before = identity_of(log)
    done = recall("restore", "0b7f2c", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["files"][0]["state"] == "already there"
    assert identity_of(log) == before


@pytest.mark.parametrize("found", [WHOLE + b"more\n", LINES, WHOLE.replace(b"17", b"71"), b""])
def test_another_file_is_not_written_over_without_force(
    recall: Run, log: Path, found: bytes
) -> None:
    log.write_bytes(found)
    done = recall("restore", "0b7f2c")
    assert done.returncode == 73
    assert "--force" in errors_of(done)
    assert all_files(log.parent) == {"a.jsonl": found}
    assert recall("restore", "0b7f2c", "--force").returncode == 0
    assert all_files(log.parent) == {"a.jsonl": WHOLE}


def test_one_file_in_the_way_keeps_all_from_being_written(
    recall: Run, log: Path, database: str, key: str
) -> None:
    keep(database, Kept(str(log.parent / "z.jsonl"), b"z\n", session_key=key))
    (log.parent / "z.jsonl").write_bytes(b"other\n")
    done = recall("restore", "0b7f2c")
    assert done.returncode == 73
    assert all_files(log.parent) == {"z.jsonl": b"other\n"}
    done = recall("restore", "0b7f2c", "--dry-run")
    assert done.returncode == 0
    assert b"would restore" in done.stdout
    assert b"differs, needs --force" in done.stdout
    assert all_files(log.parent) == {"z.jsonl": b"other\n"}


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
def test_what_is_no_file_is_never_replaced(recall: Run, log: Path, kind: str) -> None:
    if kind == "folder":
        log.mkdir()
    elif kind == "fifo":
        os.mkfifo(log)
    else:
        log.symlink_to(log.parent / "nowhere")
    before = identity_of(log)
    done = recall("restore", "0b7f2c", *([] if kind == "dangling link" else ["--force"]))
    assert done.returncode == 73, errors_of(done)
    assert identity_of(log) == before
    assert list(log.parent.iterdir()) == [log]


def test_damage_in_one_file_changes_no_file(
    recall: Run, log: Path, database: str, key: str
) -> None:
    last = log.parent / "z.jsonl"
    keep(database, Kept(str(last), b"only here\n", session_key=key))
    with connect(database) as connection:
        connection.execute(
            "delete from recall.raw_blob where hash = %s", (digest_of(b"only here\n"),)
        )
    log.write_bytes(b"in the way\n")
    done = recall("restore", "0b7f2c", "--force")
    assert done.returncode == 65
    assert "z.jsonl" in errors_of(done)
    assert all_files(log.parent) == {"a.jsonl": b"in the way\n"}


def test_below_a_folder_names_begin_at_the_common_parent(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    store = Store(database)
    child = store.add_session("0b7f2c9e-5d1a/agent-1", parent_key=key, relation="subagent")
    grandchild = store.add_session("ffffffff-5d1a", parent_key=child, relation="fork")
    keep(database, Kept("/home/dev/logs/p/a.jsonl", b"a\n", session_key=key))
    keep(database, Kept("/home/dev/logs/p/a/agent-1.jsonl", b"b\n", session_key=child))
    keep(database, Kept("/home/dev/logs/q/c.jsonl", b"c\n", session_key=grandchild))
    alone, family = tmp_path / "alone", tmp_path / "new" / "family"
    assert recall("restore", key, "--to", alone).returncode == 0
    assert all_files(alone) == {"a.jsonl": b"a\n"}
    assert recall("restore", key, "--to", family, "--with-children").returncode == 0
    assert all_files(family) == {
        "p/a.jsonl": b"a\n", "p/a/agent-1.jsonl": b"b\n", "q/c.jsonl": b"c\n"
    }  # fmt: skip


def test_sessions_that_are_each_others_parent_end(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    other = Store(database).add_session("ffffffff-5d1a", parent_key=key)
    with connect(database) as connection:
        connection.execute(
            "update recall.session set parent_key = %s where session_key = %s", (other, key)
        )
    keep(database, Kept("/logs/a.jsonl", b"a\n", session_key=key))
    keep(database, Kept("/logs/b.jsonl", b"b\n", session_key=other))
    assert recall("restore", key, "--to", tmp_path / "x", "--with-children").returncode == 0
    assert all_files(tmp_path / "x") == {"a.jsonl": b"a\n", "b.jsonl": b"b\n"}


def test_no_stored_name_leads_out_of_the_folder(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    files = [
        Kept("/logs/../../../../up.jsonl", b"1\n", host="foreign", session_key=key),
        Kept("C:\\Users\\dev\\..\\log.jsonl", b"2\n", host="foreign", session_key=key),
        Kept("/db#../../up", b"3\n", container="/db", session_key=key),
        Kept("claude-ai#..", b"4\n", container="import", session_key=key),
        Kept("/other#a/b", b"5\n", container="/other", session_key=key),
        Kept("/third#a/b", b"6\n", container="/third", session_key=key),
    ]
    for file in files:
        keep(database, file)
    target = tmp_path / "deep" / "inside"
    done = recall("restore", key, "--to", target, "--json")
    assert done.returncode == 0, errors_of(done)
    paths = [Path(file["path"]) for file in json.loads(done.stdout)["files"]]
    assert all(path.is_relative_to(target) and ".." not in path.parts for path in paths)
    found = all_files(tmp_path / "deep")
    assert sorted(found.values()) == [b"%d\n" % n for n in range(1, 7)]
    assert all(name.startswith("inside/") for name in found)


def test_a_session_of_a_container_needs_a_folder(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    container = str(tmp_path / "client.db")
    keep(database, Kept(f"{container}#ses_1", LINES, container=container, session_key=key))
    done = recall("restore", key)
    assert done.returncode == 2
    assert "--to" in errors_of(done)
    assert recall("restore", key, "--to", tmp_path / "x").returncode == 0
    assert all_files(tmp_path / "x") == {"ses_1.jsonl": LINES}
    assert not Path(container).exists()


@pytest.fixture
def prompts(database: str, logs: Path) -> Path:
    """A file without a session, beside another one of its name."""
    path = logs.parent / "history.jsonl"
    keep(database, Kept(str(path), LINES))
    keep(database, Kept(str(logs.parent / "other" / "history.jsonl"), b"other\n"))
    return path


def test_a_file_without_a_session_is_named_by_its_path(recall: Run, prompts: Path) -> None:
    for ref in (str(prompts), "logs/history.jsonl", "./logs//history.jsonl"):
        done = recall("restore", ref, "--json")
        assert done.returncode == 0, errors_of(done)
        answer = json.loads(done.stdout)
        assert answer["session_key"] is None
        assert [file["path"] for file in answer["files"]] == [str(prompts)]
        assert all_files(prompts.parent) == {"history.jsonl": LINES}
        prompts.unlink()


def test_the_end_of_a_path_has_to_be_unique(recall: Run, prompts: Path) -> None:
    done = recall("restore", "history.jsonl")
    assert done.returncode == 2
    assert "fits 2 files" in errors_of(done)
    assert str(prompts) in errors_of(done)
    assert "--host" not in errors_of(done)
    for ref in ("story.jsonl", f"{prompts}.bak", str(prompts.parent), "/history.jsonl"):
        assert recall("restore", ref).returncode == 4
    assert all_files(prompts.parent) == {}


def test_a_whole_path_goes_before_the_end_of_another(
    recall: Run, database: str, tmp_path: Path
) -> None:
    keep(database, Kept("/a/history.jsonl", b"short\n"))
    keep(database, Kept("/b/a/history.jsonl", b"long\n"))
    assert recall("restore", "/a/history.jsonl", "--stdout").stdout == b"short\n"
    assert recall("restore", "b/a/history.jsonl", "--stdout").stdout == b"long\n"


def test_a_path_means_the_file_of_this_machine_first(
    recall: Run, database: str, prompts: Path, tmp_path: Path
) -> None:
    for host in ("desktop", "server"):
        keep(database, Kept(str(prompts), host.encode(), host=host))
        keep(database, Kept("/only/there.jsonl", host.encode(), host=host))
    assert recall("restore", prompts, "--stdout").stdout == LINES
    assert recall("restore", prompts, "--stdout", "--host", "server").stdout == b"server"
    done = recall("restore", "/only/there.jsonl", "--to", tmp_path / "x")
    assert done.returncode == 2
    assert "--host" in errors_of(done)
    done = recall("restore", "/only/there.jsonl", "--to", tmp_path / "x", "--host", "desktop")
    assert done.returncode == 0
    assert all_files(tmp_path / "x") == {"there.jsonl": b"desktop"}


def test_children_go_with_a_session_and_not_with_a_file(recall: Run, prompts: Path) -> None:
    done = recall("restore", prompts, "--with-children")
    assert done.returncode == 2
    assert not prompts.exists()


@pytest.fixture
def databases(database: str, key: str, logs: Path) -> Path:
    """A database whose sessions are kept one by one, and one of which a table is kept."""
    path = logs / "client.db"
    for number in (1, 2):
        keep(database, Kept(f"{path}#ses_{number}", b"%d\n" % number, container=str(path)))
    keep(database, Kept(str(path), b"", keep=False, size=4096, shape="container"))
    keep(database, Kept(str(logs / "ledger.db"), LINES, size=8192, shape="table"))
    path.write_bytes(b"SQLite")
    (logs / "ledger.db").write_bytes(b"SQLite")
    return logs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("client.db", {"ses_1.jsonl": b"1\n", "ses_2.jsonl": b"2\n"}),
        ("client.db#ses_2", {"ses_2.jsonl": b"2\n"}),
        ("ledger.db", {"ledger.jsonl": LINES}),
    ],
)
def test_a_database_comes_back_as_rows_and_is_never_written_to(
    recall: Run, databases: Path, tmp_path: Path, name: str, expected: dict[str, bytes]
) -> None:
    for ref in (name, databases / name):
        done = recall("restore", ref, "--force")
        assert done.returncode == 2
        assert "never written to" in errors_of(done)
        to = tmp_path / Path(ref).parent.name / "x"
        done = recall("restore", ref, "--to", to)
        assert done.returncode == 0, errors_of(done)
        assert all_files(to) == expected
    assert {path.read_bytes() for path in databases.iterdir()} == {b"SQLite"}


def test_verify_checks_the_rows_of_databases_and_not_their_files(
    recall: Run, databases: Path
) -> None:
    done = recall("verify", "--json")
    assert done.returncode == 0
    assert verdicts(done) == {
        str(databases / name): "ok" for name in ("client.db#ses_1", "client.db#ses_2", "ledger.db")
    }


def test_a_file_of_another_host_needs_a_folder(
    recall: Run, database: str, tmp_path: Path, logs: Path
) -> None:
    key = Store(database).add_session("0b7f2c9e-5d1a", host="desktop")
    keep(database, Kept(str(logs / "a.jsonl"), LINES, host="desktop", session_key=key))
    done = recall("restore", key)
    assert done.returncode == 2
    assert "host `desktop`" in errors_of(done)
    assert all_files(logs) == {}
    assert recall("restore", key, "--to", tmp_path / "x").returncode == 0
    assert all_files(tmp_path / "x") == {"a.jsonl": LINES}


def test_the_bytes_go_to_a_program_only_when_all_are_checked(
    recall: Run, log: Path, database: str
) -> None:
    done = recall("restore", "0b7f2c", "--stdout")
    assert (done.returncode, done.stdout) == (0, WHOLE)
    assert recall("restore", "0b7f2c", "--stdout", "--generation", 1).stdout == LINES[:1234]
    with connect(database) as connection:
        connection.execute("delete from recall.raw_segment where generation = 2 and unfinished")
    done = recall("restore", "0b7f2c", "--stdout")
    assert (done.returncode, done.stdout) == (65, b"")
    assert all_files(log.parent) == {}


def test_earlier_generations_are_listed_and_restored(
    recall: Run, log: Path, tmp_path: Path
) -> None:
    done = recall("restore", "0b7f2c", "--generation", 7)
    assert done.returncode == 4
    assert "1 (1.2 kB" in errors_of(done)
    assert "2 (" in errors_of(done)
    listed = json.loads(recall("restore", "0b7f2c", "--dry-run", "--json").stdout)["files"][0]
    assert (listed["generations"], listed["bytes"]) == ([1, 2], len(WHOLE))
    assert recall("restore", "0b7f2c", "--generation", 1, "--to", tmp_path / "x").returncode == 0
    assert all_files(tmp_path / "x") == {"a.jsonl": LINES[:1234]}
    # The time belongs to the newest generation: nothing may take this file for that one.
    assert (tmp_path / "x" / "a.jsonl").stat().st_mtime_ns != MTIME_NS


def test_what_is_not_kept_says_why(recall: Run, database: str, key: str, tmp_path: Path) -> None:
    assert "no file of" in errors_of(recall("restore", key))
    keep(database, Kept("/logs/a.jsonl", LINES, session_key=key, keep=False))
    done = recall("restore", key, "--to", tmp_path / "x")
    assert done.returncode == 4
    assert "`/logs/a.jsonl` are not kept" in errors_of(done)
    assert "keep_raw" in errors_of(done)
    assert not (tmp_path / "x").exists()
    assert recall("restore", key, "--to", tmp_path / "x", "--partial").returncode == 4


def test_a_beginning_is_restored_only_on_demand(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    keep(database, Kept("/logs/a.jsonl", LINES, session_key=key, size=len(LINES) + 99))
    done = recall("restore", key, "--to", tmp_path / "x")
    assert done.returncode == 4
    assert "--partial" in errors_of(done)
    assert recall("restore", key, "--to", tmp_path / "x", "--partial").returncode == 0
    assert all_files(tmp_path / "x") == {"a.jsonl": LINES}


def test_a_name_that_is_not_utf8_is_found_again(
    recall: Run, database: str, key: str, logs: Path
) -> None:
    folder = logs / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    keep(database, Kept(f"{logs}/caf%E9/a%20b.jsonl", LINES, session_key=key))
    assert recall("restore", key).returncode == 0
    assert (folder / "a%20b.jsonl").read_bytes() == LINES
    assert verdicts(recall("verify", "--json")) == {f"{logs}/caf%E9/a%20b.jsonl": "ok"}


def test_a_stored_name_cannot_steer_the_terminal(
    recall: Run, database: str, key: str, tmp_path: Path
) -> None:
    name = "/logs/\x1b]0;owned\x07a\n.jsonl"
    keep(database, Kept(name, LINES, host="desktop", session_key=key))
    for arguments in (
        ["restore", key],
        ["restore", key, "--to", tmp_path / "x"],
        ["restore", key, "--generation", 3],
        ["verify"],
    ):
        done = recall(*arguments)
        assert b"\x1b" not in done.stdout + done.stderr
    with connect(database) as connection:
        connection.execute("delete from recall.raw_blob")
    for arguments in (["verify"], ["restore", key, "--to", tmp_path / "y"]):
        done = recall(*arguments)
        assert done.returncode in {1, 65}
        assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["restore", "unknown-session"], 4),
        (["restore", "0b7f2c", "--stdout", "--to", "x"], 2),
        (["restore", "0b7f2c", "--stdout", "--json"], 2),
        (["verify", "--source", "codexx"], 4),
        (["verify", "--session", "unknown-session"], 4),
    ],
)
def test_a_mistake_is_one_line(recall: Run, log: Path, arguments: list[str], code: int) -> None:
    done = recall(*arguments)
    assert done.returncode == code
    assert done.stdout == b""
    assert errors_of(done).count("error:") == 1


def test_original_bytes_are_not_asked_of_a_server(recall: Run, log: Path, database: str) -> None:
    with serving(database) as api:
        for arguments in (["restore", "0b7f2c"], ["verify"]):
            done = recall(*arguments, RECALL_URL=str(api.base_url))
            assert done.returncode == 2
            assert "run this command on the server" in errors_of(done)
    assert not log.exists()


def test_a_home_without_a_store_stays_empty(tmp_path: Path, recall: Run) -> None:
    home = tmp_path / "new"
    for arguments in (["restore", "0b7f2c"], ["verify"]):
        done = recall(*arguments, RECALL_HOME=str(home), RECALL_DATABASE_URL="")
        assert done.returncode == 4
        assert "nothing has been ingested yet" in errors_of(done)
        assert not home.exists()


def verdicts(done: Done) -> dict[str, str]:
    errors_of(done)
    return {file["path"]: file["result"] for file in json.loads(done.stdout)["files"]}


def test_verify_tells_what_became_of_each_file(recall: Run, database: str, logs: Path) -> None:
    on_disk = {
        "ok": WHOLE,
        "grew": WHOLE + b"more\n",
        "edited": WHOLE.replace(b'"n": 142', b'"n": 241'),
        "shorter": LINES[:700],
        "gone": None,
        "not-kept": LINES,
    }
    for name, found in on_disk.items():
        path = logs / name
        keep(database, Kept(str(path), LINES, TORN, keep=name != "not-kept"))
        if found is not None:
            path.write_bytes(found)
            os.utime(path, ns=(MTIME_NS, MTIME_NS))
    keep(database, Kept("/elsewhere/a", LINES, host="desktop"))
    keep(database, Kept("/nowhere.db#1", LINES, container="/nowhere.db"))
    done = recall("verify", "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    results = {Path(file["path"]).name: file for file in answer["files"]}
    assert {name: file["result"] for name, file in results.items()} == {
        "ok": "ok", "grew": "grew", "edited": "differs", "shorter": "differs", "gone": "gone",
        "not-kept": "not kept", "a": "ok", "nowhere.db#1": "ok",
    }  # fmt: skip
    assert results["edited"]["differs_at"] == WHOLE.index(b'"n": 142') + 5
    assert results["edited"]["written_since"] is False
    assert results["shorter"]["differs_at"] == 700
    assert results["shorter"]["written_since"] is True
    assert answer["counts"]["ok"] == 3
    assert answer["bytes_read"] == 5 * len(WHOLE) + 2 * len(LINES)

    shown = recall("verify")
    assert shown.returncode == 1
    assert f"differs laptop {logs}/edited from byte" in " ".join(shown.stdout.decode().split())
    assert "--reread" in errors_of(shown)


def test_verify_without_anything_wrong_is_exit_0(recall: Run, database: str, log: Path) -> None:
    for found, verdict in ((None, "gone"), (WHOLE, "ok"), (WHOLE + b"x", "grew")):
        if found is not None:
            log.write_bytes(found)
        done = recall("verify", "--json")
        assert (done.returncode, verdicts(done)) == (0, {str(log): verdict})
    assert recall("verify").returncode == 0


@pytest.mark.parametrize("generation", [1, 2])
def test_damage_in_any_generation_is_found(
    recall: Run, database: str, log: Path, generation: int
) -> None:
    log.write_bytes(WHOLE)
    last = LINES[1000:1234] if generation == 1 else TORN
    with connect(database) as connection:
        changed = connection.execute(
            "update recall.raw_blob set data = set_byte(data, 9, get_byte(data, 9) # 1)"
            " where hash = %s",
            (digest_of(last),),
        )
        assert changed.rowcount == 1
    done = recall("verify", "--json")
    assert (done.returncode, verdicts(done)) == (1, {str(log): "damaged"})
    assert f"generation {generation} of" in json.loads(done.stdout)["files"][0]["detail"]


def damage(database: str, data: bytes) -> None:
    with connect(database) as connection:
        changed = connection.execute(
            "update recall.raw_blob set data = set_byte(data, 9, get_byte(data, 9) # 1)"
            " where hash = %s",
            (digest_of(data),),
        )
    assert changed.rowcount == 1


def drop(database: str, data: bytes) -> None:
    with connect(database) as connection:
        changed = connection.execute(
            "delete from recall.raw_blob where hash = %s", (digest_of(data),)
        )
    assert changed.rowcount == 1


@pytest.mark.parametrize("harm", [damage, drop])
def test_damaged_bytes_are_taken_again_from_the_file(
    recall: Run, database: str, log: Path, harm: Callable[[str, bytes], None]
) -> None:
    log.write_bytes(WHOLE)
    # Both generations hold the first piece; only the newest one the others.
    for piece in (LINES[:1000], LINES[2000:3000], TORN):
        harm(database, piece)
    done = recall("verify")
    assert done.returncode == 1
    assert "--repair" in errors_of(done)
    assert recall("restore", "0b7f2c", "--force").returncode == 65

    done = recall("verify", "--repair", "--json")
    assert (done.returncode, verdicts(done)) == (0, {str(log): "ok"})
    answer = json.loads(done.stdout)
    assert (answer["repaired"], answer["not_repaired"]) == (3, 0)
    assert recall("verify").returncode == 0
    log.unlink()
    assert recall("restore", "0b7f2c").returncode == 0
    assert log.read_bytes() == WHOLE


def test_only_bytes_with_the_same_hash_repair_anything(
    recall: Run, database: str, log: Path
) -> None:
    log.write_bytes(b"X" + WHOLE[1:])
    for piece in (LINES[:1000], LINES[1000:2000]):
        damage(database, piece)
    state = "select data from recall.raw_blob where hash = %s"
    before = rows(database, state, digest_of(LINES[:1000]))
    done = recall("verify", "--repair", "--json")
    assert (done.returncode, verdicts(done)) == (1, {str(log): "damaged"})
    answer = json.loads(done.stdout)
    assert (answer["repaired"], answer["not_repaired"]) == (1, 1)
    assert rows(database, state, digest_of(LINES[:1000])) == before
    shown = errors_of(recall("verify", "--repair"))
    assert "0 damaged pieces were written again" in shown
    assert "1 are in no file of this machine" in shown


def test_a_piece_is_repaired_from_any_file_that_has_it(
    recall: Run, database: str, logs: Path
) -> None:
    keep(database, Kept("/elsewhere/a.jsonl", LINES, host="desktop"))
    for name in ("fifo", "gone", "copy"):
        keep(database, Kept(str(logs / name), LINES))
    os.mkfifo(logs / "fifo")
    (logs / "copy").write_bytes(LINES)
    damage(database, LINES[1000:2000])
    done = recall("verify", "--repair", "--json")
    assert json.loads(done.stdout)["repaired"] == 1
    assert verdicts(done) == {
        "/elsewhere/a.jsonl": "ok", str(logs / "copy"): "ok", str(logs / "gone"): "gone",
        str(logs / "fifo"): "unreadable",
    }  # fmt: skip


def test_without_damage_nothing_is_repaired(recall: Run, database: str, log: Path) -> None:
    log.write_bytes(WHOLE)
    state = "select xmin::text, hash from recall.raw_blob order by hash"
    before = rows(database, state)
    done = recall("verify", "--repair", "--json")
    assert (done.returncode, json.loads(done.stdout)["repaired"]) == (0, 0)
    assert rows(database, state) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_without_permission_is_not_called_gone(recall: Run, log: Path) -> None:
    log.write_bytes(WHOLE)
    log.chmod(0)
    done = recall("verify", "--json")
    assert (done.returncode, verdicts(done)) == (1, {str(log): "unreadable"})


def test_a_fifo_in_the_place_of_a_file_is_not_read(recall: Run, log: Path) -> None:
    os.mkfifo(log)
    done = recall("verify", "--json")
    assert (done.returncode, verdicts(done)) == (1, {str(log): "unreadable"})


def test_verify_can_be_narrowed(recall: Run, database: str, log: Path, key: str) -> None:
    keep(database, Kept("/logs/codex.jsonl", LINES, source="codex"))
    session = verdicts(recall("verify", "--session", "0b7f2c", "--json"))
    assert session == {str(log): "gone"}
    assert verdicts(recall("verify", "--source", "codex", "--json")) == {
        "/logs/codex.jsonl": "gone"
    }


def test_differing_files_are_marked_for_the_next_ingest(
    recall: Run, database: str, logs: Path, home: Path
) -> None:
    state = "select path, size, head_hash from recall.ingest_state order by path"
    for name, found in (("ok", LINES), ("differs", b"X" + LINES[1:])):
        keep(database, Kept(str(logs / name), LINES))
        (logs / name).write_bytes(found)
    keep(database, Kept(str(logs / "differs"), LINES, host="desktop"))
    before = rows(database, state)
    assert recall("verify").returncode == 1
    assert rows(database, state) == before

    with HomeLock(home / "run" / "ingest.lock", what="ingest"):
        busy = recall("verify", "--reread", "--json")
    assert busy.returncode == 75
    assert verdicts(busy)[str(logs / "ok")] == "ok"
    assert rows(database, state) == before

    done = recall("verify", "--reread", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["marked"] == 1
    marked = "select host, path from recall.ingest_state where size = -1 and head_hash = ''"
    assert rows(database, marked) == [(HOST, str(logs / "differs"))]


def test_blobs_that_nothing_points_to_go_only_on_demand(
    recall: Run, database: str, log: Path
) -> None:
    count = "select count(*) from recall.raw_blob"
    (used,) = rows(database, count)[0]
    with connect(database) as connection:
        add_blob(connection, b"left over" * 1000)
    done = recall("verify")
    assert done.returncode == 0
    assert "1 stored pieces" in errors_of(done)
    assert rows(database, count) == [(used + 1,)]
    assert json.loads(recall("verify", "--prune", "--json").stdout)["unused"]["dropped"] == 1
    assert rows(database, count) == [(used,)]
    assert recall("restore", "0b7f2c").returncode == 0


def test_segments_without_a_checkpoint_are_checked_too(recall: Run, database: str) -> None:
    file = Kept("/logs/orphan.jsonl", b"")
    with connect(database) as connection:
        add_segments(connection, file, 1, LINES, cut=1000)
    done = recall("verify", "--json")
    assert (done.returncode, verdicts(done)) == (0, {"/logs/orphan.jsonl": "ok"})
    with connect(database) as connection:
        connection.execute("delete from recall.raw_segment where byte_offset = 3000")
    assert verdicts(recall("verify", "--json")) == {"/logs/orphan.jsonl": "damaged"}


def test_an_empty_store_is_no_problem(recall: Run) -> None:
    done = recall("verify")
    assert done.returncode == 0
    assert "0 files" in errors_of(done)
