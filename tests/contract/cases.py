"""Every case of the contract."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest

from tests.contract import (
    claude_code,
    codex,
    declared,
    gemini_cli,
    imports,
    notes,
    opencode,
    vscode_copilot,
)
from tests.contract.script import Case

CASES: list[Case] = [
    *claude_code.CASES,
    *codex.CASES,
    *gemini_cli.CASES,
    *vscode_copilot.CASES,
    *opencode.CASES,
    *notes.CASES,
    *declared.CASES,
    *imports.CASES,
]
#: How rows get into a store: straight into the database, or through PostgREST.
Door = Literal["sql", "http"]
DOORS: tuple[Door, ...] = get_args(Door)
#: One case of each shape; how a client is read has nothing to do with the door.
OVER_HTTP = (
    "claude-code", "codex", "gemini-cli-json", "vscode-copilot-json", "opencode-database",
    "opencode-files", "ledger", "memory-markdown", "claude-ai", "recall-jsonl",
)  # fmt: skip
#: Cases and doors, for tests that hold for both.
THROUGH_DOORS: list[Any] = [
    pytest.param(case, door, id=case.name if door == "sql" else f"{case.name}-over-{door}")
    for door in DOORS
    for case in CASES
    if door == "sql" or case.name in OVER_HTTP
]
#: Cases whose client files stay where they are and are read again and again.
READ_IN_PASSES = [case for case in CASES if case.way == "pass"]
IN_FILES = [case for case in CASES if not case.statements]
IN_DATABASES = [case for case in CASES if case.statements]
