"""Session logs for the appliance: the two of this folder, and many that are made."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent / "sessions"
#: Stands in one of the two sessions and nowhere else.
CANARY = "canary-7f3a91"
#: Words of one session, and words that mean the same and do not stand in it.
WORDS, WORDS_FOUND = "irrigation valve watchdog", "watchdog"
MEANING, MEANING_FOUND = "watering system keeps running after an electricity outage", "valve"

FILES, MESSAGES = 50, 500
_NAMES = uuid.UUID("0f1d5c62-7a3c-4f7e-8a4e-3c9d54a2b7e0")
_PARTS = (
    "invoice",
    "tenant",
    "report",
    "login",
    "session",
    "form",
    "page",
    "index",
    "cache",
    "lock",
)
_STATES = (
    "expires",
    "repeats",
    "is slow",
    "is stale",
    "is empty",
    "is twice there",
    "fails",
    "waits",
)


def copy_samples(target: Path) -> int:
    """The two sessions; the number of their lines, each of which is one message."""
    shutil.copytree(HERE / "projects", target, dirs_exist_ok=True)
    return sum(file.read_bytes().count(b"\n") for file in target.rglob("*.jsonl"))


def marker(file: int, message: int) -> str:
    """What stands in one message only."""
    return f"marker-{file:03d}-{message:03d}"


def make_many(target: Path) -> int:
    """Write many sessions, most of them calls of tools, which get no vectors; the number of
    messages."""
    folder = target / "-home-me-plant"
    folder.mkdir(parents=True)
    for file in range(FILES):
        session = str(uuid.uuid5(_NAMES, f"session {file}"))
        lines = [json.dumps(_line(session, file, message)) for message in range(MESSAGES)]
        (folder / f"{session}.jsonl").write_text("\n".join(lines) + "\n")
    return FILES * MESSAGES


def _line(session: str, file: int, message: int) -> dict[str, object]:
    part, other = _PARTS[(file + message) % 10], _PARTS[(file * 3 + message * 7) % 10]
    text = (
        f"{marker(file, message)}: the {part} {_STATES[(file + message) % 8]} when the {other} "
        f"{_STATES[(file * 5 + message) % 8]}. Run {file * MESSAGES + message} showed it at load "
        f"{(file * 31 + message * 17) % 97} percent; the {part} was read again, in vain."
    )
    role, content = _content(message, text)
    return {
        "parentUuid": str(uuid.uuid5(_NAMES, f"{file}/{message - 1}")) if message else None,
        "cwd": "/home/me/plant",
        "sessionId": session,
        "type": role,
        "message": {"role": role, "content": content},
        "uuid": str(uuid.uuid5(_NAMES, f"{file}/{message}")),
        "timestamp": f"2026-05-{1 + file % 28:02d}T{message // 60:02d}:{message % 60:02d}:00.000Z",
    }


def _content(message: int, text: str) -> tuple[str, object]:
    """A question and its answer in every hundred lines; else a call and its result."""
    if message % 100 == 0:
        return "user", text
    if message % 100 == 99:
        return "assistant", [{"type": "text", "text": text}]
    name = f"toolu_{(message + 1) // 2}"
    if message % 2:
        call = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": text}}
        return "assistant", [call]
    return "user", [
        {"type": "tool_result", "tool_use_id": f"toolu_{message // 2}", "content": text}
    ]
