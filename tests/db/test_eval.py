"""`recall eval` over real stores, and whether the labels of the shipped set name what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.cli.evaluate_corpus import analyze, corpus_sources, load_corpus
from recall.config import Settings
from recall.errors import NotFoundError, RecallError, UsageError
from recall_api.evaluation.queries import message_key, read_queries
from tests.db.ingesting import rows

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "ops" / "eval"
SESSION = "5a1d0f3e-0000-4000-8000-000000000001"
TEXTS = (
    "the build stops with E_NO_SPACE on the runner",
    "Clean the workspace first, then the runner has room again.",
    "and which colour has the icon?",
)


def record(number: int, text: str) -> str:
    role = "assistant" if number % 2 else "user"
    value: dict[str, Any] = {
        "type": role,
        "uuid": f"5a1d0f3e-0000-4000-8000-{number:012}",
        "sessionId": SESSION,
        "timestamp": f"2026-01-01T10:{number:02}:00Z",
        "message": {"role": role, "content": text},
    }
    return json.dumps(value) + "\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A corpus of one session with three messages."""
    folder = tmp_path / "small" / "claude-code" / "projects" / "p"
    folder.mkdir(parents=True)
    lines = [record(number, text) for number, text in enumerate(TEXTS)]
    (folder / f"{SESSION}.jsonl").write_text("".join(lines))
    return tmp_path / "small"


def write_set(path: Path, *queries: tuple[str, str, dict[str, int]]) -> Path:
    lines = [
        json.dumps({"id": str(number), "class": kind, "query": text, "relevant": relevant})
        for number, (kind, text, relevant) in enumerate(queries)
    ]
    path.write_text("\n".join(lines))
    return path


def key(ordinal: int, session: str = SESSION) -> str:
    return f"claude-code:{session}#{ordinal}.0"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Words find both answers; the exact string finds one and refuses what is not there."""
    return write_set(
        tmp_path / "set.jsonl",
        ("error", "E_NO_SPACE", {key(0): 3}),
        ("fix", "clean workspace", {key(1): 3}),
        ("none-of-these", "zebra", {}),
    )


@pytest.fixture
def store(database: str, home: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The small corpus in the store of the settings."""
    load_corpus(Settings(home=home, host="laptop"), database, [str(small)])
    analyze(database)
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    return database


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", *arguments])


def run_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def raised(kind: type[RecallError], arguments: Sequence[str]) -> RecallError:
    error = run(*arguments).exception
    assert isinstance(error, kind), error
    return error


def test_modes_are_scored_over_the_store_of_the_settings(store: str, questions: Path) -> None:
    report = run_json("--set", str(questions), "--mode", "text,exact")
    text, exact = report["modes"]["text"], report["modes"]["exact"]
    assert text["overall"]["mrr"]["mean"] == 1.0
    assert exact["overall"]["mrr"]["mean"] == 0.5
    assert exact["classes"]["fix"]["hit"]["mean"] == 0.0
    assert exact["no_answer"]["refused"]["mean"] == 1.0
    assert [query["grades"][:1] for query in text["queries"]] == [[3], [3], []]
    assert text["queries"][0]["hits"][0] == key(0)


def test_gate_fails_below_a_minimum_in_any_mode(store: str, questions: Path) -> None:
    arguments = ["--set", str(questions), "--min-mrr", "0.9"]
    assert run(*arguments, "--mode", "text").exit_code == 0
    failed = run(*arguments, "--mode", "text,exact")
    assert failed.exit_code == 1
    assert "below the minimum: MRR@10 of exact is 0.500 < 0.9" in failed.stderr
    assert "| text" in failed.stdout


def test_mode_without_vectors_is_missing_and_an_error_only_where_asked_for(
    store: str, questions: Path
) -> None:
    report = run_json("--set", str(questions))
    assert set(report["modes"]) == {"text", "exact"}
    assert set(report["unavailable"]) == {"semantic", "hybrid"}
    error = raised(UsageError, ["--set", str(questions), "--mode", "semantic"])
    assert error.message.startswith("mode `semantic` is not available: ")


def test_store_without_the_sessions_is_an_error_and_not_a_zero(store: str, tmp_path: Path) -> None:
    foreign = key(0, "99999999-0000-4000-8000-000000000001")
    other = write_set(tmp_path / "other.jsonl", ("fix", "clean", {foreign: 3}))
    error = raised(NotFoundError, ["--set", str(other)])
    assert "none of the 1 sessions" in error.message
    mixed = write_set(
        tmp_path / "mixed.jsonl", ("fix", "x", {foreign: 3}), ("fix", "clean", {key(1): 3})
    )
    report = run_json("--set", str(mixed), "--mode", "text")
    assert report["skipped"] == ["0"]
    assert report["modes"]["text"]["overall"]["hit"]["count"] == 1


