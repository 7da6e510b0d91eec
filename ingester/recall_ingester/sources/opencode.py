"""opencode: the databases in its data folder, and the JSON files of the versions before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from recall.errors import SourceError
from recall_ingester.sources.base import (
    Container,
    DocumentParser,
    LeavesOut,
    Reads,
    SourceBase,
    SourceFile,
)
from recall_ingester.sources.opencode_parser import SessionParser
from recall_ingester.sources.opencode_storage import Storage, session_info_folder
from recall_ingester.sources.opencode_tables import open_tables
from recall_ingester.walk import Walk

#: Folders without sessions, and those of the old storage that are read only for a session.
_OTHER_FOLDERS = frozenset(
    {
        "bin", "log", "message", "node_modules", "part", "session_diff", "snapshot", "tool-output",
        "worktree",
    }
)  # fmt: skip


class OpenCode(SourceBase):
    """Databases ``opencode.db`` and ``opencode-<channel>.db``, and the folder ``storage``.

    A client made from opencode has the same files under another ``stem``.
    """

    leaves_out = (
        LeavesOut("account*, credential*, control_account*", "keys and tokens; never read"),
        LeavesOut("event*", "a log of changes to the tables that are read"),
        LeavesOut("todo", "the list that the last call of the todo tool wrote"),
        LeavesOut("session_input", "a prompt in waiting; it becomes a message"),
        LeavesOut(
            "permission, workspace, session_share, instruction*", "settings, no conversation"
        ),
        LeavesOut("session.summary_diffs", "diffs of whole files, made from git"),
        LeavesOut("session.revert.diff", "the diff of a pending revert, made from git"),
        LeavesOut("session.permission", "settings"),
        LeavesOut("session.metadata", "settings of whoever started the session"),
        LeavesOut("session.share_url", "an address of the client's service"),
        LeavesOut("slug, session.slug", "a second, made-up name"),
        LeavesOut("session.path", "the directory, relative to the project"),
        LeavesOut("project", "names, icons and commands of the project; its folder is kept"),
        LeavesOut("message.data.summary.diffs", "diffs of whole files, made from git"),
        LeavesOut("message.data.format", "the schema that an answer had to follow"),
        LeavesOut("message.data.path", "the directory again, with every message"),
        LeavesOut("message.data.metadata.tool", "titles and previews of results (first versions)"),
        LeavesOut("**.responseHeaders", "HTTP headers of a failed request"),
        LeavesOut("**.snapshot", "ids of git trees"),
        LeavesOut("hash, part.data.hash", "the id of a git tree"),
        LeavesOut("files, part.data.files", "files that a step changed; its tool calls name them"),
        LeavesOut(
            "reason, part.data.reason, finish, message.data.finish",
            "why a step ended, one word of the provider",
        ),
        LeavesOut(
            "metadata, part.data.metadata", "what the provider wants back: signatures, item ids"
        ),
        LeavesOut(
            "type, part.data.type, session_message.data.content.*.type,"
            " session_message.data.content.*.state.content.*.type",
            "what kind of part it is; unknown kinds are kept whole",
        ),
        LeavesOut(
            "id, part.id, projectID, session.project_id",
            "ids of parts and projects; a message is stored with its own",
        ),
        LeavesOut("role", "stored with each message; one without text has none"),
        LeavesOut(
            "agent, mode, variant, message.data.agent, message.data.mode, message.data.variant,"
            " session_message.data.agent",
            "which of the client's own ways of working was on",
        ),
        LeavesOut(
            "providerID, model.providerID, message.data.providerID, message.data.model.providerID,"
            " session.model.providerID, session_message.data.model.providerID",
            "who offers the model; its name is stored",
        ),
        LeavesOut(
            "state.status, part.data.state.status, session_message.data.content.*.state.status",
            "stored as whether the call failed",
        ),
        LeavesOut("mime, part.data.mime", "a media type"),
        LeavesOut("**.providerMetadata", "what the provider wants back: signatures, item ids"),
        LeavesOut("**.provider", "what the provider wants back: signatures, item ids"),
        LeavesOut("session_message.data.metadata", "where a message came from, for the client"),
        LeavesOut("**.state.metadata.**.diff", "the change that the arguments hold, as a diff"),
        LeavesOut("**.state.metadata.**.patch", "the change that the arguments hold, as a diff"),
        LeavesOut("**.state.metadata.**.filediff", "a whole file before and after an edit"),
        LeavesOut("**.state.metadata.**.before", "a whole file before an edit"),
        LeavesOut("**.state.metadata.**.after", "a whole file after an edit"),
        LeavesOut("**.state.metadata.preview", "the first lines of the output"),
        LeavesOut(
            "**.state.metadata.diagnostics", "of all files; the output has those of this one"
        ),
        LeavesOut("**.state.metadata.summary", "steps of a subagent, whose session has them"),
        LeavesOut("**.url", "bytes of attachments; a stub tells type, size and hash"),
    )

    def __init__(
        self,
        name: str = "opencode",
        title: str = "opencode",
        *,
        stem: str = "opencode",
        variable: str = "OPENCODE_DB",
    ) -> None:
        super().__init__()
        self.name = name
        self.title = title
        self.reads = (
            Reads(f"{stem}.db", "sessions", "container"),
            Reads(f"{stem}-<channel>.db", "sessions of another release channel", "container"),
            Reads("storage/", "sessions that no database beside it holds", "container"),
        )
        self._stem = stem
        self._variable = variable

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """The data folder, and the database that the environment names, if it lies elsewhere."""
        base = env.get("XDG_DATA_HOME")
        data = (Path(base) if base else user_home / ".local" / "share") / self._stem
        named = env.get(self._variable)
        if not named or named == ":memory:":
            return [data]
        path = data / Path(named).expanduser()
        if path.parent == data and self._is_database(path.name):
            return [data]
        return [path, data]

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """Databases, then storage folders. The root may be one of them itself."""
        self.unreadable = {}
        if root.is_file():
            yield self._database(root, root.stem)
            return
        walk = Walk(
            root,
            skip_folder=_OTHER_FOLDERS.__contains__,
            hidden=frozenset({".local", f".{self._stem}"}),
        )
        self.unreadable = walk.unreadable
        folders: dict[Path, None] = {}
        databases: list[Path] = []
        for path in walk.files():
            if self._is_database(path.name):
                databases.append(path)
            elif (folder := session_info_folder(path)) and folder.is_relative_to(root):
                folders[folder] = None
        for path in databases:
            yield self._database(path, path.relative_to(root).with_suffix("").as_posix())
        for folder in folders:
            relative = folder.relative_to(root).as_posix()
            relative = root.name if relative == "." else relative
            yield SourceFile(folder, self.name, "storage", "container", relative, always=True)

    def document_parser(self, file: SourceFile, external_id: str) -> DocumentParser:
        """The same parser for both kinds of places: they give the same lines."""
        del file
        return SessionParser(external_id)

    def container(self, file: SourceFile) -> AbstractContextManager[Container]:
        """The sessions of a database or of a storage folder."""
        if file.label == "storage":
            return self._storage(file.path)
        return open_tables(file.path)

    @contextmanager
    def _storage(self, folder: Path) -> Iterator[Storage]:
        yield Storage(folder, self._held_elsewhere(folder))

    def _held_elsewhere(self, folder: Path) -> frozenset[str]:
        """The sessions that newer stores hold.

        An unreadable one is an error: the old state of its sessions would replace the new one.
        """
        held: set[str] = set()
        data = folder.parent
        if data.parent.name == "project":  # the first layout had a folder for each project
            data = data.parent.parent
            held |= Storage(data / "storage", frozenset()).ids()
        for path in sorted(data.glob(f"{self._stem}*.db")):
            if not self._is_database(path.name):
                continue
            try:
                with open_tables(path) as tables:
                    held |= tables.ids()
            except SourceError as error:
                raise SourceError(
                    f"`{folder}` is not read, because sessions may have moved on: {error.message}",
                    hint=error.hint,
                ) from error
        return frozenset(held)

    def _database(self, path: Path, relative: str) -> SourceFile:
        storage = path.parent / "storage"
        return SourceFile(
            path,
            self.name,
            "database",
            "container",
            relative,
            companions=(path.with_name(path.name + "-wal"),),
            supersedes=storage if storage.is_dir() else None,
        )

    def _is_database(self, name: str) -> bool:
        if not name.endswith(".db") or ".corrupt-" in name:
            return False
        if name.startswith(f"{self._stem}-wal-"):
            return False
        return name == f"{self._stem}.db" or name.startswith(f"{self._stem}-")
