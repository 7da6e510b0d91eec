"""The sample logs of both clients, whole: what goes in, what does not and why, and that it goes in
once.

The numbers are pinned. A change in one of them is a change in what users find, and belongs in the
message of the commit that makes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.db.ingesting import everything, ingest, rows

pytestmark = pytest.mark.corpus

NewDatabase = Callable[..., str]


def reasons(url: str) -> dict[str, int]:
    """Skipped lines by reason."""
    found = rows(
        url,
        "select key, sum(value::bigint)::bigint"
        " from recall.ingest_state, jsonb_each_text(skip_reasons) group by key",
    )
    return dict(found)


def replay(database: str, folder: Path, steps: list[Path], name: str, source: str) -> None:
    """Put one state of a file after the other in one place, with a pass after each."""
    target = folder / name
    for number, step in enumerate(steps):
        shutil.copyfile(step, target)
        os.utime(target, ns=(10**18 + number * 10**9, 10**18 + number * 10**9))
        ingest(database, folder, source)


CLAUDE_STEPS = [
    ["real-entire/10-growth-79e9becd/step1.jsonl", "real-entire/10-growth-79e9becd/step2.jsonl",
     "real-entire/10-growth-79e9becd/step3.jsonl"],
    ["synthetic/07-partial-tail/step1.jsonl", "synthetic/07-partial-tail/step2.jsonl",
     "synthetic/07-partial-tail/step3-no-final-newline.jsonl"],
    ["synthetic/16-rewrite-truncate/before.jsonl",
     "synthetic/16-rewrite-truncate/after-shorter.jsonl"],
    ["synthetic/16-rewrite-truncate/before.jsonl",
     "synthetic/16-rewrite-truncate/after-same-size-different.jsonl"],
]  # fmt: skip
CODEX_STEPS = [
    ["synthetic/migrate/before-legacy.jsonl", "synthetic/migrate/after-paginated.jsonl"],
    ["synthetic/partial-tail.jsonl", "synthetic/migrate/before-legacy.jsonl"],
    ["synthetic/truncated-duplicate-line.jsonl", "synthetic/migrate/before-legacy.jsonl"],
]


@pytest.mark.parametrize(
    ("client", "source", "steps"),
    [("claude", "claude-code", steps) for steps in CLAUDE_STEPS]
    + [("codex", "codex", steps) for steps in CODEX_STEPS],
    ids=lambda value: value[-1] if isinstance(value, list) else value,
)
def test_steps_one_after_the_other_give_the_rows_of_the_last(
    new_database: NewDatabase,
    template: str,
    corpus: Path,
    tmp_path: Path,
    client: str,
    source: str,
    steps: list[str],
) -> None:
    name = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    files = [corpus / client / step for step in steps]
    stepwise, at_once = new_database(template), new_database(template)
    folder = tmp_path / "log"
    folder.mkdir()
    replay(stepwise, folder, files, name, source)
    replay(at_once, folder, files[-1:], name, source)
    one, other = everything(stepwise), everything(at_once)
    # A session remembers the earliest start and the best title that it ever had.
    assert one["messages"] == other["messages"]
    assert one["index"] == other["index"]
    assert [row[0] for row in one["sessions"]] == [row[0] for row in other["sessions"]]


@pytest.mark.parametrize("step", range(1, 40, 3))
def test_any_split_of_a_growing_file_gives_the_same_rows(
    new_database: NewDatabase, template: str, corpus: Path, tmp_path: Path, step: int
) -> None:
    data = (corpus / "claude/synthetic/01-normal-all-record-types.jsonl").read_bytes()
    folder = tmp_path / "log"
    folder.mkdir()
    target = folder / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    split, whole = new_database(template), new_database(template)
    for end in (len(data) * step // 40, len(data)):
        target.write_bytes(data[:end])
        ingest(split, folder)
    ingest(whole, folder)
    assert everything(split) == everything(whole)


def test_codex_tail_gives_the_same_rows_as_the_whole(
    new_database: NewDatabase, template: str, corpus: Path, tmp_path: Path
) -> None:
    parts = corpus / "codex/ctx/codex_tail_nativepath"
    initial, tail = ((parts / f"{name}.jsonl").read_bytes() for name in ("initial", "append"))
    target = tmp_path / "rollout-2026-07-17T12-00-00-tail.jsonl"
    grown, whole = new_database(template), new_database(template)
    for data in (initial, initial + tail):
        target.write_bytes(data)
        ingest(grown, tmp_path, "codex")
    ingest(whole, tmp_path, "codex")
    assert everything(grown) == everything(whole)


def test_old_style_resume_is_three_sessions_and_each_message_once(
    database: str, corpus: Path
) -> None:
    ingest(database, corpus / "claude/synthetic/08-resume-old-copy")
    sessions = rows(
        database, "select external_id, parent_key, relation from recall.session order by 1"
    )
    original = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"
    parent = f"claude-code:testhost:{original}"
    assert sessions == [
        (original, None, None),
        ("77777777-8a4b-4c3d-9e2f-0a1b2c3d4e5f", parent, "resume"),
        ("99999999-8a4b-4c3d-9e2f-0a1b2c3d4e5f", parent, "fork"),
    ]
    total, distinct = rows(
        database, "select count(*), count(distinct copy_key) from recall.message"
    )[0]
    assert (total, distinct) == (21, 9)


def test_claude_corpus(database: str, corpus: Path) -> None:
    summary = ingest(database, corpus / "claude")
    # 75 transcripts, 2 sidecars, 1 spilled output, 1 prompt history; .json, .backup, sessions-index
    # and memory/ are none of these.
    assert summary.files_seen == summary.files_opened == 79
    assert summary.unreadable == {}
    assert summary.lines_seen == 2831
    assert (summary.stored, summary.merged) == (2101, 5)
    # 84 lines of four pretty-printed files that are no JSON lines, and one damaged line each in
    # truncated, 07-spliced-line, 11-splice (both salvaged) and 17-deep-nesting; and two lines that
    # are JSON texts and no records.
    assert summary.quarantined == 90
    assert rows(database, "select count(*) from recall.quarantine where salvaged") == [(2,)]
    assert summary.skipped == 635
    assert (summary.messages, summary.sessions) == (2195, 69)
    # Four unfinished last lines are progress notes: the pass saw them, and they enter the file's
    # account once they end.
    assert summary.skipped == sum(reasons(database).values()) + 4
    assert reasons(database)["progress"] == 362
    assert reasons(database)["file-history-snapshot"] == 123
    again = ingest(database, corpus / "claude")
    assert (again.files_opened, again.lines_seen, again.messages) == (0, 0, 0)


def test_codex_corpus(database: str, corpus: Path) -> None:
    summary = ingest(database, corpus / "codex", "codex")
    assert summary.unreadable == {}
    # 46 rollouts in all eras, one of them compressed, a title index and two prompt histories.
    assert summary.files_seen == summary.files_opened == 49
    assert summary.lines_seen == 1735
    # Merged are lines that only tell something about their session: its header, its turns' model.
    # Four such lines are the first of their file with certain instructions, which are stored.
    assert (summary.stored, summary.merged) == (1033, 151)
    # One torn line each in codex-malformed-session and truncated-duplicate-line.
    assert summary.quarantined == 2
    assert summary.skipped == sum(reasons(database).values()) == 549
    # The same text told by two families of records, and usage counters.
    assert reasons(database)["duplicate family"] == 179
    assert reasons(database)["token_count"] == 257
    assert (summary.messages, summary.sessions) == (1088, 44)
    again = ingest(database, corpus / "codex", "codex")
    assert (again.files_opened, again.lines_seen, again.messages) == (0, 0, 0)


def test_codex_fork_and_subagent_name_their_parent(database: str, corpus: Path) -> None:
    ingest(database, corpus / "codex/synthetic/.codex", "codex")
    root = "codex:testhost:0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
    children = rows(
        database,
        "select external_id, relation from recall.session where parent_key = %s order by 1",
        root,
    )
    assert children == [
        ("0198a1b2-eeee-7e5f-8a9b-0c1d2e3f4a5b", "subagent"),
        ("0198a1b2-ffff-7e5f-8a9b-0c1d2e3f4a5b", "fork"),
    ]
    replayed = rows(
        database,
        "select count(*) from recall.message f join recall.message p using (copy_key)"
        " where f.session_key like '%%ffff%%' and p.session_key = %s",
        root,
    )
    # Two turns of question, reasoning, call, result and answer.
    assert replayed[0][0] == 10
    title = rows(database, "select title from recall.session where session_key = %s", root)
    assert title == [("Orders qty bug",)]
