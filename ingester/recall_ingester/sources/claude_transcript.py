"""The records of one Claude Code transcript, and of the small files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from recall.jsontext import compact
from recall.records import Kind, Message, Parsed, Role, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.claude_blocks import block_messages, extra_outputs, opens_as_meta
from recall_ingester.sources.toolinput import render_input

#: Records that hold no text of the conversation; everything not named anywhere is kept as JSON.
_NOISE = frozenset(
    {
        "agent-color", "agent-setting", "attribution-snapshot", "bridge-session",
        "content-replacement", "file-history-delta", "file-history-snapshot",
        "fork-context-ref", "last-prompt", "mode", "observer-ref", "permission-mode", "progress",
    }
)  # fmt: skip
#: Attachments that only tell the model about the state of the client.
STATE_ATTACHMENTS = frozenset(
    {
        "agent_listing_delta", "auto_mode", "batching_reminder_sent", "budget_usd",
        "command_permissions", "compact_file_reference", "date_change", "deferred_tools_delta",
        "dynamic_skill", "mcp_instructions_delta", "plan_mode", "plan_mode_exit",
        "read_truncation_notice", "silent_turn_reminder", "skill_listing", "total_tokens_reminder",
        "ultra_effort_enter", "ultra_effort_exit",
    }
)  # fmt: skip
_TITLES = {
    "custom-title": ("customTitle", 60),
    "agent-name": ("agentName", 50),
    "ai-title": ("aiTitle", 40),
    "summary": ("summary", 30),
}
_LINKS = {
    "pr-link": ("Pull request", ("prUrl",)),
    "frame-link": ("Preview", ("title", "frameUrl", "path")),
    "tag": ("Tag", ("tag",)),
}
#: Texts of a system record beside its content.
_SYSTEM_TEXTS = ("apiRefusalExplanation", "hookErrors", "hookAdditionalContext", "stopReason")
#: What stands beside the content of a message.
_ENVELOPE = frozenset(
    {"container", "id", "model", "role", "stop_reason", "stop_sequence", "type", "usage"}
)
_HOOK_OUTPUTS = ("content", "stdout", "stderr")
_PROMPT_TITLE_RANK = 10
_TITLE_CHARS = 120
_SPILL_PART_CHARS = 500_000
#: Calls whose result is awaited; a result that comes after more calls than this has no tool name.
_OPEN_CALLS = 256


class TranscriptParser:
    """One ``.jsonl`` transcript, main session or subagent."""

    def __init__(self, external_id: str, state: Mapping[str, Any] | None = None) -> None:
        self.session: SessionDraft = _restore(state) or _new_session(external_id)
        self._branch: str | None = state.get("branch") if state else None
        self._cwd: str | None = state.get("cwd") if state else None
        self._tools: dict[str, str] = dict(state["tools"]) if state else {}
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Parsed]] = {
            "user": self._user,
            "assistant": self._assistant,
            "system": self._system,
            "queue-operation": self._queue_operation,
            "attachment": self._attachment,
            "relocated": self._moved,
            "worktree-state": self._moved,
            "pr-link": self._link,
            "frame-link": self._link,
            "tag": self._link,
            **dict.fromkeys(_TITLES, self._title),
        }

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:  # noqa: ARG002
        """What one line means; see docs/sources.md for the record types."""
        ts = parse_timestamp(value.get("timestamp"))
        self._note_envelope(value, ts)
        kind = value.get("type")
        if kind is None and isinstance(body := value.get("message"), dict):
            # written by tools that copy the format without its envelope
            kind = role if (role := body.get("role")) in ("user", "assistant") else None
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            parsed = handler(value)
        elif isinstance(kind, str) and kind in _NOISE:
            parsed = Parsed(skipped=kind)
        elif isinstance(kind, str) and kind.startswith("marble-origami-"):
            parsed = Parsed(skipped="marble-origami")
        elif not value:
            parsed = Parsed(skipped="empty record")
        else:
            parsed = Parsed(messages=[_message(value, "system", "unknown", compact(dict(value)))])
        parsed.ts, parsed.cwd, parsed.branch = ts, self._cwd, self._branch
        return parsed

    def text(self, content: str) -> Parsed:  # noqa: ARG002
        """A transcript is never plain text."""
        return Parsed(skipped="not a record")

    def labels(self) -> list[SessionDraft]:
        """Nothing: a transcript tells only about its own session."""
        return []

    def state(self) -> dict[str, Any]:
        """The session so far and where the conversation stands."""
        session = asdict(self.session)
        for name in ("started_at", "ended_at"):
            at: datetime | None = session[name]
            session[name] = at.isoformat() if at else None
        return {
            "session": session,
            "cwd": self._cwd,
            "branch": self._branch,
            "tools": self._tools,
        }

    def _note_envelope(self, value: Mapping[str, Any], ts: datetime | None) -> None:
        session = self.session
        self._cwd = _text(value.get("cwd")) or self._cwd
        self._branch = _text(value.get("gitBranch")) or self._branch
        session.cwd = session.cwd or self._cwd
        session.branch = session.branch or self._branch
        session.client_version = _text(value.get("version")) or session.client_version
        if ts is not None:
            session.started_at = min(session.started_at or ts, ts)
            session.ended_at = max(session.ended_at or ts, ts)
        forked = value.get("forkedFrom")
        if isinstance(forked, dict) and (parent := _text(forked.get("sessionId"))):
            session.parent_id, session.relation = parent, "fork"
        elif value.get("sessionKind") == "bg" and session.relation is None:
            session.relation = "fork"

    def _user(self, value: Mapping[str, Any]) -> Parsed:
        kind: Kind = "text"
        if value.get("isCompactSummary") is True:
            kind = "summary"
        elif value.get("isMeta") is True:
            kind = "meta"
        messages = _body_messages(value.get("message"), "user", kind)
        messages += extra_outputs(value.get("toolUseResult"), messages)
        self._propose_title(messages)
        return self._finish(value, messages)

    def _assistant(self, value: Mapping[str, Any]) -> Parsed:
        body = value.get("message")
        body = body if isinstance(body, dict) else {"content": body}
        model = _text(body.get("model"))
        kind: Kind = "text"
        if model == "<synthetic>":  # an error text that the client made itself
            kind, model = "event", None
        self.session.model = self.session.model or model
        messages = _body_messages(body, "assistant", kind)
        for message in messages:
            message.model = model
            message.is_error = message.is_error or value.get("isApiErrorMessage") is True
        return self._finish(value, messages)

    def _system(self, value: Mapping[str, Any]) -> Parsed:
        subtype = _text(value.get("subtype")) or "system"
        texts = [_text(value.get("content")), _error_text(value.get("error"))]
        texts += [render_input(value[name]) for name in _SYSTEM_TEXTS if value.get(name)]
        text = "\n".join(text for text in texts if text)
        if not text:
            return Parsed(skipped=f"system {subtype}")
        kind: Kind = "meta" if opens_as_meta(text) else "event"
        message = _message(value, "system", kind, text)
        message.is_error = value.get("level") == "error" or subtype == "api_error"
        return Parsed(messages=[message])

    def _title(self, value: Mapping[str, Any]) -> Parsed:
        name, rank = _TITLES[cast(str, value["type"])]
        title = _text(value.get(name))
        if not title and (said := _body_messages(value.get("message"), "system", "summary")):
            return self._finish(value, said)
        if not title:
            return Parsed(skipped="empty title")
        if rank >= self.session.title_rank:
            self.session.title, self.session.title_rank = _one_line(title), rank
        message = _message(value, "system", "summary", title)
        # The client repeats its titles; a search shows one of them.
        message.copy_scope = f"title/{self.session.external_id}"
        return Parsed(messages=[message], session_info=True)

    def _queue_operation(self, value: Mapping[str, Any]) -> Parsed:
        text = _content_text(value.get("content"))
        if not text:
            return Parsed(skipped="queue-operation")
        # A delivered prompt comes again as a message of its own; this one may never be.
        return Parsed(messages=[_message(value, "user", "meta", text)])

    def _attachment(self, value: Mapping[str, Any]) -> Parsed:
        body = value.get("attachment")
        body = body if isinstance(body, dict) else {}
        kind = _text(body.get("type")) or "unknown"
        if kind == "queued_command":
            messages = block_messages(body.get("prompt"), role="user", kind="text")
            self._propose_title(messages)
        elif kind == "hook_success":
            outputs = dict.fromkeys(
                text for name in _HOOK_OUTPUTS if (text := _text(body.get(name)))
            )
            shown = "\n".join(outputs)
            if not shown.strip("{}\n"):
                return Parsed(skipped=f"attachment {kind}")
            messages = [Message("user", "meta", shown)]
        elif kind in STATE_ATTACHMENTS or not body.keys() - {"type", "itemCount"}:
            return Parsed(skipped=f"attachment {kind}")
        else:  # a file, a note or a hook's answer that the client put before the model
            content = {name: item for name, item in body.items() if name != "type"}
            messages = [Message("user", "meta", render_input(content))]
        return self._finish(value, messages)

    def _moved(self, value: Mapping[str, Any]) -> Parsed:
        worktree = value.get("worktreeSession")
        place = worktree.get("worktreePath") if isinstance(worktree, dict) else None
        self._cwd = _text(value.get("relocatedCwd")) or _text(place) or self._cwd
        return Parsed(session_info=True)

    def _link(self, value: Mapping[str, Any]) -> Parsed:
        """A word or an address that was put on the session."""
        kind = cast(str, value["type"])
        opening, names = _LINKS[kind]
        texts = [text for name in names if (text := _text(value.get(name)))]
        if not texts:
            return Parsed(skipped=kind)
        return Parsed(messages=[_message(value, "system", "event", " ".join((opening, *texts)))])

    def _finish(self, value: Mapping[str, Any], messages: list[Message]) -> Parsed:
        native = _text(value.get("uuid"))
        for message in messages:
            message.native_id = native
            message.copy_scope = f"{native}/{message.part}" if native else None
            self._name_tool(message)
        return Parsed(messages=messages) if messages else Parsed(skipped="no text")

    def _name_tool(self, message: Message) -> None:
        if message.call_id is None:
            return
        if message.kind == "tool_call" and message.tool:
            self._tools[message.call_id] = message.tool
            while len(self._tools) > _OPEN_CALLS:
                del self._tools[next(iter(self._tools))]
        elif message.kind == "tool_result":
            message.tool = self._tools.get(message.call_id)

    def _propose_title(self, messages: list[Message]) -> None:
        if self.session.title_rank >= _PROMPT_TITLE_RANK:
            return
        for message in messages:
            typed = message.role == "user" and message.kind == "text"
            if typed and not message.text.lstrip().startswith("<"):
                self.session.title = _one_line(message.text)
                self.session.title_rank = _PROMPT_TITLE_RANK
                return


class SidecarParser:
    """``agent-<id>.meta.json``: what a subagent was started for."""

    session: SessionDraft | None = None

    def __init__(self, external_id: str) -> None:
        self._id = external_id
        self._labels: list[SessionDraft] = []

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:  # noqa: ARG002
        """The description becomes the title of the subagent's session."""
        title = _text(value.get("description")) or _text(value.get("agentType"))
        if not title:
            return Parsed(skipped="no description")
        draft = _new_session(self._id)
        draft.title, draft.title_rank = _one_line(title), 45
        draft.model = _text(value.get("model"))
        self._labels.append(draft)
        return Parsed(session_info=True)

    def text(self, content: str) -> Parsed:  # noqa: ARG002
        """A sidecar is always JSON."""
        return Parsed(skipped="not a record")

    def labels(self) -> list[SessionDraft]:
        """The subagent's session."""
        given, self._labels = self._labels, []
        return given

    def state(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {}


class SpillParser:
    """``tool-results/<name>``: a tool's output that was too long for the transcript."""

    def __init__(self, external_id: str) -> None:
        self.session = _new_session(external_id)
        self.session.title = external_id.rpartition("/")[2]
        self.session.title_rank = 1

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:  # noqa: ARG002
        """JSON output is kept as the JSON text that it is."""
        return self.text(compact(dict(value)))

    def text(self, content: str) -> Parsed:
        """The whole output, in parts of bounded size."""
        if not content.strip():
            return Parsed(skipped="empty output")
        call = self.session.external_id.rpartition("/")[2].rpartition(".")[0]
        starts = range(0, len(content), _SPILL_PART_CHARS)
        return Parsed(
            messages=[
                Message(
                    "tool", "tool_result", content[at : at + _SPILL_PART_CHARS], part, call_id=call
                )
                for part, at in enumerate(starts)
            ]
        )

    def labels(self) -> list[SessionDraft]:
        """Nothing."""
        return []

    def state(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {}


def _new_session(external_id: str) -> SessionDraft:
    draft = SessionDraft(external_id)
    parent, _, name = external_id.rpartition("/")
    if parent.endswith("/tool-results"):
        draft.parent_id, draft.relation = parent.removesuffix("/tool-results"), "spill"
    elif name.startswith("agent-") and parent:
        draft.parent_id, draft.relation = parent, "subagent"
    return draft


def _restore(state: Mapping[str, Any] | None) -> SessionDraft | None:
    if not state:
        return None
    fields = dict(state["session"])
    for name in ("started_at", "ended_at"):
        fields[name] = parse_timestamp(fields[name])
    return SessionDraft(**fields)


def _message(value: Mapping[str, Any], role: Role, kind: Kind, text: str) -> Message:
    native = _text(value.get("uuid"))
    scope = f"{native}/0" if native else None
    return Message(role, kind, text, native_id=native, copy_scope=scope)


def _body_messages(body: object, role: Role, kind: Kind) -> list[Message]:
    """The messages of a record's body; one whose content has another name is kept as JSON."""
    if not isinstance(body, Mapping):
        return block_messages(body, role=role, kind=kind)
    if "content" not in body and (rest := {k: v for k, v in body.items() if k not in _ENVELOPE}):
        return [Message(role, "unknown", compact(rest))]
    return block_messages(body.get("content"), role=role, kind=kind)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _content_text(content: object) -> str:
    return "\n".join(message.text for message in block_messages(content, role="user", kind="text"))


def _error_text(value: object) -> str | None:
    if isinstance(value, dict) and value:
        return compact(value)
    return _text(value)


def _one_line(text: str) -> str:
    line = " ".join(text[: 4 * _TITLE_CHARS].split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"
