"""From one parsed record to the rows that a sink stores: clean, redact, hash, key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from recall import keys
from recall.hygiene import clean
from recall.records import (
    Message,
    MessageRow,
    Note,
    NoteRow,
    Parsed,
    Prompt,
    PromptRow,
    SessionDraft,
    SessionRow,
)
from recall_ingester.file_keys import note_place
from recall_ingester.redact import redact

_FIELD_CHARS = 500
#: What is left of an id that is longer than that.
_ID_CHARS = 400


def safe_id(text: str) -> str:
    """A client's id as a key holds it. What no database accepts is replaced, and a long one is cut,
    because keys stand in indexes; a hash behind such a one keeps it apart from others."""
    cleaned, _ = clean(text)
    if cleaned == text and len(text) <= _FIELD_CHARS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{cleaned[:_ID_CHARS]}~{digest}"


class RowBuilder:
    """Makes rows for one file of one host."""

    def __init__(self, *, source: str, host: str, path: str, redact_secrets: bool) -> None:
        self._source = source
        self._host = host
        self._path = path
        self._redact = redact_secrets

    def key(self, external_id: str) -> str:
        """The session key of a client's session id on this host."""
        return keys.session_key(self._source, self._host, external_id)

    def session(self, draft: SessionDraft, *, from_transcript: bool = True) -> SessionRow:
        """The session's row as far as this file tells it."""
        external_id = safe_id(draft.external_id) or "unknown"
        return SessionRow(
            session_key=self.key(external_id),
            source=self._source,
            host=self._host,
            external_id=external_id,
            parent_key=self.key(safe_id(draft.parent_id)) if draft.parent_id else None,
            relation=draft.relation,
            title=self._safe(draft.title)[0] if draft.title else None,
            title_rank=draft.title_rank,
            project=_field(draft.cwd),
            branch=_field(draft.branch),
            model=_field(draft.model),
            client_version=_field(draft.client_version),
            started_at=draft.started_at,
            ended_at=draft.ended_at,
            path=self._path if from_transcript else None,
        )

    def messages(
        self,
        parsed: Parsed,
        *,
        session_key: str,
        ordinal: int,
        before: datetime | None,
        damaged: bool,
    ) -> list[MessageRow]:
        """The rows of one record; one without a time takes that of the record ``before`` it."""
        origin = "record" if parsed.ts else ("previous" if before else None)
        return [
            self._message(
                message, parsed, session_key, ordinal, parsed.ts or before, origin, damaged=damaged
            )
            for message in parsed.messages
        ]

    def _message(
        self,
        message: Message,
        parsed: Parsed,
        session_key: str,
        ordinal: int,
        ts: datetime | None,
        origin: str | None,
        *,
        damaged: bool,
    ) -> MessageRow:
        content, replaced, redactions = self._safe_counted(message.text)
        digest = keys.content_hash(content)
        return MessageRow(
            session_key=session_key,
            ordinal=ordinal,
            part=message.part,
            id=keys.message_id(session_key, ordinal, message.part),
            role=message.role,
            kind=message.kind,
            ts=ts,
            ts_origin=origin,
            content=content,
            content_hash=digest,
            copy_key=keys.copy_key(self._source, message.copy_scope, digest),
            project=_field(parsed.cwd),
            branch=_field(parsed.branch),
            tool=_field(message.tool),
            call_id=_field(message.call_id),
            native_id=_field(message.native_id),
            model=_field(message.model),
            is_error=message.is_error,
            is_damaged=damaged or replaced,
            redactions=redactions,
            on_active_branch=message.on_active_branch,
        )

    def prompts(self, prompts: list[Prompt], *, ordinal: int) -> list[PromptRow]:
        """The rows of the prompts of one record."""
        return [self._prompt(prompt, ordinal) for prompt in prompts]

    def _prompt(self, prompt: Prompt, ordinal: int) -> PromptRow:
        content, _ = self._safe(prompt.text)
        digest = keys.content_hash(content)
        session = _field(prompt.session_id)
        at = prompt.ts.isoformat() if prompt.ts else None
        return PromptRow(
            id=keys.stable_id("prompt", self._source, self._host, at, session, digest.hex()),
            source=self._source,
            host=self._host,
            ordinal=ordinal,
            session_key=self.key(session) if session else None,
            project=_field(prompt.project),
            ts=prompt.ts,
            content=content,
            content_hash=digest,
        )

    def notes(self, notes: list[Note], *, ordinal: int) -> list[NoteRow]:
        """The rows of the notes of one record."""
        return [self._note(note, ordinal) for note in notes]

    def _note(self, note: Note, ordinal: int) -> NoteRow:
        content, _ = self._safe(note.text)
        title = self._safe(note.title)[0] if note.title else None
        path, key = note_place(self._path, _field(note.key) or "")
        digest = keys.content_hash(content)
        return NoteRow(
            shelf=note.shelf,
            id=keys.stable_id(
                "note", note.shelf, self._source, self._host, path, key, digest.hex()
            ),
            source=self._source,
            host=self._host,
            path=path,
            entry_key=key,
            ordinal=ordinal,
            session_id=_field(note.session_id),
            project=_field(note.project),
            title=title,
            ts=note.ts,
            content=content,
            content_hash=digest,
            fields=self._safe_json(note.fields),
        )

    def _safe_json(self, value: Any) -> Any:
        """JSON whose texts are clean and redacted."""
        if isinstance(value, str):
            return self._safe(value)[0]
        if isinstance(value, Mapping):
            return {self._safe(str(key))[0]: self._safe_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._safe_json(item) for item in value]
        return value

    def _safe(self, text: str) -> tuple[str, bool]:
        content, replaced, _ = self._safe_counted(text)
        return content, replaced

    def _safe_counted(self, text: str) -> tuple[str, bool, int]:
        content, replaced = clean(text)
        if not self._redact:
            return content, replaced, 0
        content, count = redact(content)
        return content, replaced, count


@lru_cache(maxsize=4096)  # a session's folder, branch and model come with each of its messages
def _field(value: str | None) -> str | None:
    """A short metadata value in the same clean form as content."""
    if not value:
        return None
    text, _ = clean(value)
    return text[:_FIELD_CHARS]
