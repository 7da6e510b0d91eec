"""Gemini CLI: ``tmp/<project>/chats`` below ``~/.gemini``.

Any other folder may be given too: chat files that somebody copied there are found by their suffix.
What is known of the format, and from where, stands in docs/sources.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from recall.errors import SourceError
from recall.jsontext import MalformedLine, loads
from recall_ingester.reader import open_regular
from recall_ingester.sources.base import (
    DocumentParser,
    LeavesOut,
    Reads,
    SourceBase,
    SourceFile,
)
from recall_ingester.sources.gemini_parser import ChatParser, PromptsParser, session_id
from recall_ingester.walk import Walk

_PROMPTS = "logs.json"
_CHATS = "chats"
_SUFFIXES = frozenset({".json", ".jsonl"})
_SMALL_FILE_BYTES = 4_194_304
#: JSON of the client that lies beside chats in a folder that somebody copied.
_OTHER_FILES = frozenset(
    {
        "gemini-extension.json", "google_accounts.json", "logs.json", "mcp-oauth-tokens.json",
        "oauth_creds.json", "package-lock.json", "package.json", "projects.json",
        "settings.json", "state.json", "trustedFolders.json", "tsconfig.json",
    }
)  # fmt: skip


class GeminiCli(SourceBase):
    """Sessions in both formats, their subagents, and the prompt history of each project."""

    name = "gemini-cli"
    title = "Gemini CLI"
    #: The last name of the client's own folder, which holds ``tmp`` and ``projects.json``.
    home_name: ClassVar[str] = ".gemini"
    reads = (
        Reads("tmp/*/chats/**/*.jsonl", "sessions and their subagents, as logs", "document"),
        Reads("tmp/*/chats/*.json", "sessions of before February 2026", "document"),
        Reads("tmp/*/logs.json", "the prompt history of a project", "document"),
    )
    leaves_out = (
        LeavesOut("tmp/*/checkpoint-*.json", "copies that `/chat save` made of conversations"),
        LeavesOut("tmp/*/checkpoints/**", "file states to restore, with copies of conversations"),
        LeavesOut(
            "tmp/*/tool-outputs/**", "whole tool outputs that the conversation has cut short"
        ),
        LeavesOut("projects.json", "names the folder of each project; its path is stored"),
        LeavesOut("**.projectHash", "names the project, which is stored by its path"),
        LeavesOut("**.kind", "main or subagent; stored as the session's relation"),
        LeavesOut("**.memoryScratchpad", "the client's own digest of the messages"),
        LeavesOut("**.thoughtSignature", "encrypted; nobody can read it"),
        LeavesOut("**.inlineData.data", "bytes; the text has type, size and hash"),
        LeavesOut("**.toolCalls.*.description", "the tool's manual, or its arguments again"),
        LeavesOut("**.toolCalls.*.displayName", "the tool's name as a label"),
        LeavesOut("**.toolCalls.*.status", "stored as whether the call failed"),
        LeavesOut("**.toolCalls.*.agentId", "the id of the subagent, which has a session"),
        LeavesOut("**.resultDisplay.*.*.fg", "a colour of the screen"),
        LeavesOut("**.resultDisplay.*.*.bg", "a colour of the screen"),
        LeavesOut("**.tokens", "token counts"),
        LeavesOut(
            "type, messages.*.type, $set.messages.*.type, history.*.role",
            "stored as the role of the message; unknown types are kept whole",
        ),
        LeavesOut(
            "**.thoughts.*.timestamp, **.toolCalls.*.timestamp",
            "times inside a message, which has its own",
        ),
        LeavesOut("$set.lastUpdated, start_time", "stored as when the session began and ended"),
    )

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """``.gemini`` below ``$GEMINI_CLI_HOME``, else below the user's home."""
        configured = env.get("GEMINI_CLI_HOME")
        return [(Path(configured).expanduser() if configured else user_home) / self.home_name]

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """Chats and prompt histories below a root; a log wins over the conversation it took on."""
        self.unreadable = {}
        paths = list(self._home_files(root) if self._is_home(root) else self._files(root))
        known = set(paths)
        for path in paths:
            if path.suffix == ".json" and path.with_suffix(".jsonl") in known:
                continue
            legacy = path.with_suffix(".json")
            supersedes = legacy if path.suffix == ".jsonl" and legacy in known else None
            label = "prompts" if _is_prompts(path) else "chat"
            yield SourceFile(
                path, self.name, label, "document",
                path.relative_to(root).with_suffix("").as_posix(),
                owns_session=label == "chat", supersedes=supersedes,
            )  # fmt: skip

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """``sessionId`` of a metadata record, or of a whole conversation."""
        return session_id(value)

    def document_parser(self, file: SourceFile, external_id: str) -> DocumentParser:
        """A parser by what the file is."""
        if file.label == "prompts":
            return PromptsParser(_project(file.path.parent))
        chats = _chats_folder(file.path)
        parent = file.path.parent
        return ChatParser(
            external_id,
            is_log=file.path.suffix != ".json",
            project=_project(chats.parent) if chats else None,
            parent_id=parent.name if chats and parent != chats else None,
        )

    def _is_home(self, root: Path) -> bool:
        return root.name == self.home_name or next(root.glob(f"tmp/*/{_CHATS}"), None) is not None

    def _home_files(self, root: Path) -> Iterator[Path]:
        """Only what lies at the client's own places; a project may be named like any folder."""
        next(root.iterdir(), None)  # a root that cannot be listed is an error, not empty
        seen: set[tuple[int, int]] = set()
        for project in self._entries(root / "tmp"):
            try:
                status = project.stat()
            except OSError:  # a dangling link
                continue
            if (status.st_dev, status.st_ino) in seen or not project.is_dir():
                continue
            seen.add((status.st_dev, status.st_ino))
            if (prompts := project / _PROMPTS).is_file():
                yield prompts
            if (chats := project / _CHATS).is_dir():
                yield from self._chat_files(chats)

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return sorted(folder.iterdir())
        except FileNotFoundError:  # installed and never used
            return []
        except OSError as error:
            self.unreadable[folder] = error.strerror or type(error).__name__
            return []

    def _chat_files(self, chats: Path) -> Iterator[Path]:
        walk = Walk(chats)
        try:
            yield from (path for path in walk.files() if path.suffix in _SUFFIXES)
        except OSError as error:
            self.unreadable[chats] = error.strerror or type(error).__name__
        self.unreadable.update(walk.unreadable)

    def _files(self, root: Path) -> Iterator[Path]:
        """Everything that may be a chat; the client's homes below a root keep to their places."""
        walk = Walk(
            root,
            skip_folder=frozenset({"node_modules"}).__contains__,
            hidden=frozenset({self.home_name}),
        )
        self.unreadable = walk.unreadable
        for path in walk.files():
            in_home = self.home_name in path.relative_to(root).parts[:-1]
            if _is_prompts(path) or _may_be_chat(path, in_home=in_home):
                yield path


