"""Every case of the contract."""

from __future__ import annotations

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
#: Cases whose client files stay where they are and are read again and again.
READ_IN_PASSES = [case for case in CASES if case.way == "pass"]
IN_FILES = [case for case in CASES if not case.statements]
IN_DATABASES = [case for case in CASES if case.statements]
