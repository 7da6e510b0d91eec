"""Codex: rollouts below ``sessions`` and ``archived_sessions`` of ``$CODEX_HOME`` or ``~/.codex``.

Any other folder may be given too; every rollout below it is found. What is known of the format, and
from where, stands in docs/sources.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recall_ingester.sources.base import (
    LeavesOut,
    Parser,
    Reads,
    Shape,
    SourceBase,
    SourceFile,
)
from recall_ingester.sources.codex_header import header_id
from recall_ingester.sources.codex_parser import IndexParser, RolloutParser
from recall_ingester.walk import Walk

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ROLLOUT = re.compile(rf"rollout-\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d-(?P<id>{_UUID}(?:_[\w-]+)?)")
_SUFFIXES = (".jsonl", ".json")

#: Folders of the client's own home that hold no conversation, but may hold other people's files.
_OTHER_FOLDERS = frozenset(
    {
        "cache", "log", "logs", "memories", "node_modules", "plugins", "prompts", "skills", "tmp",
        "vendor_imports", "worktrees",
    }
)  # fmt: skip
#: Files beside the rollouts that tell something about them, by their label.
_INDEXES = {"history.jsonl": "prompts", "session_index.jsonl": "titles"}
_HOME_NAME = ".codex"


_BYTES_ONLY = "kept as original bytes only"
_STATE = "a setting or the state of the client, nothing that anybody wrote"

#: What is not stored as text. The original bytes of all files that are read are kept.
LEAVES_OUT = (
    LeavesOut("*.sqlite", "caches of the rollouts, apart from some titles"),
    LeavesOut("auth.json", "credentials"),
    LeavesOut(".rollout-*.tmp", "a rollout while the client rewrites it"),
    LeavesOut("payload.base_instructions", f"the client's own system prompt; {_BYTES_ONLY}"),
    LeavesOut(
        "type=session_meta.payload.dynamic_tools",
        f"the manuals of tools that the client offers to the model; {_BYTES_ONLY}",
    ),
    LeavesOut("payload.final_output_json_schema", "the form that an answer had to have"),
    LeavesOut(
        "payload.encrypted_content, payload.replacement_history.*.encrypted_content",
        "encrypted; nobody can read it",
    ),
    LeavesOut(
        "type, payload.type, payload.content.*.type, payload.summary.*.type,"
        " payload.output.type, payload.output.*.type, payload.content_items.*.type,"
        " payload.item.type, payload.item.content.*.type, payload.item.action.type,"
        " payload.item.result.content.*.type, payload.result.Ok.content.*.type,"
        " payload.replacement_history.*.type, payload.replacement_history.*.content.*.type,"
        " payload.replacement_history.*.summary.*.type, payload.tools.*.type",
        "what kind of record or part it is; unknown kinds are kept whole",
    ),
    LeavesOut(
        "payload.parsed_cmd, payload.item.parsed_cmd", "the command once more, taken to pieces"
    ),
    LeavesOut(
        "timestamp, payload.timestamp, payload.started_at, payload.role,"
        " payload.replacement_history.*.role, type=turn_context.payload.model,"
        " type=turn_context.payload.collaboration_mode.**.model,"
        " payload.type=token_count.info.model",
        "stored with each message; a record without text, or with a text that another one told,"
        " has none",
    ),
    LeavesOut(
        "payload.turn_id, payload.metadata.turn_id, parent_id, payload.item.id,"
        " payload.internal_chat_message_metadata_passthrough.turn_id,"
        " payload.replacement_history.*.id,"
        " payload.replacement_history.*.internal_chat_message_metadata_passthrough.turn_id,"
        " payload.window_id, payload.previous_window_id, payload.first_window_id,"
        " payload.context_window.window_id",
        "ids between records; a message is stored with its own",
    ),
    LeavesOut("type=session_meta.payload.id", "the parent's id in a header that was copied"),
    LeavesOut(
        "type=turn_context.payload.approval_policy, type=turn_context.payload.sandbox_policy,"
        " type=turn_context.payload.summary, type=turn_context.payload.effort,"
        " type=turn_context.payload.collaboration_mode.mode,"
        " type=turn_context.payload.collaboration_mode.settings.reasoning_effort,"
        " type=turn_context.payload.personality, type=turn_context.payload.truncation_policy,"
        " type=turn_context.payload.permission_profile, type=turn_context.payload.timezone,"
        " type=turn_context.payload.file_system_sandbox_policy,"
        " type=turn_context.payload.approvals_reviewer,"
        " type=turn_context.payload.multi_agent_mode",
        _STATE,
    ),
    LeavesOut(
        "type=session_meta.payload.originator, type=session_meta.payload.source,"
        " type=session_meta.payload.model_provider, type=session_meta.payload.history_mode,"
        " type=session_meta.payload.memory_mode",
        _STATE,
    ),
    LeavesOut(
        "type=session_meta.payload.git.repository_url, type=session_meta.payload.git.commit_hash",
        "the state of the working copy; its branch is stored",
    ),
    LeavesOut(
        "payload.agent_nickname, payload.agent_role, payload.agent_path",
        "made-up name, role and place of a subagent",
    ),
    LeavesOut(
        "type=world_state.payload.state.collaboration_mode,"
        " type=world_state.payload.state.environments.timezone,"
        " type=world_state.payload.state.multi_agent_mode,"
        " type=world_state.payload.state.personality",
        _STATE,
    ),
    LeavesOut(
        "payload.phase, payload.item.phase, payload.status, payload.execution,"
        " payload.collaboration_mode_kind, payload.type=exec_command_end.source",
        _STATE,
    ),
    LeavesOut(
        "payload.thread_settings.model_provider_id, payload.thread_settings.reasoning_effort,"
        " payload.thread_settings.service_tier, payload.thread_settings.approval_policy,"
        " payload.thread_settings.approvals_reviewer, payload.thread_settings.personality,"
        " payload.thread_settings.active_permission_profile,"
        " payload.thread_settings.collaboration_mode.mode,"
        " payload.thread_settings.permission_profile",
        _STATE,
    ),
    LeavesOut(
        "payload.type=token_count.rate_limits, payload.type=account/rateLimits/updated.rate_limits",
        "limits of the account",
    ),
    LeavesOut("payload.result.Ok._meta", "how the client draws a result"),
    LeavesOut("payload.namespace, payload.tools.*.name", "stored as a part of the tool's name"),
    LeavesOut("thread_name, updated_at", "an earlier name of a thread; the last one is its title"),
)


class Codex(SourceBase):
    """Rollouts in every format since April 2025, the prompt history and the title index."""

    reads = (
        Reads("sessions/Y/M/D/rollout-*.jsonl[.zst]", "sessions", "lines"),
        Reads("archived_sessions/rollout-*.jsonl[.zst]", "sessions", "lines"),
        Reads("sessions/rollout-*.json", "sessions of early 2025", "whole"),
        Reads("history.jsonl", "prompts", "lines"),
        Reads("session_index.jsonl", "names of sessions", "lines"),
    )
    leaves_out = LEAVES_OUT

    def __init__(self, name: str = "codex", title: str = "Codex") -> None:
        super().__init__()
        self.name = name
        self.title = title

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """``$CODEX_HOME``, else ``~/.codex``."""
        if configured := env.get("CODEX_HOME"):
            return [Path(configured).expanduser()]
        return [user_home / _HOME_NAME]

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """Rollouts and index files below a root; a plain file wins over its compressed copy."""
        skip = _OTHER_FOLDERS if _is_home(root) else frozenset()
        walk = Walk(root, skip_folder=skip.__contains__, hidden=frozenset({_HOME_NAME}))
        self.unreadable = walk.unreadable
        paths = list(walk.files())
        plain = set(paths)
        for path in paths:
            if path.suffix == ".zst" and path.with_suffix("") in plain:
                continue
            if file := self._describe(path, root):
                yield file

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """The thread id of a header; ``None`` for a file that begins with another record."""
        return header_id(value)

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:
        """A parser by what the file is."""
        if file.label in _INDEXES.values():
            return IndexParser(state)
        thread, reverted, _ = (file.natural_id or "").partition("_")
        return RolloutParser(external_id, state, reverted_from=thread if reverted else None)

    def _describe(self, path: Path, root: Path) -> SourceFile | None:
        compressed = path.suffix == ".zst"
        name = path.with_suffix("").name if compressed else path.name
        stem, suffix = Path(name).stem, Path(name).suffix
        if suffix not in _SUFFIXES or ".legacy-before-pagination" in name:
            return None
        if suffix == ".json" and not name.startswith("rollout-"):
            return None
        relative = (path.relative_to(root).parent / stem).as_posix()
        beside_home = path.parent == root or path.parent.name == _HOME_NAME
        if beside_home and name in _INDEXES:
            label = _INDEXES[name]
            return SourceFile(
                path, self.name, label, "lines", relative,
                compressed=compressed, owns_session=False,
            )  # fmt: skip
        shape: Shape = "whole" if suffix == ".json" else "lines"
        match = _ROLLOUT.fullmatch(stem)
        natural = match["id"] if match else None
        return SourceFile(
            path, self.name, "rollout", shape, relative, natural, compressed=compressed
        )


def _is_home(root: Path) -> bool:
    return root.name == _HOME_NAME or any(
        (root / name).is_dir() for name in ("sessions", "archived_sessions")
    )
