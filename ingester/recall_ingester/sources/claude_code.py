"""Claude Code: ``projects/<folder>/<session>.jsonl`` below ``$CLAUDE_CONFIG_DIR`` or ``~/.claude``.

The format has no published schema; what is known of it, and from where, stands in docs/sources.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recall_ingester.sources.base import LeavesOut, Parser, Reads, SourceBase, SourceFile
from recall_ingester.sources.claude_history import HistoryParser
from recall_ingester.sources.claude_transcript import (
    STATE_ATTACHMENTS,
    SidecarParser,
    SpillParser,
    TranscriptParser,
)
from recall_ingester.walk import Walk

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

#: Folders of the client that hold no conversation.
_OTHER_FOLDERS = frozenset(
    {
        "file-history", "memory", "paste-cache", "plans", "plugins", "session-memory", "sessions",
        "shell-snapshots", "statsig", "tasks", "telemetry", "todos",
    }
)  # fmt: skip


_STORED_WITH_MESSAGES = "stored with each message; a record without text has none"
_STATE = "a switch or the state of the client, nothing that anybody wrote"
_IDS = "ids between records; a message is stored with its own"
_BYTES_ONLY = "kept as original bytes only"

#: What is not stored as text. The original bytes of all files that are read are kept.
LEAVES_OUT = (
    LeavesOut("file-history/, plans/, todos/, shell-snapshots/", "no conversation"),
    LeavesOut("memory/*.md", "read by the source `memory`"),
    LeavesOut("sessions-index.json", "an index that the client makes from the sessions"),
    LeavesOut("type=progress", f"what a running tool or subagent shows meanwhile; {_BYTES_ONLY}"),
    LeavesOut(
        "type=file-history-snapshot, type=file-history-delta",
        f"names of the client's copies of files; {_BYTES_ONLY}",
    ),
    LeavesOut("type=last-prompt.lastPrompt", "the beginning of the last prompt, which is stored"),
    LeavesOut(
        ", ".join(f"attachment.type={kind}" for kind in sorted(STATE_ATTACHMENTS)),
        f"what the client tells the model about its own state; {_BYTES_ONLY}",
    ),
    LeavesOut(
        "toolUseResult.structuredPatch, toolUseResult.originalFile",
        f"a file before an edit and the diff; the call has what was edited; {_BYTES_ONLY}",
    ),
    LeavesOut(
        "toolUseResult.file.content", "the file that was read; its lines stand in the result"
    ),
    LeavesOut("message.content.*.signature", "a signature of the model's reasoning, not text"),
    LeavesOut("message.content.*.type=redacted_thinking.data", "encrypted; nobody can read it"),
    LeavesOut(
        "type, subtype, message.type, message.content.*.type, message.content.*.source.type,"
        " message.content.*.content.*.type, message.content.*.content.*.source.type,"
        " message.content.*.caller.type, attachment.type, attachment.prompt.*.source.type,"
        " toolUseResult.type, toolUseResult.*.type, toolUseResult.content.*.type",
        "what kind of record or block it is; unknown kinds are kept whole",
    ),
    LeavesOut("timestamp, message.role, message.model", _STORED_WITH_MESSAGES),
    LeavesOut(
        "sessionId, session_id, agentId, worktreeSession.sessionId",
        "stored as the session's id; a copied file has its own",
    ),
    LeavesOut(
        "uuid, parentUuid, logicalParentUuid, leafUuid, messageId, toolUseID, sourceToolUseID,"
        " promptId, requestId, message.id, attachment.toolUseID, refusedUserMessageUuid,"
        " retractedMessageUuids, toolUseResult.results.*.tool_use_id",
        _IDS,
    ),
    LeavesOut(
        "userType, entrypoint, permissionMode, promptSource, sessionKind, origin.kind, effort,"
        " level, operation, source, direction, thinkingMetadata.level, thinkingMetadata.kind,"
        " toolDenialKind, apiRefusalCategory, errorDetails.code, attachment.commandMode,"
        " attachment.hookName, attachment.hookEvent, toolUseResult.mode, toolUseResult.status,"
        " compactMetadata.trigger, trigger, fallbackModel",
        _STATE,
    ),
    LeavesOut("type=mode.mode", _STATE),
    LeavesOut(
        "message.usage, toolUseResult.usage, message.stop_reason, message.stop_details.type,"
        " message.diagnostics.cache_miss_reason.type",
        "token counts, and one word for why the model stopped",
    ),
    LeavesOut(
        "attributionPlugin, attributionSkill, attributionMcpServer, attributionMcpTool,"
        " attributionAgent",
        "whose tokens an answer counts as",
    ),
    LeavesOut("model", "what a subagent was started with; its session has that of its answers"),
    LeavesOut("agentName, teamName", "names of an agent and its team, with every record"),
    LeavesOut("slug", "a second, made-up name of the session"),
    LeavesOut(
        "type=system.hookInfos.*.command, attachment.command", "commands of the user's hooks"
    ),
    LeavesOut(
        "relocatedCwd, worktreeSession.worktreePath",
        "becomes the folder of the messages that follow",
    ),
    LeavesOut("worktreeSession.worktreeBranch", "stored with the messages that follow"),
    LeavesOut("toolUseResult.returnCodeInterpretation", "what an exit code means, in words"),
)


class ClaudeCode(SourceBase):
    """Main sessions, subagents in both layouts, spilled tool output and the prompt history."""

    reads = (
        Reads("projects/*/<session>.jsonl", "sessions", "lines"),
        Reads("projects/*/**/agent-*.jsonl", "subagents, as sessions of their own", "lines"),
        Reads("projects/*/**/agent-*.meta.json", "title and model of a subagent", "whole"),
        Reads("projects/*/<session>/tool-results/*", "tool output too long for the log", "whole"),
        Reads("history.jsonl", "prompts, with pasted texts from paste-cache/", "lines"),
    )
    leaves_out = LEAVES_OUT

    def __init__(self, name: str = "claude-code", title: str = "Claude Code") -> None:
        super().__init__()
        self.name = name
        self.title = title

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """``$CLAUDE_CONFIG_DIR`` (one folder, or several with commas), else the usual places."""
        if configured := env.get("CLAUDE_CONFIG_DIR"):
            return [
                Path(part.strip()).expanduser() for part in configured.split(",") if part.strip()
            ]
        return [user_home / ".claude", user_home / ".config" / "claude"]

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """Transcripts, sidecars, spilled outputs and prompt histories below a root."""
        walk = Walk(root, skip_folder=_OTHER_FOLDERS.__contains__, hidden=frozenset({".claude"}))
        self.unreadable = walk.unreadable
        for path in walk.files():
            if file := self._describe(path, root):
                yield file

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """``<parent>/agent-<id>`` for a subagent file that lies beside its parent's."""
        parent, agent = value.get("sessionId"), value.get("agentId")
        if value.get("isSidechain") is True and isinstance(parent, str) and isinstance(agent, str):
            return f"{parent}/agent-{agent.removeprefix('agent-')}"
        return None

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:
        """A parser by what the file is."""
        if file.label == "prompts":
            return HistoryParser(file.path.parent)
        if file.label == "sidecar":
            return SidecarParser(file.natural_id or external_id)
        if file.label == "spill":
            return SpillParser(external_id)
        return TranscriptParser(external_id, state)

    def _describe(self, path: Path, root: Path) -> SourceFile | None:
        relative = path.relative_to(root)
        stem = relative.with_suffix("").as_posix()
        if "tool-results" in relative.parts[:-1] and path.suffix in {".txt", ".json"}:
            at = relative.parts.index("tool-results")
            owner = relative.parts[at - 1] if at else "unknown"
            output = f"{owner}/tool-results/{path.name}"
            return SourceFile(path, self.name, "spill", "whole", relative.as_posix(), output)
        if path.name.endswith(".meta.json") and path.name.startswith("agent-"):
            natural = _agent_id(relative, path.name.removesuffix(".meta.json"))
            return SourceFile(
                path, self.name, "sidecar", "whole", stem, natural, owns_session=False
            )
        if path.suffix != ".jsonl":
            return None
        if path.name == "history.jsonl":
            return SourceFile(path, self.name, "prompts", "lines", stem, owns_session=False)
        return SourceFile(path, self.name, "transcript", "lines", stem, _natural_id(relative))


def _natural_id(relative: Path) -> str | None:
    """The session id that the path gives: the stem of a main file, parent and stem of an agent's.

    A stem that is no UUID is a renamed copy or a hand-made file; such names repeat in different
    folders, so the path below the root identifies it instead.
    """
    if relative.name.startswith("agent-"):
        return _agent_id(relative, relative.stem)
    return relative.stem if _UUID.fullmatch(relative.stem) else None


def _agent_id(relative: Path, stem: str) -> str | None:
    folders = relative.parts[:-1]
    if "subagents" not in folders:
        return None
    at = folders.index("subagents")
    return f"{folders[at - 1]}/{stem}" if at else None
