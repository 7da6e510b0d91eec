"""Sessions as the clients write them. Each writer says where each turn came to stand."""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ops.eval.material import Session, Turn

_NAMESPACE = uuid.UUID("3f0d6f0e-7d0a-5b43-9d0c-6a1de3e50b11")
_MODEL = "model-large"


def session_id(name: str) -> str:
    """The id of a session, from its name."""
    return str(uuid.uuid5(_NAMESPACE, name))


@dataclass(slots=True)
class Written:
    """A session as lines, the place `ordinal.part` of each turn by its number, and its file."""

    path: Path
    lines: list[str] = field(default_factory=list)
    places: dict[int, str] = field(default_factory=dict)
    title_place: str | None = None

    def add(self, record: dict[str, Any]) -> int:
        """Append a record; its ordinal."""
        self.lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        return len(self.lines) - 1


class _Clock:
    """Moments that go forward by what a turn may take."""

    def __init__(self, session: Session) -> None:
        self._chance = random.Random(session.name)  # noqa: S311 - repeatable, not secret
        self._now = session.start

    def next(self, turn: Turn) -> str:
        """The time of this turn."""
        least, most = (30, 400) if turn.kind == "U" else (2, 45)
        self._now += timedelta(milliseconds=self._chance.randint(least * 1000, most * 1000))
        return _stamp(self._now)


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def _short(kind: str, session: Session, number: int) -> str:
    digest = hashlib.sha256(f"{session.name} {number}".encode()).hexdigest()
    return f"{kind}_{digest[:12]}"


def write_claude_code(session: Session, turns: Sequence[Turn], cwd: str) -> Written:
    """One record a block, as the client does; thinking shares the record of what follows it."""
    own = session_id(session.name)
    written = Written(Path("claude-code") / "projects" / cwd.replace("/", "-") / f"{own}.jsonl")
    clock = _Clock(session)
    parent: str | None = None
    thought: tuple[int, str] | None = None
    for number, turn in enumerate(turns):
        if turn.kind == "T":
            thought = number, turn.text
            continue
        blocks = [{"type": "thinking", "thinking": thought[1], "signature": ""}] if thought else []
        blocks.append(_claude_block(session, turn, number))
        is_user = turn.kind in ("U", ">", ">!")
        content: Any = turn.text if turn.kind == "U" else blocks
        message: dict[str, Any] = {"role": "user" if is_user else "assistant", "content": content}
        if not is_user:
            message = {"model": _MODEL, **message}
        identity = str(uuid.uuid5(_NAMESPACE, f"{session.name} {number}"))
        ordinal = written.add(
            {
                "parentUuid": parent,
                "cwd": cwd,
                "sessionId": own,
                "gitBranch": session.branch,
                "type": message["role"],
                "message": message,
                "uuid": identity,
                "timestamp": clock.next(turn),
            }
        )
        if thought:
            written.places[thought[0]] = f"{ordinal}.0"
        written.places[number] = f"{ordinal}.{len(blocks) - 1}"
        parent, thought = identity, None
    ordinal = written.add({"type": "ai-title", "aiTitle": session.title, "sessionId": own})
    written.title_place = f"{ordinal}.0"
    return written


def _claude_block(session: Session, turn: Turn, number: int) -> dict[str, Any]:
    if turn.kind in (">", ">!"):
        block = {
            "type": "tool_result",
            "tool_use_id": _short("toolu", session, number - 1),
            "content": turn.text,
        }
        return block | {"is_error": True} if turn.kind == ">!" else block
    tool = _tool(turn)
    if tool is None:
        return {"type": "text", "text": turn.text}
    name, arguments = tool
    return {
        "type": "tool_use", "id": _short("toolu", session, number), "name": name,
        "input": arguments,
    }  # fmt: skip


def _tool(turn: Turn) -> tuple[str, dict[str, str]] | None:
    if turn.kind == "$":
        return "Bash", {"command": turn.text}
    if turn.kind == "R":
        return "Read", {"file_path": turn.text}
    if turn.kind == "E":
        path, _, text = turn.text.partition("\n")
        return "Edit", {"file_path": path, "new_string": text}
    return None


def write_codex(session: Session, turns: Sequence[Turn], cwd: str) -> Written:
    """A rollout: a header, and items of the model's context."""
    own = session_id(session.name)
    start = session.start.strftime("%Y-%m-%dT%H-%M-%S")
    folder = Path("codex") / "sessions" / session.start.strftime("%Y/%m/%d")
    written = Written(folder / f"rollout-{start}-{own}.jsonl")
    clock = _Clock(session)
    header = {"id": own, "timestamp": _stamp(session.start), "cwd": cwd, "cli_version": "0.100.0"}
    header |= {"git": {"branch": session.branch}}  # type: ignore[dict-item]
    written.add({"timestamp": _stamp(session.start), "type": "session_meta", "payload": header})
    for number, turn in enumerate(turns):
        payload = _codex_item(session, turn, number)
        record = {"timestamp": clock.next(turn), "type": "response_item", "payload": payload}
        written.places[number] = f"{written.add(record)}.0"
    return written


def _codex_item(session: Session, turn: Turn, number: int) -> dict[str, Any]:
    if turn.kind == "T":
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": turn.text}]}
    if turn.kind in ("U", "A"):
        role, part = ("user", "input_text") if turn.kind == "U" else ("assistant", "output_text")
        content = [{"type": part, "text": turn.text}]
        return {"type": "message", "role": role, "content": content}
    if turn.kind in (">", ">!"):
        call = _short("call", session, number - 1)
        output = {"output": turn.text, "metadata": {"exit_code": int(turn.kind == ">!")}}
        return {"type": "function_call_output", "call_id": call, "output": json.dumps(output)}
    tool = _tool(turn)
    assert tool is not None, turn.kind
    name, arguments = tool
    if name == "Bash":
        name, given = "shell", {"command": ["bash", "-lc", arguments["command"]]}
    else:
        given = {key: [value] for key, value in arguments.items()}
    return {
        "type": "function_call", "name": name, "call_id": _short("call", session, number),
        "arguments": json.dumps(given, ensure_ascii=False),
    }  # fmt: skip
