"""A client of one's own, declared by the fields of its JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recall.declared import DeclaredSource
from recall_ingester.sources.base import Source
from recall_ingester.sources.declared import Declared
from tests.contract.script import Case, Words, add, elsewhere, iso, lines, ms, put

NAME = "my-agent"
_words = Words("declared")
_say, _lose = _words.say, _words.lose


def _record(minute: int, who: str, *texts: str, **more: Any) -> dict[str, Any]:
    stamp = (iso, elsewhere, ms)[minute % 3](minute)
    return {"at": stamp, "who": who, "body": [{"text": text} for text in texts], **more}


_FIRST = [
    {"name": _say("title"), "folder": "/home/dev/shop", "branch": "main", "model": "model-one"},
    _record(1, "human", _say("ask", 1), _say("block", 1)),
    _record(2, "bot", _say("answer", 2)),
]
_LOST = _record(3, "human", _lose("removed", 3))
_SECOND = [
    _record(4, "bot", _say("args", 4), kind="tool_call", tool="shell"),
    _record(5, "tool", _say("output", 5), tool="shell"),
    _record(6, "somebody", _say("other", 6)),
]
_LAST = _record(7, "bot", _say("moved", 7), kind="thinking")


def _begun(root: Path) -> None:
    add(root / "logs/a/one.jsonl", *_FIRST, _LOST)


def _grown(root: Path) -> None:
    add(root / "logs/a/one.jsonl", *_SECOND)


def _rewritten(root: Path) -> None:
    put(root / "logs/a/one.jsonl", lines(*_FIRST, *_SECOND))


def _renamed(root: Path) -> None:
    (root / "logs/b").mkdir()
    (root / "logs/a/one.jsonl").rename(root / "logs/b/one.jsonl")
    add(root / "logs/b/one.jsonl", _LAST)


def _open(folder: Path, session: tuple[str, ...] = ()) -> Source:
    return Declared(
        DeclaredSource(
            name=NAME,
            paths=(f"{folder.as_posix()}/logs/*/*.jsonl",),
            text=("body[*].text",),
            session=session,
            role=("who",),
            time=("at",),
            project=("folder",),
            branch=("branch",),
            model=("model",),
            tool=("tool",),
            title=("name",),
            kind=("kind",),
        )
    )


def _neighbour(root: Path, word: str) -> None:
    add(root / "logs/b/two.jsonl", _record(31, "human", word))


_named_words = Words("declarednamed")
_named_texts = _named_words.say("ask", 1), _named_words.say("answer", 2)


def _named(root: Path) -> None:
    """The records, and not the file's name, give the session."""
    records = [_record(minute, "human", text) for minute, text in enumerate(_named_texts, 1)]
    add(root / "logs/a/today.jsonl", *({**record, "of": "named"} for record in records))


def _open_named(folder: Path) -> Source:
    return _open(folder, ("of",))


CASES = [
    Case(
        "declared-named",
        NAME,
        _named_words,
        [_named],
        main="logs/a/today.jsonl",
        root="logs",
        make=_open_named,
    ),
    Case(
        "declared",
        NAME,
        _words,
        [_begun, _grown, _rewritten, _renamed],
        main="logs/b/one.jsonl",
        root="logs",
        make=_open,
        neighbour=_neighbour,
    ),
]
