"""Writes the evaluation set from its hand-written material.

    python ops/eval/build.py [--check]

The result is the same on every machine. `--check` writes nothing and fails if anything differs.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # the scripts are no installed package

from ops.eval.clients import Written, session_id, write_claude_code, write_codex  # noqa: E402
from ops.eval.filler import Filler  # noqa: E402
from ops.eval.material import Session, Turn, read_sessions  # noqa: E402

#: A `[~ n]` of the material stands for so many steps of ordinary work, times n.
_STEPS_EACH = 1.5
#: A turn counts for `session/*` from this length on.
_TELLING_CHARS = 12
_LABEL = re.compile(r"(?P<session>[\w-]+)/(?P<label>\w+|\*):(?P<grade>[123])")
#: In these classes a string is sought, so the rest of its session is beside the point.
_OF_STRINGS = frozenset({"error", "identifier"})
_BEST = 3


@dataclass(slots=True)
class Placed:
    """A session of the set with the key of each of its messages."""

    session: Session
    turns: list[Turn]
    written: Written

    def key(self, number: int) -> str:
        """The key of a turn."""
        return self._key(self.written.places[number])

    def title_keys(self) -> list[str]:
        """The key of the title, if the client writes one."""
        place = self.written.title_place
        return [self._key(place)] if place else []

    def holding(self, text: str) -> list[str]:
        """The keys of everything that has this text, in whatever case."""
        wanted = text.lower()
        keys = [
            self.key(number)
            for number, turn in enumerate(self.turns)
            if wanted in turn.text.lower()
        ]
        return keys + (self.title_keys() if wanted in self.session.title.lower() else [])

    def _key(self, place: str) -> str:
        return f"{self.session.client}:{session_id(self.session.name)}#{place}"

    def labelled(self, label: str) -> list[int]:
        """The turns of a label; `*` is everything of substance that was written by hand."""
        if label == "*":
            return [
                number
                for number, turn in enumerate(self.turns)
                if turn.label != "filler" and len(turn.text) >= _TELLING_CHARS
            ]
        return [number for number, turn in enumerate(self.turns) if turn.label == label]


@dataclass(slots=True)
class Draft:
    """A query as the material has it."""

    kind: str
    text: str
    line: int
    labels: list[str] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    filters: dict[str, Any] = field(default_factory=dict)


def build() -> dict[Path, str]:
    """Every file of the set with its content."""
    material = HERE / "material"
    vocabulary = tomllib.loads((material / "vocabulary.toml").read_text("utf-8"))
    placed = [_place(session, vocabulary[session.project]) for session in read_sessions(material)]
    files = {
        HERE / "sessions" / one.written.path: "\n".join([*one.written.lines, ""]) for one in placed
    }
    by_name = {one.session.name: one for one in placed}
    lines = [
        json.dumps(query, ensure_ascii=False)
        for query in _queries(_drafts(material / "queries.txt"), by_name)
    ]
    files[HERE / "queries.jsonl"] = "\n".join([*lines, ""])
    return files


def _place(session: Session, words: Mapping[str, Any]) -> Placed:
    turns = list(_expanded(session, words))
    write = write_codex if session.client == "codex" else write_claude_code
    return Placed(session, turns, write(session, turns, words["cwd"]))


def _expanded(session: Session, words: Mapping[str, Any]) -> Iterator[Turn]:
    filler = Filler(session.name, words)
    for turn in session.turns:
        if turn.kind == "~":
            for step in filler.turns(round(int(turn.text or turn.label or 0) * _STEPS_EACH)):
                step.label = "filler"
                yield step
            continue
        yield turn
        if turn.kind == "E":
            path = turn.text.partition("\n")[0]
            yield Turn(">", f"The file {path} has been updated.", "filler")


def _drafts(path: Path) -> list[Draft]:
    drafts: list[Draft] = []
    kind = ""
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        mark, _, rest = line.partition(" ")
        if mark == "#":
            kind = rest.strip()
        elif mark == "?":
            drafts.append(Draft(kind, rest.strip(), number))
        elif mark == "=":
            drafts[-1].labels += rest.split()
        elif mark == "~":
            drafts[-1].strings.append(rest)
        elif mark == "!":
            drafts[-1].filters |= json.loads(rest)
        elif line.strip():
            raise SystemExit(f"error: {path.name}:{number}: not understood")
    return drafts


def _queries(drafts: Sequence[Draft], placed: Mapping[str, Placed]) -> Iterator[dict[str, Any]]:
    counts: dict[str, int] = {}
    for draft in drafts:
        number = counts[draft.kind] = counts.get(draft.kind, 0) + 1
        query: dict[str, Any] = {
            "id": f"{draft.kind}-{number:02}",
            "class": draft.kind,
            "split": ("report", "tune")[number % 2],
            "query": draft.text,
        }
        if draft.filters:
            query["filters"] = draft.filters
        yield query | {"relevant": _relevant(draft, placed)}


def _relevant(draft: Draft, placed: Mapping[str, Placed]) -> dict[str, int]:
    """Labels by hand; 1 for what has the string, and for the rest of the right sessions."""
    grades: dict[str, int] = {}

    def raise_to(keys: Iterable[str], grade: int) -> None:
        grades.update({key: max(grade, grades.get(key, 0)) for key in keys})

    for label in draft.labels:
        named, numbers, grade = _find(draft, label, placed)
        raise_to(map(named.key, numbers), grade)
        if grade == _BEST and draft.kind not in _OF_STRINGS:
            raise_to(map(named.key, named.labelled("*")), 1)
            raise_to(named.title_keys(), 1)
    for text in draft.strings:
        for one in placed.values():
            raise_to(one.holding(text), 1)
    return dict(sorted(grades.items(), key=lambda item: (-item[1], item[0])))


def _find(draft: Draft, label: str, placed: Mapping[str, Placed]) -> tuple[Placed, list[int], int]:
    match = _LABEL.fullmatch(label)
    named = placed.get(match["session"]) if match else None
    numbers = named.labelled(match["label"]) if named and match else []
    if not match or not named or not numbers:
        raise SystemExit(f"error: queries.txt:{draft.line}: there is no `{label}`")
    return named, numbers, int(match["grade"])


def main() -> int:
    """Write the set, or compare it."""
    files = build()
    known = {*(HERE / "sessions").rglob("*.jsonl"), HERE / "queries.jsonl"}
    stale = known - files.keys()
    if sys.argv[1:] == ["--check"]:
        differing = [
            path for path, text in files.items() if path not in known or path.read_text() != text
        ]
        for path in sorted([*differing, *stale]):
            sys.stderr.write(f"{path.relative_to(HERE)} is not what the material says\n")
        return 1 if differing or stale else 0
    for path in stale:
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
