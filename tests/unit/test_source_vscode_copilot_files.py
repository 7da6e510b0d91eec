"""VS Code chats: which files are found, and that nothing in them is lost or breaks the reading."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recall.jsontext import MalformedLine
from recall.records import Message
from recall_ingester.sources.base import Document
from recall_ingester.sources.object_log import replay
from recall_ingester.sources.vscode_copilot import ChatParser, VsCodeCopilot

ID = "5c5c5c5c-0000-4000-8000-000000000001"
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "vscode_copilot" / f"{ID}.json"
Json = dict[str, Any]


def chat() -> Json:
    value: Json = json.loads(FIXTURE.read_text())
    return value


def log(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def begin(*requests: object, **fields: object) -> Json:
    return {"kind": 0, "v": {"version": 3, "sessionId": ID, "requests": list(requests), **fields}}


def put(*path: str | int, v: object) -> Json:
    return {"kind": 1, "k": list(path), "v": v}


def request(name: str, text: str, *response: object, **fields: object) -> Json:
    said = {"requestId": name, "message": {"text": text}, "response": list(response)}
    return said | {"timestamp": 1772000000000} | fields


def parser(suffix: str = ".jsonl") -> ChatParser:
    return ChatParser(Path(f"/nowhere/{ID}{suffix}"), ID)


def read(*entries: object) -> Document:
    return parser().document(log(*entries))


def whole(document: object, using: ChatParser | None = None) -> Document:
    return (using or parser(".json")).document(json.dumps(document).encode())


def messages(document: Document) -> list[Message]:
    return [message for unit in document.units for message in unit.parsed.messages]


def user_folder(base: Path) -> Path:
    user = base / "User"
    for name in (
        f"workspaceStorage/aa/chatSessions/{ID}.jsonl",
        f"workspaceStorage/aa/chatSessions/{ID}.json",
        "workspaceStorage/aa/chatSessions/named.json",
        "workspaceStorage/aa/chatSessions/notes.txt",
        f"workspaceStorage/aa/chatSessions/compacted/{ID}.jsonl",
        "workspaceStorage/aa/state.vscdb",
        f"workspaceStorage/aa/GitHub.copilot-chat/transcripts/{ID}.jsonl",
        f"workspaceStorage/aa/some.extension/chatSessions/{ID}.json",
        f"globalStorage/emptyWindowChatSessions/{ID}.jsonl",
        f"profiles/-12/workspaceStorage/bb/chatSessions/{ID}.jsonl",
    ):
        path = user / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    workspace = {"workspace": "file:///srv/shop/shop.code-workspace"}
    (user / "workspaceStorage/aa/workspace.json").write_text(json.dumps(workspace))
    return user


FOUND = [
    f"globalStorage/emptyWindowChatSessions/{ID}",
    f"profiles/-12/workspaceStorage/bb/chatSessions/{ID}",
    f"workspaceStorage/aa/chatSessions/{ID}",
    "workspaceStorage/aa/chatSessions/named",
]


def test_chats_are_found_from_any_folder_above_them(tmp_path: Path) -> None:
    user = user_folder(tmp_path)
    source = VsCodeCopilot()
    assert [file.relative for file in source.discover(user)] == FOUND
    assert [file.relative for file in source.discover(user / "workspaceStorage")] == [
        f"aa/chatSessions/{ID}",
        "aa/chatSessions/named",
    ]
    hash_folder = user / "workspaceStorage" / "aa"
    assert len(list(source.discover(hash_folder))) == 2
    assert len(list(source.discover(hash_folder / "chatSessions"))) == 2
    with pytest.raises(OSError):
        list(source.discover(tmp_path / "missing"))


def test_log_takes_the_place_of_the_older_document(tmp_path: Path) -> None:
    files = list(VsCodeCopilot().discover(user_folder(tmp_path)))
    log_file, named = files[2], files[3]
    assert log_file.path.suffix == ".jsonl" and log_file.natural_id == ID
    assert log_file.supersedes == log_file.path.with_suffix(".json")
    assert log_file.companions == (log_file.path.parents[1] / "workspace.json",)
    assert (named.natural_id, named.supersedes) == (None, None)
    assert {file.shape for file in files} == {"document"}
    using = VsCodeCopilot().document_parser(log_file, ID)
    using.document(log(begin()))
    assert using.session is not None
    assert using.session.cwd == "/srv/shop/shop.code-workspace"


def test_first_id_is_the_session_of_a_document_or_log() -> None:
    source = VsCodeCopilot()
    assert source.first_id(begin()) == ID
    assert source.first_id({"sessionId": ID, "requests": []}) == ID
    assert source.first_id({"kind": 1, "k": ["sessionId"], "v": ID}) is None
    assert source.first_id({"kind": 0, "v": ["x"]}) is None


def test_roots_are_the_user_folders_of_each_platform() -> None:
    home = Path("/home/ann")
    roots = VsCodeCopilot().roots({}, home)
    assert home / ".config/Code/User" in roots
    assert home / "Library/Application Support/Code - Insiders/User" in roots
    assert home / "AppData/Roaming/VSCodium/User" in roots
    moved = VsCodeCopilot().roots({"APPDATA": "/win", "XDG_CONFIG_HOME": "/conf"}, home)
    assert Path("/win/Code/User") in moved and Path("/conf/Positron/User") in moved


@pytest.mark.corpus
def test_log_and_its_compacted_form_give_the_same_units(corpus: Path) -> None:
    folder = next((corpus / "vscode-copilot").rglob("compacted")).parent
    name = next((folder / "compacted").iterdir()).name
    grown = parser().document((folder / name).read_bytes())
    compacted = parser().document((folder / "compacted" / name).read_bytes())
    assert grown.units == compacted.units and len(grown.units) == 2
    assert (grown.taken_back, grown.bad) == ([], [])


@pytest.mark.corpus
def test_every_sample_is_read_and_keeps_its_words(corpus: Path) -> None:
    source = VsCodeCopilot()
    files = list(source.discover(corpus / "vscode-copilot"))
    assert len(files) == 4
    for file in files:
        using = source.document_parser(file, file.natural_id or "x")
        document = using.document(file.path.read_bytes())
        assert messages(document) and not document.bad
        assert using.session is not None
        by_workspace = file.path.parent.name == "chatSessions"
        assert using.session.cwd == ("/home/dev/acme-api" if by_workspace else None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "value", "text", "uri", "path", "scheme", "id", "edits", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def places(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [at]
    if isinstance(value, dict):
        found += [place for key, item in value.items() for place in places(item, (*at, key))]
    elif isinstance(value, list):
        found += [place for key, item in enumerate(value) for place in places(item, (*at, key))]
    return found


def replaced(document: Json, place: tuple[str | int, ...], value: object) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


PLACES = places(chat())


@example((), {}, False)
@given(st.sampled_from(PLACES), _JSON, st.booleans())
def test_any_value_at_any_place_is_read(
    place: tuple[str | int, ...], value: object, as_log: bool
) -> None:
    document = replaced(chat(), place, value)
    try:
        if as_log and place:
            result = read({"kind": 0, "v": chat()}, {"kind": 1, "k": list(place), "v": value})
        else:
            result = whole(document)
    except MalformedLine:
        assert not isinstance(document, dict) or "requests" not in document
        return
    for unit in result.units:
        parts = [message.part for message in unit.parsed.messages]
        assert parts == sorted(set(parts))
        assert bool(parts) != bool(unit.parsed.skipped)
        assert all(message.text.strip() for message in unit.parsed.messages)


@given(_JSON, st.lists(st.sampled_from(["requests", "a", 0, 1, "response"]), max_size=4), _JSON)
def test_any_change_is_applied_or_told(kind: object, path: list[object], value: object) -> None:
    for entry in (
        {"kind": kind, "k": path, "v": value},
        {"kind": 1, "k": path, "v": value},
        {"kind": 2, "k": path, "v": value, "i": kind},
        {"kind": 3, "k": path},
        {"kind": 1, "k": value},
    ):
        data = log(begin(request("a", "one", {"value": "yes"})), entry)
        try:
            assert parser().document(data).skipped == {} or kind == 0
        except MalformedLine:
            assert replay(data).state == entry["v"]


@pytest.mark.parametrize("form", ["{}", '{{"x": "{}"}}', '["{}"]'])
def test_no_words_are_lost_except_those_that_the_source_names(form: str) -> None:
    words = "words nobody expects"
    value = words if form == "{}" else json.loads(form.format(words))
    looked_at = 0
    for place in PLACES:
        if not place or is_left_out(place):
            continue
        using = parser(".json")
        document = whole(replaced(chat(), place, value), using)
        session = using.session
        assert session is not None
        stored = [session.title, session.branch, session.model, session.client_version]
        stored += [text for m in messages(document) for text in (m.text, m.tool, m.model)]
        assert any(words in text for text in stored if text), place
        looked_at += 1
    assert looked_at > 100


def is_left_out(place: tuple[str | int, ...]) -> bool:
    dotted = "." + ".".join(map(str, place)) + "."
    names = (leaf.where.removeprefix("**.") for leaf in VsCodeCopilot.leaves_out)
    # A creation date that is no date is no text either.
    return place == ("creationDate",) or any(f".{name}." in dotted for name in names)


def test_deep_nesting_is_read() -> None:
    deep: Any = "bottom"
    for _ in range(200):
        deep = {"x": [deep]}
    for place in (("variableData",), ("response", 0), ("result", "metadata", "toolCallResults")):
        document = replaced(request("a", "one", None, result={"metadata": {}}), place, deep)
        texts = [m.text for m in messages(read(begin(document)))]
        assert any("bottom" in text for text in texts)
    grown = [put("requests", 0, *["x"] * n, v={"x": {}}) for n in range(1, 3000)]
    assert read(begin(request("a", "one")), *grown).units