def test_filters_of_a_query_are_those_of_the_search(store: str, tmp_path: Path) -> None:
    value = {"id": "1", "class": "fix", "query": "runner", "relevant": {key(1): 3}}
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(value | {"filters": {"role": ["assistant"]}}))
    (query,) = run_json("--set", str(path), "--mode", "text")["modes"]["text"]["queries"]
    assert query["hits"] == [key(1)]


def test_corpus_is_loaded_into_a_store_of_its_own(home: Path, small: Path, questions: Path) -> None:
    report = run_json("--set", str(questions), "--corpus", str(small), "--mode", "text")
    assert report["modes"]["text"]["overall"]["mrr"]["mean"] == 1.0
    assert list(home.iterdir()) == []


def test_corpus_gets_vectors_where_a_mode_needs_them(
    home: Path, small: Path, questions: Path
) -> None:
    report = run_json("--set", str(questions), "--corpus", str(small), "--mode", "semantic,hybrid")
    for mode in ("semantic", "hybrid"):
        assert report["modes"][mode]["overall"]["hit"]["mean"] == 1.0
        assert report["modes"][mode]["degraded"] == 0


def test_corpus_without_a_model_is_measured_by_words(
    home: Path, small: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_EMBED_MODEL", str(tmp_path / "no-model"))
    report = run_json("--set", str(questions), "--corpus", str(small))
    assert set(report["modes"]) == {"text", "exact"}
    assert set(report["unavailable"]) == {"semantic", "hybrid"}


def test_wrong_arguments_are_named(small: Path, questions: Path, home: Path) -> None:
    base = ["--set", str(questions)]
    cases = {
        "no such mode: `fuzzy`": [*base, "--mode", "fuzzy"],
        "`exact` is not measured": [*base, "--mode", "text", "--none-below", "exact=1"],
        "not a score: `x`": [*base, "--mode", "text", "--none-below", "text=x"],
        "has no queries of the split `tune`": [*base, "--split", "tune"],
    }
    for message, arguments in cases.items():
        assert message in raised(UsageError, arguments).message


def test_corpus_folder_names_its_sources(small: Path, tmp_path: Path) -> None:
    settings = Settings()
    ((source, roots),) = corpus_sources(settings, [str(small)])
    assert (source.name, list(roots)) == ("claude-code", [small / "claude-code"])
    ((source, roots),) = corpus_sources(settings, [f"codex={small}"])
    assert (source.name, list(roots)) == ("codex", [small])
    with pytest.raises(UsageError, match="has no folder that is named like a source"):
        corpus_sources(settings, [str(small / "claude-code")])
    with pytest.raises(UsageError, match="is not a folder"):
        corpus_sources(settings, [str(tmp_path / "absent")])


@pytest.fixture
def shipped(database: str, home: Path) -> dict[str, str]:
    """The text of each message of the shipped sessions, by its key."""
    load_corpus(Settings(home=home, host="eval"), database, [str(SHIPPED / "sessions")])
    statement = "select session_key, ordinal, part, content from recall.message"
    return {message_key(*row[:3]): row[3] for row in rows(database, statement)}


def test_labels_of_the_shipped_set_name_messages_of_its_sessions(shipped: dict[str, str]) -> None:
    queries = read_queries(SHIPPED / "queries.jsonl")
    assert len(shipped) >= 2_000
    assert len({name.partition("#")[0] for name in shipped}) >= 40
    labels = set().union(*(query.relevant for query in queries))
    assert labels <= shipped.keys()
    for query in queries:
        if query.kind == "identifier":
            best = [shipped[name] for name, grade in query.relevant.items() if grade == 3]
            assert any(query.text in text for text in best), query.id


@pytest.mark.corpus
@pytest.mark.slow
def test_labels_of_the_second_set_name_messages_of_the_sample_logs(
    database: str, home: Path, corpus: Path
) -> None:
    folders = [f"claude-code={corpus / 'claude'}", f"codex={corpus / 'codex'}"]
    load_corpus(Settings(home=home, host="eval"), database, folders)
    statement = "select session_key, ordinal, part from recall.message"
    there = {message_key(*row) for row in rows(database, statement)}
    queries = read_queries(SHIPPED / "corpus_queries.jsonl")
    assert len(queries) >= 40
    assert set().union(*(query.relevant for query in queries)) <= there
