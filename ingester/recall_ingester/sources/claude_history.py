"""Claude Code's ``history.jsonl``: what the person typed, kept when transcripts are cleaned up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recall.records import Parsed, Prompt, SessionDraft
from recall.timestamps import parse_timestamp

_PASTE_BYTES = 1_048_576


class HistoryParser:
    """``{display, pastedContents, timestamp, project, sessionId?}``, one line a prompt."""

    session: SessionDraft | None = None

    def __init__(self, folder: Path) -> None:
        self._pastes = folder / "paste-cache"

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:  # noqa: ARG002
        """A prompt with its pasted texts behind it."""
        display = value.get("display")
        if not isinstance(display, str):
            return Parsed(skipped="no prompt text")
        texts = [display, *self._pasted(value.get("pastedContents"))]
        text = "\n\n".join(part for part in texts if part)
        if not text.strip():
            return Parsed(skipped="empty prompt")
        session, project = value.get("sessionId"), value.get("project")
        prompt = Prompt(
            text=text,
            ts=parse_timestamp(value.get("timestamp")),
            session_id=session if isinstance(session, str) else None,
            project=project if isinstance(project, str) else None,
        )
        return Parsed(prompts=[prompt], ts=prompt.ts)

    def _pasted(self, value: object) -> list[str]:
        entries = value.values() if isinstance(value, dict) else []
        return [text for entry in entries if (text := self._paste(entry))]

    def _paste(self, entry: object) -> str | None:
        if not isinstance(entry, dict):
            return None
        if isinstance(content := entry.get("content"), str):
            return content
        digest = entry.get("contentHash") or entry.get("hash")
        if not isinstance(digest, str) or not digest.isalnum():
            return None
        try:
            with (self._pastes / f"{digest}.txt").open("rb") as file:
                return file.read(_PASTE_BYTES).decode("utf-8", "replace")
        except OSError:  # cleaned up by the client; the prompt itself is still worth keeping
            return None

    def text(self, content: str) -> Parsed:  # noqa: ARG002
        """A prompt history is never plain text."""
        return Parsed(skipped="not a prompt record")

    def labels(self) -> list[SessionDraft]:
        """Nothing: the entries stand for themselves."""
        return []

    def state(self) -> dict[str, Any]:
        """Nothing is remembered between lines."""
        return {}
