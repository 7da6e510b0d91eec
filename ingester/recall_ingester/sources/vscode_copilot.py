"""VS Code chats (Copilot and other participants) in the ``User`` folders of VS Code and its forks.

A chat is a JSON document, since version 1.109 kept as a log of changes to it. Any other folder may
be given too; the chats in every folder of the client's names below it are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from recall.hygiene import REPLACEMENT, clean
from recall.jsontext import MalformedLine, loads
from recall.records import Message, Parsed, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.base import (
    Document,
    LeavesOut,
    Reads,
    SourceBase,
    SourceFile,
    Unit,
)
from recall_ingester.sources.object_log import Removed, replay
from recall_ingester.sources.vscode_readable import (
    UNTOLD,
    Value,
    address,
    items,
    leftovers,
    mapping,
    string,
)
from recall_ingester.sources.vscode_removed import taken_back
from recall_ingester.sources.vscode_requests import model_of, request_units, user_text
from recall_ingester.walk import Walk

_PRODUCTS = (
    "Code", "Code - Insiders", "Code - OSS", "VSCodium", "Cursor", "Windsurf", "Trae", "Positron",
)  # fmt: skip
_OF_WORKSPACE = "chatSessions"
_HOLDERS = frozenset({_OF_WORKSPACE, "emptyWindowChatSessions", "transferredChatSessions"})
_SUFFIXES = (".jsonl", ".json")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

#: Folders of the client that hold no chat but may hold many files.
_OTHER_FOLDERS = frozenset(
    {"chatEditingSessions", "History", "images", "node_modules", "snippets", "sync"}
)
#: Chats whose id leads into the store of another client, which is a source of its own.
_OTHER_STORES = ("claude-code:/", "copilotcli:/")

_TITLE_CHARS = 120
_NAME_RANK, _FIRST_MESSAGE_RANK = 50, 10
_SMALL_FILE_BYTES = 100_000
#: The part beside the first message where fields of the whole chat stand that are not known.
_REST_PART = 3

_FILES_LEFT_OUT = (
    ("**/state.vscdb", "only an index of the chats and the state of the editor"),
    (
        "**/GitHub.copilot-chat/transcripts/*.jsonl",
        "the same chats once more, as the agent saw them",
    ),
    ("**/GitHub.copilot-chat/debug-logs/**", "traces of the program"),
    (
        "**/GitHub.copilot-chat/chat-session-resources/**",
        "long tool results that a chat refers to",
    ),
    ("**/chatEditingSessions/**", "copies of files, to undo edits"),
    (
        "sessionId=claude-code:/*",
        "a chat with the id of another client's session; it is read from that client's own files",
    ),
    (
        "sessionId=copilotcli:/*",
        "a chat with the id of another client's session; it is read from that client's own files",
    ),
)
_FIELDS_LEFT_OUT = (
    ("version", "the version of the format"),
    ("inputState", "what is typed and not sent yet"),
    ("repoData.diffs", "changes of the working copy, not of the conversation"),
    ("repoData.remoteUrl", "state of the working copy"),
    ("repoData.remoteTrackingBranch", "state of the working copy"),
    ("repoData.remoteBaseBranch", "state of the working copy"),
    ("repoData.remoteHeadCommit", "state of the working copy"),
    ("repoData.localHeadCommit", "state of the working copy"),
    ("repoData.workspaceType", "a word of the program for what a value is"),
    ("repoData.syncStatus", "a word of the program for what a value is"),
    ("repoData.repoType", "a word of the program for what a value is"),
    ("customTitle", "earlier titles; the last one is the session's"),
    ("responderUsername", "the name of the participant, the same in each chat"),
    ("requesterUsername", "the name of the user, the same in each chat"),
    ("responderAvatarIconUri", "how the client draws it"),
    ("requesterAvatarIconUri", "how the client draws it"),
    ("initialLocation", "a word of the program for what a value is"),
    ("sendOptions", "how a queued message will be sent"),
    ("toolName", "an announcement of the call that follows"),
    ("metadata.stopReason", "a word of the program for why the model stopped"),
    ("isConfirmed", "how a call was allowed; a reason that was given is stored"),
)
#: Fields of the whole chat that become units, part of the session, or nothing.
_KNOWN_FIELDS = frozenset(
    {"requests", "pendingRequests", "sessionId", "creationDate", "lastMessageDate", "repoData"}
    | {key for key, _ in _FIELDS_LEFT_OUT}
)


class VsCodeCopilot(SourceBase):
    """Chats as ``.jsonl`` (a log of changes) and ``.json`` (up to version 1.108)."""

    reads = (
        Reads("workspaceStorage/*/chatSessions/*.jsonl", "a chat of a workspace", "document"),
        Reads("workspaceStorage/*/chatSessions/*.json", "the same up to VS Code 1.108", "document"),
        Reads("workspaceStorage/*/workspace.json", "the project of its chats", "document"),
        Reads("globalStorage/emptyWindowChatSessions/*", "a chat without a workspace", "document"),
        Reads("globalStorage/transferredChatSessions/*", "a chat on its way", "document"),
        Reads("profiles/*/**", "the same in a profile", "document"),
    )
    leaves_out = (
        *(LeavesOut(where, why) for where, why in _FILES_LEFT_OUT),
        LeavesOut("k", "the place that a change in a log of changes is about"),
        *(LeavesOut(f"**.{key}", why) for key, why in _FIELDS_LEFT_OUT),
        *(LeavesOut(f"**.{key}", why) for key, why in UNTOLD.items()),
    )

    def __init__(self, name: str = "vscode-copilot", title: str = "VS Code chat") -> None:
        super().__init__()
        self.name = name
        self.title = title

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """The ``User`` folder of each product, in the places of each platform."""
        bases = [
            Path(env.get("XDG_CONFIG_HOME") or user_home / ".config"),
            user_home / "Library" / "Application Support",
            Path(env.get("APPDATA") or user_home / "AppData" / "Roaming"),
        ]
        if moved := env.get("VSCODE_APPDATA"):
            bases.insert(0, Path(moved))
        roots = [base / product / "User" for base in bases for product in _PRODUCTS]
        if portable := env.get("VSCODE_PORTABLE"):
            roots.insert(0, Path(portable) / "user-data" / "User")
        return list(dict.fromkeys(roots))

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """Chats below a root. Of two files of one chat only the log is given, as its successor."""
        # In the client's own folders, a name with a dot is that of an extension.
        own = _is_client_folder(root)
        walk = Walk(root, skip_folder=lambda name: name in _OTHER_FOLDERS or (own and "." in name))
        self.unreadable = walk.unreadable
        paths = [
            path
            for path in walk.files()
            if path.parent.name in _HOLDERS and path.suffix in _SUFFIXES
        ]
        known = set(paths)
        for path in paths:
            if path.suffix == ".jsonl" or path.with_suffix(".jsonl") not in known:
                yield self._describe(path, root, known)

    def _describe(self, path: Path, root: Path, known: set[Path]) -> SourceFile:
        older = path.with_suffix(".json")
        beside = _workspace_file(path)
        return SourceFile(
            path=path,
            source=self.name,
            label="chat",
            shape="document",
            relative=path.relative_to(root).with_suffix("").as_posix(),
            natural_id=path.stem if _UUID.fullmatch(path.stem) else None,
            companions=(beside,) if beside and beside.is_file() else (),
            supersedes=older if path.suffix == ".jsonl" and older in known else None,
        )

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """The session id of a document, or of the document that a log begins with."""
        document = mapping(value.get("v")) if value.get("kind") == 0 else value
        return string(document.get("sessionId"))

    def document_parser(self, file: SourceFile, external_id: str) -> ChatParser:
        """A parser for one chat."""
        return ChatParser(file.path, external_id)


def _is_client_folder(root: Path) -> bool:
    if "workspaceStorage" in (root.name, root.parent.name):
        return True
    return any((root / name).is_dir() for name in ("workspaceStorage", "globalStorage"))


def _workspace_file(path: Path) -> Path | None:
    """The file that names the workspace of a chat; ``None`` for a chat without one."""
    if path.parent.name != _OF_WORKSPACE:
        return None
    return path.parent.parent / "workspace.json"


class ChatParser:
    """One chat.

    A log is counted by the requests of its last document, not by its lines, which map to no
    message: each request is two units, and so is each queued one without its response. Only lines
    after a damaged one are counted, as skipped.
    """

    session: SessionDraft | None

    def __init__(self, path: Path, external_id: str) -> None:
        self._path = path
        self._external_id = external_id
        self.session = SessionDraft(external_id)

    def document(self, data: bytes) -> Document:
        """The live requests, and what the log took away."""
        result = Document()
        removed: list[Removed] = []
        if self._path.suffix == ".jsonl":
            log = replay(data)
            if not log.begun:
                raise MalformedLine("no whole document")
            state, removed, result.bad = log.state, log.removed, log.bad
            damaged = log.damaged
            for _ in range(log.unread):
                result.skip("after a damaged line")
        else:
            state, damaged = _whole(data)
        if not isinstance(state, Mapping):
            raise MalformedLine("not a chat")
        if (string(state.get("sessionId")) or "").startswith(_OTHER_STORES):
            self.session = None
            result.skip("stored by another client")
            return result
        requests = items(state.get("requests"))
        for index, request in enumerate(requests):
            result.units += request_units(request, index)
        result.units += _queued(state, len(requests))
        _add_rest(state, result.units)
        result.taken_back = taken_back(removed, requests, result.units)
        if damaged:
            _mark_damaged(result.units)
        self.session = self._draft(state, result.units)
        return result

    def _draft(self, state: Value, units: list[Unit]) -> SessionDraft:
        requests = [mapping(request) for request in items(state.get("requests"))]
        draft = SessionDraft(self._external_id, cwd=_project(self._path))
        name = _one_line(string(state.get("customTitle")) or "")
        titles = (_one_line(user_text(request)) for request in requests)
        draft.title = name or next((title for title in titles if title), None)
        draft.title_rank = _NAME_RANK if name else _FIRST_MESSAGE_RANK if draft.title else 0
        draft.branch = string(mapping(state.get("repoData")).get("localBranch"))
        for request in requests:
            draft.model = model_of(request) or draft.model
            agent = mapping(request.get("agent"))
            draft.client_version = string(agent.get("extensionVersion")) or draft.client_version
        times = [ts for unit in units if (ts := unit.parsed.ts)]
        created = parse_timestamp(state.get("creationDate"))
        draft.started_at = min([*times, created] if created else times, default=None)
        draft.ended_at = max(times, default=parse_timestamp(state.get("lastMessageDate")))
        return draft


def _whole(data: bytes) -> tuple[Any, bool]:
    """The document of a file that is no log, and whether its bytes were not all text."""
    state, damaged = loads(data.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n\x00"))
    if "requests" not in mapping(state):
        raise MalformedLine("not a chat")
    return state, damaged


def _mark_damaged(units: list[Unit]) -> None:
    """Mark the units that have what bytes were replaced by."""
    for unit in units:
        unit.is_damaged = any(REPLACEMENT in message.text for message in unit.parsed.messages)


def _add_rest(state: Value, units: list[Unit]) -> None:
    """Put what the document says in fields that are not known beside the first message."""
    rest = {key: value for key, value in state.items() if key not in _KNOWN_FIELDS}
    for key in ("requests", "pendingRequests"):
        if not isinstance(state.get(key), list):
            rest[key] = state.get(key)
    repository = state.get("repoData")
    if isinstance(repository, Mapping):
        repository = {
            key: value
            for key, value in repository.items()
            if f"repoData.{key}" not in _KNOWN_FIELDS
            and not (key == "localBranch" and isinstance(value, str))
        }
    rest["repoData"] = repository
    if not (text := leftovers(rest)):
        return
    if not units:
        units.append(Unit(0, Parsed()))
    units[0].parsed.skipped = None
    units[0].parsed.messages.append(Message("system", "meta", text, part=_REST_PART))


def _queued(state: Value, index: int) -> Iterator[Unit]:
    """Messages that wait to be sent, at the places that they will have."""
    for number, pending in enumerate(items(state.get("pendingRequests")), index):
        yield request_units(mapping(pending).get("request"), number)[0]


def _one_line(text: str) -> str | None:
    """The start of a text as a title."""
    words = " ".join(text[: _TITLE_CHARS * 20].split())
    return clean(words)[0][:_TITLE_CHARS].rstrip() or None


def _project(path: Path) -> str | None:
    """The folder or workspace file that the chat belongs to."""
    beside = _workspace_file(path)
    if beside is None:
        return None
    try:
        with beside.open("rb") as file:
            given = mapping(loads(file.read(_SMALL_FILE_BYTES))[0])
    except (OSError, MalformedLine):
        return None
    found = given.get("folder") or given.get("workspace") or given.get("configuration")
    uri = string(found) or address(found)
    return project_of(uri) if uri else None


def project_of(uri: str) -> str:
    """The path of a ``file:`` URI; anything else, such as a place on another machine, as it is."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    if parts.scheme != "file":
        return uri
    host = f"//{unquote(parts.netloc)}" if parts.netloc else ""
    path = unquote(parts.path)
    return host + (path[1:] if re.match(r"/[A-Za-z]:", path) else path)
