"""Gemini CLI: which files are found, what their place tells, and that no shape breaks a parser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recall.jsontext import MalformedLine, loads
from recall.records import SessionDraft
from recall_ingester.sources.base import Document, SourceFile, Unit
from recall_ingester.sources.gemini import GeminiCli
from recall_ingester.sources.gemini_parser import ChatParser
from recall_ingester.sources.toolinput import leaves

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "gemini"
LOG = FIXTURES / "session-2026-03-02T10-00-5e551011.jsonl"
OLD = FIXTURES / "session-2025-11-02T10-00-01d50000.json"
Record = dict[str, Any]
META: Record = {"sessionId": "own", "projectHash": "shop"}


def parse(data: bytes, *, is_log: bool = True) -> tuple[Document, SessionDraft]:
    parser = ChatParser("own", is_log=is_log, project=None, parent_id=None)
    return parser.document(data), parser.session


def texts(units: list[Unit]) -> list[tuple[int, str]]:
    return [(unit.ordinal, message.text) for unit in units for message in unit.parsed.messages]


def lines(*values: Record) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def user(name: str, text: object) -> Record:
    return {"id": name, "type": "user", "content": text}


def answer(name: str, text: object, **fields: Any) -> Record:
    return {"id": name, "type": "gemini", "content": text, **fields}


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}\n")


def found(root: Path) -> dict[str, SourceFile]:
    return {file.path.relative_to(root).as_posix(): file for file in GeminiCli().discover(root)}


def test_home_is_below_the_variable_or_the_users_home(tmp_path: Path) -> None:
    assert GeminiCli().roots({}, tmp_path) == [tmp_path / ".gemini"]
    assert GeminiCli().roots({"GEMINI_CLI_HOME": "/d"}, tmp_path) == [Path("/d/.gemini")]


def test_home_gives_chats_subagents_and_prompts_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / ".gemini"
    touch(
        home,
        "tmp/history/chats/session-1.jsonl",
        "tmp/history/chats/0f0f/child.jsonl",
        "tmp/history/chats/session-0.json",
        "tmp/history/chats/session-1.jsonl.unreadable-17",
        "tmp/history/logs.json",
        "tmp/history/checkpoint-a.json",
        "tmp/history/checkpoints/session-a.json",
        "tmp/history/tool-outputs/session-0f0f/a.json",
        "settings.json",
        "antigravity/brain/a.jsonl",
    )
    files = found(home)
    assert {name: (f.label, f.shape, f.owns_session) for name, f in files.items()} == {
        "tmp/history/chats/0f0f/child.jsonl": ("chat", "document", True),
        "tmp/history/chats/session-0.json": ("chat", "document", True),
        "tmp/history/chats/session-1.jsonl": ("chat", "document", True),
        "tmp/history/logs.json": ("prompts", "document", False),
    }
    assert files["tmp/history/logs.json"].relative == "tmp/history/logs"
    assert {file.natural_id for file in files.values()} == {None}


def test_a_log_takes_on_the_conversation_of_the_same_stem(tmp_path: Path) -> None:
    touch(tmp_path, "chats/session-a.json", "chats/session-a.jsonl", "chats/session-b.json")
    files = found(tmp_path)
    assert list(files) == ["chats/session-a.jsonl", "chats/session-b.json"]
    assert files["chats/session-a.jsonl"].supersedes == tmp_path / "chats/session-a.json"
    assert files["chats/session-b.json"].supersedes is None


def test_any_folder_can_be_given(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "session-1.json",
        "old/whatever.jsonl",
        "old/logs.json",
        "package.json",
        "laptop/.gemini/projects.json",
        "laptop/.gemini/oauth.json",
        "laptop/.gemini/tmp/shop/chats/session-2.jsonl",
        "laptop/.gemini/tmp/shop/logs.json",
        "laptop/.gemini/tmp/shop/checkpoint-a.json",
    )
    assert {name: file.label for name, file in found(tmp_path).items()} == {
        "session-1.json": "chat",
        "old/whatever.jsonl": "chat",
        "laptop/.gemini/tmp/shop/chats/session-2.jsonl": "chat",
        "laptop/.gemini/tmp/shop/logs.json": "prompts",
    }


def test_a_home_that_was_never_used_is_empty_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / ".gemini"
    with pytest.raises(OSError):
        list(GeminiCli().discover(home))
    home.mkdir()
    assert found(home) == {}


def test_a_linked_project_is_read_once(tmp_path: Path) -> None:
    home = tmp_path / ".gemini"
    touch(home, "tmp/shop/chats/session-1.jsonl")
    (home / "tmp/other").symlink_to(home / "tmp/shop")
    assert len(found(home)) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"sessionId": "a", "projectHash": "h"}, "a"),
        ({"sessionId": "a", "messages": []}, "a"),
        ({"$set": {"sessionId": "a"}}, "a"),
        ({"id": "m", "type": "user", "sessionId": "a"}, None),
        ({"$set": [1]}, None),
        ({"sessionId": 5}, None),
    ],
)
def test_session_id_comes_from_metadata(value: Record, expected: str | None) -> None:
    assert GeminiCli().first_id(value) == expected


def session_of(root: Path, name: str, data: bytes) -> SessionDraft:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    parser = GeminiCli().document_parser(found(root)[name], "own")
    parser.document(data)
    assert parser.session is not None
    return parser.session


def test_project_is_told_by_the_file_then_its_neighbour_then_the_registry(tmp_path: Path) -> None:
    home = tmp_path / ".gemini"
    touch(home, "projects.json")
    hashed = hashlib.sha256(b"/srv/old").hexdigest()
    registry = {"projects": {"/srv/shop": "shop", "/srv/old": "old", "/srv/odd": 5}}
    (home / "projects.json").write_text(json.dumps(registry))

    def project(slug: str, *, told: Record | None = None) -> str | None:
        name = f"tmp/{slug}/chats/session-1.jsonl"
        return session_of(home, name, lines({**META, **(told or {})})).cwd

    assert project("shop") == "/srv/shop"
    assert project(hashed) == "/srv/old"
    assert project("unknown") is None
    (home / "tmp/shop/.project_root").write_text("/srv/moved\n")
    assert project("shop") == "/srv/moved"
    assert project("shop", told={"directories": ["/srv/told"]}) == "/srv/told"


def test_a_registry_that_is_no_registry_tells_nothing(tmp_path: Path) -> None:
    home = tmp_path / ".gemini"
    for content in ("{", "[]", '{"projects": []}'):
        home.mkdir(exist_ok=True)
        (home / "projects.json").write_text(content)
        assert session_of(home, "tmp/shop/chats/session-1.jsonl", lines(META)).cwd is None


def test_subagent_belongs_to_the_session_that_its_folder_names(tmp_path: Path) -> None:
    data = lines({**META, "kind": "subagent"})
    session = session_of(tmp_path, "chats/0f0f/child.jsonl", data)
    assert (session.external_id, session.parent_id, session.relation) == (
        "own", "0f0f", "subagent",
    )  # fmt: skip
    main = session_of(tmp_path, "chats/session-1.jsonl", lines(META))
    assert (main.parent_id, main.relation) == (None, None)


def test_prompt_history_gives_prompts_and_no_session(tmp_path: Path) -> None:
    project = tmp_path / ".gemini" / "tmp" / "shop"
    project.mkdir(parents=True)
    (project / ".project_root").write_text("/srv/shop")
    data = (FIXTURES / "prompts.json").read_bytes()
    (project / "logs.json").write_bytes(data)
    (file,) = found(tmp_path / ".gemini").values()
    parser = GeminiCli().document_parser(file, "own")
    document = parser.document(data)
    assert parser.session is None
    (prompt,) = [prompt for unit in document.units for prompt in unit.parsed.prompts]
    assert (prompt.text, prompt.session_id, prompt.project) == (
        "why is stock negative?", "5e551011", "/srv/shop",
    )  # fmt: skip
    assert prompt.ts == datetime(2026, 3, 2, 10, 0, 1, tzinfo=UTC)
    assert document.skipped == {"no prompt text": 1}
    with pytest.raises(MalformedLine):
        parser.document(data[:-5])


def records(data: bytes, *, is_log: bool) -> int:
    """How many records a file has: lines, and messages inside a record that holds a list."""
    if not is_log:
        value = json.loads(data)
        return len(value.get("messages") or value.get("history") or [])
    total = 0
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        total += 1
        try:
            value = loads(line)[0] if line.strip() else None
        except MalformedLine:
            value = None
        if isinstance(value, dict):
            total += _listed(value)
    return total


def _listed(value: Record) -> int:
    if isinstance(value.get("$rewindTo"), str) or isinstance(value.get("id"), str):
        return 0
    patch = value.get("$set")
    if not isinstance(patch, dict):
        plain = isinstance(value.get("sessionId"), str) and not value.keys() & {"type", "content"}
        patch = value if plain else {}
    listed = patch.get("messages")
    return len(listed) if isinstance(listed, list) else 0


def counted(document: Document) -> int:
    ordinals = {unit.ordinal for unit in document.units}
    return len(ordinals) + document.merged + sum(document.skipped.values()) + len(document.bad)


class Relative(GeminiCli):
    """A client that writes the same format below a folder of its own."""

    name = "relative"
    home_name = ".tabnine"


@pytest.mark.corpus
def test_samples_are_counted_and_keep_every_text(corpus: Path) -> None:
    files = [*GeminiCli().discover(corpus / "gemini"), *Relative().discover(corpus / "tabnine")]
    assert len(files) == 21
    for file in files:
        data, is_log = file.path.read_bytes(), file.path.suffix == ".jsonl"
        parser = GeminiCli().document_parser(file, "own")
        document = parser.document(data)
        assert document.units, file.path
        assert counted(document) == records(data, is_log=is_log), file.path
        values = [json.loads(line) for line in (data.splitlines() if is_log else [data])]
        kept = list(stored(document, parser.session))
        for text in (text for value in values for text in leaves(spoken(value))):
            assert any(text.strip() in known for known in kept), (file.path, text)


def stored(document: Document, session: SessionDraft | None) -> Iterator[str]:
    assert session is not None
    yield from (name for name in (session.title, session.cwd, session.model) if name)
    for unit in [*document.units, *document.taken_back]:
        for message in unit.parsed.messages:
            yield message.text
            yield from (name for name in (message.tool, message.model, message.native_id) if name)


#: What is no text, or is left out by ``GeminiCli.leaves_out``.
_SILENT = frozenset(
    {
        "agentId", "data", "displayName", "kind", "lastUpdated", "mimeType", "projectHash",
        "role", "sessionId", "startTime", "start_time", "status", "timestamp", "type",
    }
)  # fmt: skip


def spoken(value: object, inside: str = "") -> object:
    """A record without its times and labels, and without the ids and manuals of its tools."""
    if isinstance(value, list):
        return [spoken(item, inside) for item in value]
    if not isinstance(value, Mapping) or inside == "args":
        return value
    silent = _SILENT | ({"description", "id"} if inside == "toolCalls" else set())
    silent |= {"id"} if inside == "functionResponse" else set()
    return {key: spoken(item, key) for key, item in value.items() if key not in silent}


@pytest.mark.corpus
def test_sample_logs_say_what_their_index_says(corpus: Path) -> None:
    chats = corpus / "gemini" / "synthetic" / ".gemini"
    outcomes = {}
    for file in GeminiCli().discover(chats):
        parser = GeminiCli().document_parser(file, "own")
        outcomes[file.path.stem[-8:]] = (parser.document(file.path.read_bytes()), parser.session)
    rewound, session = outcomes["a1a1a1a1"]
    assert session is not None and session.cwd == "/home/dev/acme-api"
    assert session.title == "Orders bug"
    assert texts(rewound.taken_back) == [(1, "Look\nd"), (2, "Wrong answer")]
    compressed, _ = outcomes["b2b2b2b2"]
    assert texts(compressed.units) == [(0, "compressed summary"), (1, "No validation.")]
    assert texts(compressed.taken_back) == [(0, "Why 500?"), (1, "Look\nd")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_SEEDS: list[Record] = [
    *[json.loads(line) for line in LOG.read_bytes().split(b"\n") if line.endswith(b"}")],
    {"$set": {"messages": [user("u-1", "new"), answer("g-1", [{"text": "a"}])]}},
    {**META, "meta": {"model": "m"}, "messages": [user("x", "y")], "directories": ["/a", "/b"]},
    answer(
        "c", "", toolCalls=[{"id": "c", "args": {"a": "b"}, "resultDisplay": [[{"text": "x"}]]}]
    ),
    answer("g", [{"inlineData": {"data": "AAAA"}}, {"functionCall": {"name": "f", "args": {}}}]),
]


def encoded(value: object) -> bytes:
    """JSON in which two words stand for what nests deeply, and more deeply than can be read."""
    line = json.dumps(value).encode()
    for word, depth in ((b'"@deeper"', 100_000), (b'"@deep"', 900)):
        line = line.replace(word, b"[" * depth + b'"x"' + b"]" * depth)
    return line


@st.composite
def _mutated(draw: st.DrawFn) -> Record:
    """A record in which one value, at any depth, is something else."""
    value: Record = json.loads(json.dumps(draw(st.sampled_from(_SEEDS))))
    holder: Any = value
    key: Any = draw(st.sampled_from(sorted(holder)))
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
    holder[key] = draw(
        _JSON | st.sampled_from(["u-1", "user", 10**400, "\ud800", "@deep", "@deeper"])
    )
    return value


@settings(max_examples=300, deadline=None)
@given(st.lists(_mutated() | st.sampled_from(_SEEDS) | _JSON, max_size=6))
def test_no_log_of_odd_shape_raises_or_loses_count(values: list[Any]) -> None:
    data = b"".join(encoded(value) + b"\n" for value in values)
    document, session = parse(data)
    assert repr(parse(data)) == repr((document, session))
    assert counted(document) == records(data, is_log=True)
    ordinals = [unit.ordinal for unit in document.units]
    assert ordinals == sorted(set(ordinals))
    for unit in [*document.units, *document.taken_back]:
        parts = [message.part for message in unit.parsed.messages]
        assert len(set(parts)) == len(parts) > 0
        assert all(message.text.strip() for message in unit.parsed.messages)


@settings(max_examples=200, deadline=None)
@given(_mutated() | _JSON | st.builds(lambda item: {"messages": [item]}, _mutated() | _JSON))
def test_no_conversation_of_odd_shape_raises(value: object) -> None:
    try:
        document, _ = parse(encoded(value), is_log=False)
    except MalformedLine as error:
        assert error.reason
        return
    assert all(unit.parsed.messages for unit in document.units)


_IDS = st.sampled_from("abcd")
_CHANGES = st.one_of(
    st.tuples(st.just("put"), _IDS),
    st.tuples(st.just("rewind"), _IDS),
    st.tuples(st.just("set"), st.lists(_IDS, unique=True, max_size=3)),
)


@given(st.lists(_CHANGES, max_size=12))
def test_any_log_gives_what_the_client_would_show_and_loses_no_text(
    changes: list[tuple[str, Any]],
) -> None:
    shown: dict[str, str] = {}
    values: list[Record] = [META]
    written: list[str] = []
    for number, (change, names) in enumerate(changes):
        new = {name: f"<{number}{name}>" for name in names}
        if change == "put":
            values += [user(name, text) for name, text in new.items()]
            shown |= new
        elif change == "set":
            values.append({"$set": {"messages": [user(*item) for item in new.items()]}})
            shown = new
        else:
            values.append({"$rewindTo": names})
            order = list(shown)
            kept = order[: order.index(names)] if names in shown else []
            shown = {name: shown[name] for name in kept}
        written += new.values() if change != "rewind" else ()
    document, _ = parse(lines(*values))
    assert texts(document.units) == list(enumerate(shown.values()))
    gone = [text for _, text in texts(document.taken_back)]
    assert sorted([*gone, *shown.values()]) == sorted(written)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 2000))
def test_no_bytes_raise_anything_else(noise: bytes, at: int) -> None:
    for path in (LOG, OLD):
        data = path.read_bytes()
        at = min(at, len(data))
        for mixed in (data[:at] + noise + data[at:], noise, data[:at]):
            try:
                parse(mixed, is_log=path.suffix == ".jsonl")
            except MalformedLine as error:
                assert error.reason
