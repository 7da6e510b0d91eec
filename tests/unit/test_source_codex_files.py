"""Codex: which files are found, and that a parser can stop and go on anywhere."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recall.jsontext import MalformedLine, loads
from recall.records import Parsed, SessionDraft
from recall_ingester.sources.base import Parser, SourceFile
from recall_ingester.sources.codex import Codex
from recall_ingester.sources.codex_parser import RolloutParser

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "codex"
THREAD = "019d0000-0000-7000-8000-000000000001"
NAME = f"rollout-2026-03-02T11-00-00-{THREAD}"
Outcome = tuple[list[Parsed], SessionDraft | None, list[SessionDraft]]


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}\n")


def found(root: Path) -> dict[str, SourceFile]:
    return {file.path.relative_to(root).as_posix(): file for file in Codex().discover(root)}


def test_home_is_the_variable_or_the_usual_folder(tmp_path: Path) -> None:
    assert Codex().roots({}, tmp_path) == [tmp_path / ".codex"]
    assert Codex().roots({"CODEX_HOME": "/data/codex"}, tmp_path) == [Path("/data/codex")]


def test_home_gives_rollouts_prompts_and_titles(tmp_path: Path) -> None:
    touch(
        tmp_path,
        f"sessions/2026/03/02/{NAME}.jsonl",
        f"archived_sessions/{NAME}.jsonl.zst",
        "sessions/rollout-2025-04-20-x.json",
        "history.jsonl",
        "session_index.jsonl",
    )
    files = found(tmp_path)
    seen = {name: (f.label, f.shape, f.natural_id, f.compressed) for name, f in files.items()}
    assert seen == {
        f"archived_sessions/{NAME}.jsonl.zst": ("rollout", "lines", THREAD, True),
        "history.jsonl": ("prompts", "lines", None, False),
        "session_index.jsonl": ("titles", "lines", None, False),
        f"sessions/2026/03/02/{NAME}.jsonl": ("rollout", "lines", THREAD, False),
        "sessions/rollout-2025-04-20-x.json": ("rollout", "whole", None, False),
    }
    assert {name for name, file in files.items() if not file.owns_session} == {
        "history.jsonl",
        "session_index.jsonl",
    }
    archived = files[f"archived_sessions/{NAME}.jsonl.zst"]
    assert archived.relative == f"archived_sessions/{NAME}"


def test_what_is_no_rollout_is_left_alone(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "auth.json",
        "config.toml",
        "state_5.sqlite",
        "log/codex-tui.log",
        "log/session-1.jsonl",
        "worktrees/ab12/repo/data.jsonl",
        f"sessions/.{NAME}.paginated.tmp",
        f"sessions/{NAME}.jsonl.tmp",
        f"sessions/{NAME}.jsonl.legacy-before-pagination",
        f"sessions/{NAME}.legacy-before-pagination.jsonl",
        "sessions/rollout-compress-1.tmp",
        "sessions/notes.json",
    )
    assert found(tmp_path) == {}


def test_plain_file_wins_over_its_compressed_copy(tmp_path: Path) -> None:
    touch(tmp_path, f"sessions/{NAME}.jsonl", f"sessions/{NAME}.jsonl.zst")
    assert list(found(tmp_path)) == [f"sessions/{NAME}.jsonl"]


def test_revert_fork_keeps_the_id_of_its_rollout(tmp_path: Path) -> None:
    touch(tmp_path, f"sessions/{NAME}_019d0000-0000-7000-8000-00000000000f.jsonl")
    (file,) = found(tmp_path).values()
    assert file.natural_id == f"{THREAD}_019d0000-0000-7000-8000-00000000000f"


def test_any_folder_can_be_given(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "log/a.jsonl",
        "old/laptop/.codex/history.jsonl",
        f"old/laptop/.codex/sessions/{NAME}.jsonl",
        "old/history.jsonl",
        "old/.hidden/b.jsonl",
    )
    files = found(tmp_path)
    assert {name: file.label for name, file in files.items()} == {
        "log/a.jsonl": "rollout",
        "old/history.jsonl": "rollout",
        "old/laptop/.codex/history.jsonl": "prompts",
        f"old/laptop/.codex/sessions/{NAME}.jsonl": "rollout",
    }


def test_prompts_are_recognised_under_another_file_name() -> None:
    parser = RolloutParser("own")
    outcome = parser.record({"session_id": "s", "ts": 1785574800, "text": "do it"}, 0)
    assert [prompt.text for prompt in outcome.prompts] == ["do it"]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"type": "session_meta", "payload": {"id": "a", "session_id": "root"}}, "a"),
        ({"type": "session_meta", "payload": {"session_id": "a"}}, "a"),
        ({"id": "a", "timestamp": "2025-08-20T07:00:00Z", "instructions": None}, "a"),
        ({"session": {"id": "a"}, "items": []}, "a"),
        ({"type": "message", "id": "msg_1", "timestamp": "", "role": "user"}, None),
        ({"id": "a", "thread_name": "n", "updated_at": "x"}, None),
        ({"session_id": "a", "ts": 1, "text": "t"}, None),
        ({"type": "session_meta", "payload": []}, None),
        ({}, None),
    ],
)
def test_first_record_gives_the_thread_id(first: dict[str, Any], expected: str | None) -> None:
    assert Codex().first_id(first) == expected


def records(file: SourceFile) -> Iterator[Mapping[str, Any]]:
    raw = file.path.read_bytes()
    if file.compressed:
        raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw)).read()
    for line in [raw] if file.shape == "whole" else raw.split(b"\n"):
        try:
            value, _ = loads(line)
        except MalformedLine:
            continue
        if isinstance(value, dict):
            yield value


def run(file: SourceFile, values: list[Mapping[str, Any]], cuts: set[int]) -> Outcome:
    """What a file gives if the parser is saved and made anew before each record in ``cuts``."""
    parser: Parser = Codex().parser(file, "own", None)
    outcomes, labels = [], []
    for ordinal, value in enumerate(values):
        if ordinal in cuts:
            # jsonb keeps no order of keys, so the state must not depend on it.
            saved = json.loads(json.dumps(parser.state(), sort_keys=True))
            parser = Codex().parser(file, "own", saved)
        outcomes.append(parser.record(value, ordinal))
    labels.extend(parser.labels())
    return outcomes, parser.session, labels


def assert_resumable(file: SourceFile, cuts_at: int) -> None:
    values = list(records(file))
    whole = run(file, values, set())
    step = max(1, len(values) // cuts_at)
    for cut in range(0, len(values), step):
        assert run(file, values, {cut}) == whole, (file.path, cut)
    assert run(file, values, set(range(len(values)))) == whole, file.path


def test_parser_goes_on_after_any_line_of_the_fixtures() -> None:
    files = list(Codex().discover(FIXTURES))
    assert len(files) == 5
    for file in files:
        assert_resumable(file, cuts_at=1000)


@pytest.mark.corpus
def test_parser_goes_on_after_any_line_of_real_logs(corpus: Path) -> None:
    files = list(Codex().discover(corpus / "codex"))
    assert len(files) > 40
    for file in files:
        assert_resumable(file, cuts_at=5)


@pytest.mark.corpus
def test_migrated_rollout_says_the_same(corpus: Path) -> None:
    said = []
    for name in ("before-legacy", "after-paginated"):
        path = corpus / "codex" / "synthetic" / "migrate" / f"{name}.jsonl"
        file = SourceFile(path, "codex", "rollout", "lines", name)
        outcomes, _, _ = run(file, list(records(file)), set())
        said.append([m for outcome in outcomes for m in outcome.messages])
    assert said[0] == said[1] and len(said[0]) == 13


@pytest.mark.corpus
def test_real_logs_keep_every_text_of_people_and_models(corpus: Path) -> None:
    for file in Codex().discover(corpus / "codex"):
        values = list(records(file))
        outcomes, _, _ = run(file, values, set())
        stored = "\n".join(m.text for outcome in outcomes for m in outcome.messages)
        for value in values:
            payload = value.get("payload")
            for spoken in _spoken(payload if isinstance(payload, dict) else {}):
                assert spoken.strip() in stored, file.path


def _spoken(payload: Mapping[str, Any]) -> Iterator[str]:
    kind = payload.get("type")
    if kind == "message":
        yield from (part["text"] for part in payload["content"] if "text" in part)
    elif kind in ("user_message", "agent_message", "exec_command_end"):
        yield from (payload[key] for key in ("message", "aggregated_output") if key in payload)
    elif kind in ("function_call", "custom_tool_call"):
        arguments = payload.get("arguments") or payload.get("input") or "{}"
        if isinstance(arguments, str) and arguments.startswith("{"):
            yield from (v for v in json.loads(arguments).values() if isinstance(v, str))


def test_state_stays_small_however_much_one_turn_says() -> None:
    parser = RolloutParser("own")
    for number in range(3000):
        for text in (f"text {number}", "again"):
            payload = {"type": "message", "role": "user", "content": text}
            parser.record({"type": "response_item", "payload": payload}, number)
    assert len(json.dumps(parser.state())) < 24_000


def _real_records() -> list[dict[str, Any]]:
    return [dict(value) for file in Codex().discover(FIXTURES) for value in records(file)]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@st.composite
def _mutated(draw: st.DrawFn) -> Any:
    """A real record in which one value, at any depth, is something else."""
    value = json.loads(json.dumps(draw(st.sampled_from(_real_records()))))
    holder: Any = value
    key: Any = draw(st.sampled_from(sorted(holder)))
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
    holder[key] = draw(_JSON | st.sampled_from(["item_completed", "compacted", 10**400, "\ud800"]))
    return value


@settings(max_examples=300, deadline=None)
@given(st.lists(_mutated() | st.dictionaries(st.text(max_size=8), _JSON), max_size=6))
def test_no_record_of_odd_shape_raises(values: list[dict[str, Any]]) -> None:
    file = SourceFile(Path("x.jsonl"), "codex", "rollout", "lines", "x")
    outcomes, session, labels = run(file, list(values), set())
    assert run(file, list(values), set(range(len(values)))) == (outcomes, session, labels)
    for outcome in outcomes:
        held = [outcome.messages, outcome.prompts, outcome.session_info, outcome.skipped]
        assert sum(map(bool, held)) == 1
        assert all(message.text.strip() for message in outcome.messages)
