"""A work ledger, and an agent's memory as Markdown, JSON and JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recall_ingester.sources.base import Source
from recall_ingester.sources.ledger import Ledger
from recall_ingester.sources.memory import Memory
from tests.contract.script import Case, State, Words, add, insert, iso, ms, put, put_new, run_sql

_SCHEMA = (
    "create table ledger(id integer primary key, session_id text, created_at text, project text,"
    " title text, summary text, outcome text)",
    (),
)


def _row(number: int, minute: int, title: str, summary: str, outcome: str) -> Any:
    return insert(
        "ledger", id=number, session_id=f"s-{number}", created_at=iso(minute),
        project="/home/dev/shop", title=title, summary=summary, outcome=outcome,
    )  # fmt: skip


_words = Words("ledger")
_say, _lose = _words.say, _words.lose
_first = _row(1, 1, _say("title", 1), _say("summary", 1), _say("outcome", 1))
_edited = _row(2, 2, "second", _say("edited", 2), "")
_before = _row(2, 2, "second", _lose("before", 2), "")
_removed = _row(3, 3, "third", _lose("removed", 3), "")
_last = [_row(4, 4, "", _say("fourth", 4), ""), _row(5, 5, "fifth", _say("fifth", 5), "")]


def _ledger_begun(root: Path) -> None:
    run_sql(root / "work.db", _SCHEMA, _first, _before)


def _ledger_grown(root: Path) -> None:
    run_sql(root / "work.db", _removed, _last[0])


def _ledger_edited(root: Path) -> None:
    text = _edited[1][-2]
    change = ("update ledger set summary = ? where id = 2", (text,))
    run_sql(root / "work.db", change, ("delete from ledger where id = 3", ()), _last[1])


def _open_ledger(folder: Path) -> Source:
    return Ledger(folder / "work.db")


def _open_memory(folder: Path) -> Source:
    return Memory([folder])


_markdown_words = Words("memorymd")
_MARKDOWN = Path("projects/-home-dev-shop/memory/MEMORY.md")
_notes = (_markdown_words.lose("note", 1), _markdown_words.say("edited", 2))
_title = _markdown_words.say("title", 2)
_kept_note = _markdown_words.say("second", 3)


def _markdown(title: str, minute: int, text: str) -> str:
    return f"---\nname: {title}\ncreated: {iso(minute)}\n---\n# Heading\n\n- {text}\n"


def _markdown_begun(root: Path) -> None:
    put(root / _MARKDOWN, _markdown("style", 1, _notes[0]))


def _markdown_grown(root: Path) -> None:
    put(root / _MARKDOWN.with_name("other.md"), _markdown("other", 3, _kept_note))


def _markdown_edited(root: Path) -> None:
    put_new(root / _MARKDOWN, _markdown(_title, 2, f"{_notes[1]} and {'more ' * 40}"))


def _neighbour_note(root: Path, word: str) -> None:
    put(root / "projects/-home-dev-two/memory/MEMORY.md", f"# Two\n\n{word}\n")


_json_words = Words("memoryjson")
_entries = {
    "kept": {"key": "one", "text": _json_words.say("one", 1), "created_at": ms(1),
             "tags": [_json_words.say("tag", 1)]},
    "before": {"key": "two", "text": _json_words.lose("before", 2), "created_at": iso(2)},
    "edited": {"key": "two", "text": _json_words.say("edited", 3), "created_at": iso(3)},
    "removed": {"key": "three", "text": _json_words.lose("removed", 4), "created_at": iso(4)},
    "new": {"key": "four", "title": _json_words.say("title", 5), "text": _json_words.say("four", 5),
            "created_at": iso(5)},
}  # fmt: skip


def _json_state(*names: str) -> State:
    memories = {"memories": [_entries[name] for name in names]}
    return lambda root: put_new(root / "memory/entries.json", json.dumps(memories, indent=1))


def _neighbour_entries(root: Path, word: str) -> None:
    put(root / "memory/more.json", json.dumps([{"key": "x", "text": word}]))


_graph_words = Words("memoryjsonl")
_graph: dict[str, dict[str, Any]] = {
    "person": {"type": "entity", "name": "shop", "entityType": "project",
               "observations": [_graph_words.say("fact")]},
    "changed": {"type": "entity", "name": "cache", "observations": [_graph_words.lose("before")]},
    "change": {"type": "entity", "name": "cache", "observations": [_graph_words.say("edited")]},
    "link": {"type": "relation", "from": "shop", "to": _graph_words.say("related"),
             "relationType": "uses"},
}  # fmt: skip


def _graph_begun(root: Path) -> None:
    add(root / "memory/graph.jsonl", _graph["person"])


def _graph_grown(root: Path) -> None:
    add(root / "memory/graph.jsonl", _graph["changed"], _graph["link"])


def _graph_edited(root: Path) -> None:
    (root / "memory/graph.jsonl").unlink()
    add(root / "memory/graph.jsonl", _graph["person"], _graph["change"], _graph["link"])


CASES = [
    Case(
        "ledger",
        "ledger",
        _words,
        [_ledger_begun, _ledger_grown, _ledger_edited],
        main="work.db",
        root="work.db",
        make=_open_ledger,
        statements=[_SCHEMA, _first, _edited, *_last],
        table=("ledger", "summary", "id"),
        compares_all=True,
    ),
    Case(
        "memory-markdown",
        "memory",
        _markdown_words,
        [_markdown_begun, _markdown_grown, _markdown_edited],
        main=str(_MARKDOWN),
        folder=".claude",
        root="projects",
        neighbour=_neighbour_note,
    ),
    Case(
        "memory-json",
        "memory",
        _json_words,
        [
            _json_state("kept", "before"),
            _json_state("kept", "before", "removed"),
            _json_state("kept", "edited", "new"),
        ],
        main="memory/entries.json",
        make=_open_memory,
        neighbour=_neighbour_entries,
    ),
    Case(
        "memory-jsonl",
        "memory",
        _graph_words,
        [_graph_begun, _graph_grown, _graph_edited],
        main="memory/graph.jsonl",
        make=_open_memory,
        neighbour=_neighbour_entries,
    ),
]