def _may_be_chat(path: Path, *, in_home: bool) -> bool:
    if path.suffix not in _SUFFIXES:
        return False
    if _chats_folder(path) is not None:
        return True
    other = path.name in _OTHER_FILES or path.name.startswith("checkpoint-")
    return not (in_home or other)


def _is_prompts(path: Path) -> bool:
    return path.name == _PROMPTS and _chats_folder(path) is None and _is_project(path.parent)


def _is_project(folder: Path) -> bool:
    places = (folder / _CHATS, folder / ".project_root")
    return folder.parent.name == "tmp" or any(place.exists() for place in places)


def _chats_folder(path: Path) -> Path | None:
    """The ``chats`` folder that a file lies in, or in a subagents' folder of."""
    return next((folder for folder in list(path.parents)[:2] if folder.name == _CHATS), None)


def _project(folder: Path) -> str | None:
    """The working directory that a project's folder in ``tmp`` stands for.

    ``.project_root`` beside the chats names it; else the registry maps it to the folder's name,
    which was the hash of it in older versions.
    """
    written = _small_file(folder / ".project_root")
    if written and (root := written.decode("utf-8", "replace").strip()):
        return root.split("\n", 1)[0].strip()
    listed = _small_file(folder.parent.parent / "projects.json")
    try:
        registry, _damaged = loads(listed) if listed else (None, False)
    except MalformedLine:
        return None
    projects = registry.get("projects") if isinstance(registry, dict) else None
    for path, slug in projects.items() if isinstance(projects, dict) else ():
        if folder.name in (slug, _hash(path)):
            return path if isinstance(path, str) else None
    return None


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()


def _small_file(path: Path) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read(_SMALL_FILE_BYTES)
    except (OSError, SourceError):  # not there, or not for us to read
        return None
