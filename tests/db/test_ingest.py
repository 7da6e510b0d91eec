"""One pass after another over files that grow, shrink, move and break."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zstandard

from recall.errors import UsageError
from recall.identity import Identity
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.ingesting import HOST, IDENTITY, contents, everything, ingest, rows

SESSION = "11111111-2222-4333-8444-555555555555"
KEY = f"claude-code:{HOST}:{SESSION}"


def line(text: str, number: int = 0, **extra: object) -> bytes:
    record = {
        "type": "user",
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2026-08-01T09:00:{number % 60:02d}.000Z",
        "cwd": "/home/dev/shop",
        "message": {"role": "user", "content": text},
        **extra,
    }
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The path of one session's log, in a folder of its own."""
    folder = tmp_path / "logs" / "projects" / "-home-dev-shop"
    folder.mkdir(parents=True)
    return folder / f"{SESSION}.jsonl"


@pytest.fixture
def root(log: Path) -> Path:
    return log.parents[2]


def rewrite(path: Path, data: bytes) -> None:
    """New content with a time that differs, as any later write has."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(data)
    os.utime(path, ns=(before + 2_000_000_000, before + 2_000_000_000))


def test_second_pass_opens_no_file_and_writes_nothing(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("one", 1) + line("two", 2))
    first = ingest(database, root)
    assert (first.lines_seen, first.stored, first.messages, first.sessions) == (2, 2, 2, 1)
    second = ingest(database, root)
    assert (second.files_seen, second.files_opened, second.bytes_read) == (1, 0, 0)
    assert (second.lines_seen, second.messages, second.sessions) == (0, 0, 0)


def test_only_new_bytes_are_read(database: str, root: Path, log: Path) -> None:
    log.write_bytes(b"".join(line("x" * 500, n) for n in range(200)))
    ingest(database, root)
    added = line("the new one", 999)
    with log.open("ab") as file:
        file.write(added)
    summary = ingest(database, root)
    assert summary.files_opened == 1
    assert summary.bytes_read == len(added)
    assert (summary.lines_seen, summary.stored) == (1, 1)


def test_torn_last_line_is_held_and_stored_once_it_is_whole(
    database: str, root: Path, log: Path
) -> None:
    whole = line("it was torn", 2)
    log.write_bytes(line("one", 1) + whole[:40])
    first = ingest(database, root)
    assert (first.lines_seen, first.quarantined) == (1, 0)
    with log.open("ab") as file:
        file.write(whole[40:])
    second = ingest(database, root)
    assert (second.lines_seen, second.stored) == (1, 1)
    assert contents(database) == ["it was torn", "one"]


def test_whole_record_without_newline_is_stored_and_not_doubled(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("one", 1) + line("two", 2).rstrip(b"\n"))
    assert ingest(database, root).stored == 2
    assert ingest(database, root).files_opened == 0
    with log.open("ab") as file:
        file.write(b"\n" + line("three", 3))
    summary = ingest(database, root)
    assert (summary.stored, summary.merged) == (1, 1)
    assert contents(database) == ["one", "three", "two"]


def test_truncated_file_is_read_again_from_zero_and_nothing_is_lost(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("one", 1) + line("two", 2) + line("three", 3))
    ingest(database, root)
    rewrite(log, line("one", 1))
    summary = ingest(database, root)
    assert (summary.lines_seen, summary.merged, summary.retired) == (1, 1, 2)
    assert contents(database) == ["one"]
    kept = rows(database, "select content from recall.message_retracted order by ordinal")
    assert kept == [("two",), ("three",)]
    assert rows(database, "select count(*) from recall.message_text where retracted") == [(2,)]
    assert rows(database, "select generation, rereading from recall.ingest_state") == [(2, False)]


def test_rewritten_message_keeps_its_old_text_out_of_the_way(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("the old words", 1) + line("two", 2))
    ingest(database, root)
    rewrite(log, line("the new words", 1) + line("two", 2))
    ingest(database, root)
    assert contents(database) == ["the new words", "two"]
    assert rows(database, "select content from recall.message_retracted") == [("the old words",)]
    index = rows(database, "select retracted, count(*) from recall.message_text group by 1")
    assert sorted(index) == [(False, 2), (True, 1)]


def test_same_size_rewrite_in_the_middle_is_seen(database: str, root: Path, log: Path) -> None:
    body = [line(f"message {n:04d} " + "x" * 300, n) for n in range(60)]
    log.write_bytes(b"".join(body))
    ingest(database, root)
    body[30] = body[30].replace(b"message 0030", b"MESSAGE 0030")
    rewrite(log, b"".join(body))
    ingest(database, root)
    changed = rows(database, "select content from recall.message where ordinal = 30")
    assert changed[0][0].startswith("MESSAGE 0030")


def test_touched_file_is_read_but_changes_nothing(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("one", 1) + line("two", 2))
    ingest(database, root)
    before = everything(database)
    rewrite(log, log.read_bytes())
    summary = ingest(database, root)
    assert (summary.merged, summary.stored, summary.retired) == (2, 0, 0)
    assert everything(database) == before


def test_new_hard_link_does_not_cause_a_full_read(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("one", 1) * 50)
    ingest(database, root)
    os.link(log, root / "elsewhere.backup")
    summary = ingest(database, root)
    assert (summary.files_opened, summary.bytes_read) == (1, 0)
    assert ingest(database, root).files_opened == 0


def test_copytruncate_and_regrown_past_the_old_size_is_seen(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("first life", 1))
    ingest(database, root)
    rewrite(log, line("second life", 5) + line("and more", 6) + line("and more yet", 7))
    ingest(database, root)
    assert contents(database) == ["and more", "and more yet", "second life"]
    assert rows(database, "select content from recall.message_retracted") == [("first life",)]


def test_gone_file_is_marked_and_its_rows_stay(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("the only copy", 1))
    ingest(database, root)
    log.unlink()
    ingest(database, root)
    assert contents(database) == ["the only copy"]
    state = rows(database, "select source_missing_at is not null from recall.ingest_state")
    assert state == [(True,)]
    log.write_bytes(line("the only copy", 1))
    ingest(database, root)
    state = rows(database, "select source_missing_at is not null from recall.ingest_state")
    assert state == [(False,)]


def test_root_that_cannot_be_looked_at_is_not_empty(
    database: str, root: Path, log: Path, tmp_path: Path
) -> None:
    log.write_bytes(line("still here", 1))
    ingest(database, root)
    root.rename(tmp_path / "unmounted")
    ingest(database, root)
    state = rows(database, "select source_missing_at is not null from recall.ingest_state")
    assert state == [(False,)]


def test_moved_file_goes_on_under_its_session(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("one", 1) + line("two", 2))
    ingest(database, root)
    other = log.parent.parent / "-home-dev-shop-renamed"
    other.mkdir()
    moved = log.rename(other / log.name)
    with moved.open("ab") as file:
        file.write(line("three", 3))
    summary = ingest(database, root)
    assert (summary.stored, summary.merged) == (1, 2)
    assert rows(database, "select count(*) from recall.session") == [(1,)]
    assert contents(database) == ["one", "three", "two"]


def test_two_live_files_of_one_id_never_write_over_each_other(
    database: str, root: Path, log: Path
) -> None:
    twin = log.parent.parent / "-home-dev-twin" / log.name
    twin.parent.mkdir()
    log.write_bytes(line("in the first", 1))
    twin.write_bytes(line("in the second", 2))
    ingest(database, root)
    assert contents(database) == ["in the first", "in the second"]
    keys = [row[0] for row in rows(database, "select session_key from recall.session order by 1")]
    assert keys[0] == KEY
    assert keys[1].startswith(f"{KEY}@")


def test_archived_and_compressed_log_goes_on_under_its_session(
    database: str, tmp_path: Path
) -> None:
    thread = "0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
    plain = tmp_path / "sessions" / f"rollout-2026-08-01T11-00-00-{thread}.jsonl"
    plain.parent.mkdir()
    message = {"type": "event_msg", "payload": {"type": "user_message", "message": "pack me"}}
    plain.write_bytes(json.dumps(message).encode() + b"\n")
    ingest(database, tmp_path, "codex")
    packed = tmp_path / "archived_sessions" / f"{plain.name}.zst"
    packed.parent.mkdir()
    packed.write_bytes(zstandard.compress(plain.read_bytes(), 3))
    plain.unlink()
    summary = ingest(database, tmp_path, "codex")
    assert (summary.stored, summary.merged, summary.retired) == (0, 1, 0)
    assert rows(database, "select external_id from recall.session") == [(thread,)]


def test_other_file_of_the_id_of_a_gone_one_does_not_write_over_it(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("the only copy", 1))
    ingest(database, root)
    log.unlink()
    other = log.parent.parent / "-home-dev-other" / log.name
    other.parent.mkdir()
    other.write_bytes(line("something else", 2))
    summary = ingest(database, root)
    assert (summary.stored, summary.retired) == (1, 0)
    assert contents(database) == ["something else", "the only copy"]


def test_a_bad_line_costs_one_line(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("before", 1) + b'{"type":"user","mess\n' + line("after", 3))
    summary = ingest(database, root)
    assert (summary.lines_seen, summary.stored, summary.quarantined) == (3, 2, 1)
    assert contents(database) == ["after", "before"]
    entry = rows(
        database, "select byte_offset, byte_length, ordinal, reason, raw from recall.quarantine"
    )
    start = len(line("before", 1))
    assert entry == [(start, 21, 1, "not JSON", b'{"type":"user","mess')]


def test_whole_record_behind_a_torn_one_is_salvaged(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("torn", 1)[:50] + line("behind it", 2) + line("after", 3))
    summary = ingest(database, root)
    assert (summary.lines_seen, summary.stored, summary.quarantined) == (2, 1, 1)
    assert summary.lines_seen == summary.stored + summary.quarantined
    assert contents(database) == ["after", "behind it"]
    assert rows(database, "select salvaged from recall.quarantine") == [(True,)]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (line("crlf", 1).replace(b"\n", b"\r\n"), ["crlf"]),
        (b"\xef\xbb\xbf" + line("bom", 1), ["bom"]),
        (b"\x00" * 4096 + line("nul run", 1), ["nul run"]),
        (line("a\x00b", 1), ["a\ufffdb"]),
        (line("half \ud83d here", 1), ["half \ufffd here"]),
        (line("whole \ud83d\ude00 here", 1), ["whole \U0001f600 here"]),
        (line("bad byte", 1).replace(b"bad byte", b"bad \xff byte"), ["bad \ufffd byte"]),
        (line("two\u2028lines\x85here", 1), ["two\u2028lines\x85here"]),
        (b"\n  \n" + line("blank lines", 1), ["blank lines"]),
        (b"null\n[]\n7\n{}\n" + line("no objects", 1), ["no objects"]),
    ],
)
def test_bytes_as_clients_really_write_them(
    database: str, root: Path, log: Path, data: bytes, texts: list[str]
) -> None:
    log.write_bytes(data)
    summary = ingest(database, root)
    assert contents(database) == texts
    assert summary.quarantined == 0
    assert summary.lines_seen == summary.stored + summary.merged + summary.skipped


@pytest.mark.parametrize(
    "bad",
    [
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"n":' + b"9" * 6_000 + b"}",
        b"\x80\x81\x82 binary",
        b'{"type":"user"',
    ],
)
def test_hostile_line_is_quarantined_and_its_neighbours_are_not(
    database: str, root: Path, log: Path, bad: bytes
) -> None:
    log.write_bytes(line("before", 1) + bad + b"\n" + line("after", 3))
    summary = ingest(database, root)
    assert (summary.stored, summary.quarantined) == (2, 1)
    assert contents(database) == ["after", "before"]


def test_line_over_the_limit_is_listed_with_length_and_hash(
    database: str, root: Path, log: Path
) -> None:
    long = line("y" * 300_000, 2)
    log.write_bytes(line("before", 1) + long + line("after", 3))
    summary = ingest(database, root, max_line_bytes=65_536)
    assert (summary.stored, summary.quarantined) == (2, 1)
    entry = rows(database, "select byte_length, reason, raw from recall.quarantine")
    assert entry == [(len(long), "longer than max_line_bytes", None)]


def test_prompt_history_is_kept_apart_and_survives_a_trim(
    database: str, root: Path, log: Path
) -> None:
    history = root / "history.jsonl"
    entries = [
        json.dumps({"display": f"prompt {n}", "timestamp": 1_785_574_800_000 + n}).encode() + b"\n"
        for n in range(4)
    ]
    history.write_bytes(b"".join(entries))
    summary = ingest(database, root)
    assert (summary.stored, summary.messages, summary.sessions) == (4, 4, 0)
    rewrite(history, b"".join(entries[2:]))
    assert ingest(database, root).merged == 2
    prompts = rows(database, "select content from recall.prompt order by ts")
    assert [row[0] for row in prompts] == ["prompt 0", "prompt 1", "prompt 2", "prompt 3"]
    assert rows(database, "select count(*) from recall.message") == [(0,)]


def test_secret_never_reaches_the_store(database: str, root: Path, log: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    log.write_bytes(line(f"use {secret} please", 1))
    ingest(database, root)
    (text,) = contents(database)
    assert secret not in text
    assert text.startswith("use [redacted:github-token:")
    assert rows(database, "select redactions from recall.message") == [(1,)]


def test_copies_in_a_resumed_session_get_one_copy_key(database: str, root: Path, log: Path) -> None:
    shared = line("asked once", 1) + line("answered once", 2)
    log.write_bytes(shared)
    resumed = log.with_name("99999999-2222-4333-8444-555555555555.jsonl")
    resumed.write_bytes(shared + line("went on", 3))
    ingest(database, root)
    groups = rows(database, "select count(*) from recall.message group by copy_key order by 1 desc")
    assert groups == [(2,), (2,), (1,)]
    lineage = rows(database, "select session_key, parent_key, relation from recall.session")
    child = f"claude-code:{HOST}:{resumed.stem}"
    assert sorted(lineage) == [(KEY, None, None), (child, KEY, "resume")]


def test_same_uuid_with_other_text_is_not_a_copy(database: str, root: Path, log: Path) -> None:
    log.write_bytes(line("one text", 1))
    log.with_name("99999999-2222-4333-8444-555555555555.jsonl").write_bytes(line("another", 1))
    ingest(database, root)
    keys = rows(database, "select distinct copy_key from recall.message")
    assert len(keys) == 2


def test_host_name_of_another_installation_is_refused(database: str) -> None:
    with closing(PostgresSink(database, IDENTITY)) as mine:
        mine.register()
        mine.register()
    other = Identity(HOST, "7e1b0f5e-0000-4000-8000-000000000001")
    with (
        closing(PostgresSink(database, other)) as theirs,
        pytest.raises(UsageError, match="belongs to another installation"),
    ):
        theirs.register()


def test_pass_that_dies_between_batches_goes_on_where_the_store_stands(
    new_database: Callable[..., str], template: str, root: Path, log: Path
) -> None:
    class Dying(PostgresSink):
        batches = 0

        def write(self, batch):  # type: ignore[no-untyped-def]
            Dying.batches += 1
            if Dying.batches == 2:
                raise KeyboardInterrupt
            return super().write(batch)

    database, reference = new_database(template), new_database(template)
    log.write_bytes(b"".join(line(f"message {n}", n) for n in range(5_000)))
    with pytest.raises(KeyboardInterrupt):
        ingest(database, root, sink=Dying)
    assert rows(database, "select lines, size from recall.ingest_state") == [(2_000, -1)]
    summary = ingest(database, root)
    assert (summary.lines_seen, summary.stored) == (3_000, 3_000)
    ingest(reference, root)
    assert everything(database) == everything(reference)
    counts = "select lines_seen, lines_stored from recall.ingest_state"
    assert rows(database, counts) == [(5_000, 5_000)]


def has_text_index(url: str) -> bool:
    return bool(rows(url, "select to_regclass('recall.message_text_tsv') is not null")[0][0])


def test_first_large_pass_builds_the_text_index_at_its_end(
    database: str, root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall_ingester.sinks.postgres._BULK_BYTES", 1)
    seen: list[bool] = []

    class Watching(PostgresSink):
        def write(self, batch):  # type: ignore[no-untyped-def]
            seen.append(has_text_index(database))
            return super().write(batch)

    log.write_bytes(line("one", 1))
    ingest(database, root, sink=Watching)
    assert has_text_index(database)
    with log.open("ab") as file:
        file.write(line("two", 2))
    ingest(database, root, sink=Watching)
    assert seen == [False, True]


def test_text_index_that_a_dead_pass_left_out_is_built_by_the_next(
    database: str, root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall_ingester.sinks.postgres._BULK_BYTES", 1)

    class Dying(PostgresSink):
        def finish(self, session_keys, *, wrote, replaced_raw=()):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    log.write_bytes(line("one", 1))
    with pytest.raises(KeyboardInterrupt):
        ingest(database, root, sink=Dying)
    assert not has_text_index(database)
    ingest(database, root)
    assert has_text_index(database)


def test_ordinary_pass_does_not_wait_for_a_vacuum_of_the_text_index(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line("one", 1))
    ingest(database, root)
    with connect(database, application="tests") as other:
        other.execute("lock table recall.message_text in share update exclusive mode")
        with connect(database, application="tests", autocommit=True) as admin:
            admin.execute(f"alter database {admin.info.dbname} set lock_timeout = '1s'")
        with log.open("ab") as file:
            file.write(line("two", 2))
        assert ingest(database, root).stored == 1


def test_same_prompts_in_two_files_that_are_read_at_once(database: str, tmp_path: Path) -> None:
    prompt = '{"display":"prompt %d","timestamp":%d,"project":"/p"}\n'
    text = "".join(prompt % (at, 1_770_000_000_000 + at) for at in range(500))
    for name in "abcdef":
        folder = tmp_path / name / ".claude"
        folder.mkdir(parents=True)
        (folder / "history.jsonl").write_text(text)
    ingest(database, tmp_path)
    assert rows(database, "select count(*) from recall.prompt") == [(500,)]
    indexed = "select count(*) from recall.message_text where kind = 'prompt'"
    assert rows(database, indexed) == [(500,)]
