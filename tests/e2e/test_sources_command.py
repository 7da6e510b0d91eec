"""`recall sources`: what is read, where it was looked for, what was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recall.cli import app
from recall.errors import UsageError


@pytest.fixture
def user_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    log = folder / ".claude" / "projects" / "p" / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    (folder / ".claude" / "history.jsonl").write_text("{}\n")
    monkeypatch.setenv("HOME", str(folder))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "OPENCODE_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    return folder


def listed(*names: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["sources", *names, "--json"])
    assert done.exit_code == 0, done.output
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


def test_every_source_tells_what_it_reads_and_what_it_found(user_home: Path) -> None:
    found = listed()
    assert {"claude-code", "codex", "gemini-cli", "ledger", "memory", "opencode",
            "vscode-copilot"} == set(found)  # fmt: skip
    assert all(entry["reads"] for entry in found.values())
    claude = found["claude-code"]
    assert claude["found"] == {"prompts": 1, "transcript": 1}
    looked = {place["path"]: place for place in claude["looked"]}
    assert looked[str(user_home / ".claude")] == {
        "path": str(user_home / ".claude"), "exists": True, "files": 2,
    }  # fmt: skip
    assert found["codex"]["looked"][0]["exists"] is False
    assert found["ledger"]["looked"] == []


def test_declared_source_is_listed_with_the_others(user_home: Path, home: Path) -> None:
    (user_home / "agent").mkdir()
    (user_home / "agent" / "one.jsonl").write_text("{}\n")
    (home / "config.toml").write_text(
        '[[source]]\nname = "my-agent"\npaths = ["~/agent/*.jsonl"]\ntext = "text"\nrole = "role"\n'
    )
    assert listed()["my-agent"]["files"] == 1


def test_text_names_places_and_problems(user_home: Path) -> None:
    done = CliRunner().invoke(app, ["sources"])
    assert done.exit_code == 0
    assert "prompts 1, transcript 1" in done.stdout
    assert str(user_home / ".claude") in done.stdout
    done = CliRunner().invoke(app, ["sources", "codex"])
    assert "archived_sessions/rollout-*.jsonl[.zst]" in done.stdout
    assert "auth.json: credentials" in done.stdout


def test_unknown_name_is_a_usage_error(user_home: Path) -> None:
    for name in ("nothing", "codex=/tmp"):
        assert isinstance(CliRunner().invoke(app, ["sources", name]).exception, UsageError)
