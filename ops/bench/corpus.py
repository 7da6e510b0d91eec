"""Session logs for the benchmark: sample sessions, copied under new ids and with other words.

A copy must not look like a copy. Every id in it is new, and about a fifth of its vocabulary is
exchanged for other words of the sample by a permutation of its own, so that an engine that
recognises equal messages, equal texts or equal words gains nothing from the repetition.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

ROOT = Path(__file__).resolve().parents[2]
Client = Literal["claude-code", "codex"]

#: Keys below which a record holds text that was written, rather than names and ids.
_PROSE = frozenset(
    {
        "aggregated_output",
        "arguments",
        "command",
        "content",
        "description",
        "display",
        "input",
        "last_agent_message",
        "message",
        "new_string",
        "old_string",
        "originalFile",
        "output",
        "prompt",
        "query",
        "result",
        "stderr",
        "stdout",
        "summary",
        "text",
        "thinking",
    }
)
# Private-use characters mark what a copy replaces: a word between two of the first, the id of the
# session by the second.
_WORD_MARK = "\ue000"
_SESSION_MARK = "\ue001"
# Not behind a backslash: the n of an escaped line end inside nested JSON is no part of a word.
_WORD = re.compile(r"(?<![\\\w])[a-z]{4,14}(?!\w)")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NAME = r"(?:msg|req|toolu|call|rs)_[A-Za-z0-9]{8,64}"
_VARIABLE = re.compile(
    rf"({_WORD_MARK}[a-z]+{_WORD_MARK}|{_SESSION_MARK}|\b{_UUID}\b|\b{_NAME}\b)".encode()
)
#: One word in this many is exchanged; one in so many of those becomes a word that is new.
_EXCHANGED_ONE_IN = 5
_INVENTED_ONE_IN = 20
_SLUGS = 20


@dataclass(frozen=True, slots=True)
class Template:
    """A sample session, cut at everything that differs between its copies.

    Pieces at odd places are the ids and words that a copy replaces.
    """

    client: Client
    own_id: str | None
    pieces: tuple[bytes, ...]

    @property
    def words(self) -> set[bytes]:
        """The words that are exchanged."""
        mark = _WORD_MARK.encode()
        return {piece.strip(mark) for piece in self.pieces[1::2] if piece.startswith(mark)}


def sample_sessions() -> list[tuple[Client, Path]]:
    """The best sample there is: shared logs of real sessions beside the tree, or else its own."""
    shared = ROOT.parent / "shared" / "corpus"
    patterns: list[tuple[Client, str]] = [
        ("claude-code", "claude/real-entire/*.jsonl"),
        ("claude-code", "claude/real-entire/10-growth*/step3.jsonl"),
        ("claude-code", "claude/episodic-memory/l*.jsonl"),
        ("codex", "codex/real-codemie/*.jsonl"),
    ]
    found = [(client, path) for client, glob in patterns for path in sorted(shared.glob(glob))]
    if not found:
        own = ROOT / "recall" / "samples" / "data"
        found = [("claude-code", path) for path in sorted(own.rglob("*.jsonl"))]
    return found


def read_template(client: Client, path: Path, *, most_lines: int | None = None) -> Template:
    """Cut one sample. Lines that are no JSON object are kept as they are."""
    lines = path.read_bytes().split(b"\n")
    own_id = None
    marked = []
    for line in [line for line in lines if line.strip()][:most_lines]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            marked.append(line)
            continue
        if client == "claude-code" and "sessionId" in value:
            value["sessionId"] = _SESSION_MARK
        elif client == "codex" and own_id is None and value.get("type") == "session_meta":
            own_id = str(value["payload"]["id"])
        marked.append(orjson.dumps(_mark(value, prose=False)))
    marked.append(b"")
    return Template(client, own_id, tuple(_VARIABLE.split(b"\n".join(marked))))


def _mark(value: Any, *, prose: bool) -> Any:
    if isinstance(value, dict):
        return {key: _mark(item, prose=prose or key in _PROSE) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark(item, prose=prose) for item in value]
    if prose and isinstance(value, str):
        return _WORD.sub(_mark_word, value)
    return value


def _mark_word(match: re.Match[str]) -> str:
    word = match[0]
    # By the word and not by its place, so that two records that quote each other stay equal.
    if hashlib.md5(word.encode()).digest()[0] % _EXCHANGED_ONE_IN:
        return word
    return f"{_WORD_MARK}{word}{_WORD_MARK}"


class Copier:
    """Writes copies of the templates; copy number N is the same on every machine."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self._templates = templates
        self._words = sorted(set[bytes]().union(*(template.words for template in templates)))

    def write(self, home: Path, number: int) -> Iterator[Path]:
        """One copy of every template below a home folder, as the clients lay them out."""
        vocabulary = self._vocabulary(number)
        for place, template in enumerate(self._templates):
            yield _write_copy(home, template, number, place, vocabulary)

    def _vocabulary(self, number: int) -> dict[bytes, bytes]:
        chance = random.Random(number)
        others = list(self._words)
        chance.shuffle(others)
        mark = _WORD_MARK.encode()
        return {
            mark + word + mark: _invent(chance) if not chance.randrange(_INVENTED_ONE_IN) else other
            for word, other in zip(self._words, others, strict=True)
        }


def _invent(chance: random.Random) -> bytes:
    syllables = chance.randrange(2, 5)
    return "".join(
        chance.choice("bcdfghklmnprstvz") + chance.choice("aeiou") for _ in range(syllables)
    ).encode()


def _write_copy(
    home: Path, template: Template, number: int, place: int, vocabulary: dict[bytes, bytes]
) -> Path:
    session = new_id(template.own_id or f"session {place}", number)
    exchange = dict(vocabulary)
    exchange[_SESSION_MARK.encode()] = session.encode()

    def other(piece: bytes) -> bytes:
        known = exchange.get(piece)
        if known is None:
            known = exchange[piece] = _new_name(piece, number)
        return known

    pieces = list(template.pieces)
    pieces[1::2] = [other(piece) for piece in pieces[1::2]]
    path = _place(home, template.client, session, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(pieces))
    return path


def _place(home: Path, client: Client, session: str, number: int) -> Path:
    if client == "claude-code":
        slug = f"-home-dev-project-{number % _SLUGS}"
        return home / ".claude" / "projects" / slug / f"{session}.jsonl"
    day = 1 + number % 28
    folder = home / ".codex" / "sessions" / "2026" / "05" / f"{day:02}"
    return folder / f"rollout-2026-05-{day:02}T11-26-55-{session}.jsonl"


def _new_name(name: bytes, number: int) -> bytes:
    text = name.decode()
    if "_" not in text:
        return new_id(text, number).encode()
    kind, _, rest = text.partition("_")
    digest = hashlib.sha512(f"{text} {number}".encode()).hexdigest()
    return f"{kind}_{digest[: len(rest)]}".encode()


def new_id(of: str, number: int) -> str:
    """The UUID that stands for another one in copy ``number``."""
    h = hashlib.md5(f"{of} {number}".encode()).hexdigest()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-8{h[17:20]}-{h[20:]}"


def build(home: Path, *, least_bytes: int) -> list[Path]:
    """Sessions of all clients below ``home``, of at least this size together."""
    copier = Copier([read_template(client, path) for client, path in sample_sessions()])
    files: list[Path] = []
    size = number = 0
    while size < least_bytes:
        new = list(copier.write(home, number))
        size += sum(path.stat().st_size for path in new)
        files += new
        number += 1
    return files


def build_small(home: Path, *, count: int, lines: int = 8) -> list[Path]:
    """Many short sessions: the first lines of each sample, copied."""
    samples = [(client, path) for client, path in sample_sessions()]
    copier = Copier([read_template(*sample, most_lines=lines) for sample in samples])
    files: list[Path] = []
    number = 0
    while len(files) < count:
        for path in copier.write(home, number):
            files.append(path)
            if len(files) == count:
                break
        number += 1
    return files


def append_line(path: Path, number: int) -> int:
    """Append one more message of the client to a session log; the bytes that were added."""
    line = (
        _codex_message(number)
        if path.name.startswith("rollout-")
        else claude_message(path.stem, f"appended {path.stem} {number}", f"one more line {number}")
    )
    with path.open("ab") as file:
        return file.write(line)


def claude_message(session: str, identity: str, text: str) -> bytes:
    """One user message of Claude Code, as a line."""
    return _line(
        {
            "parentUuid": None,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/dev/project",
            "sessionId": session,
            "version": "2.1.0",
            "gitBranch": "main",
            "type": "user",
            "message": {"role": "user", "content": text},
            "uuid": new_id(identity, 0),
            "timestamp": "2026-06-01T10:00:00.000Z",
        }
    )


def _codex_message(number: int) -> bytes:
    content = [{"type": "input_text", "text": f"one more line {number}"}]
    return _line(
        {
            "timestamp": "2026-06-01T10:00:00.000Z",
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": content},
        }
    )


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def build_large(path: Path, *, size: int) -> None:
    """One session of this size, made of ordinary messages."""
    texts = list(_texts(random.Random(7), 64))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        number = 0
        while file.tell() < size:
            number += 1
            text = f"{number} {texts[number % len(texts)]}"
            file.write(claude_message(path.stem, f"large {number}", text))


def invent_words(chance: random.Random, count: int) -> Iterator[str]:
    """Words that no sample holds."""
    for _ in range(count):
        yield _invent(chance).decode()


def _texts(chance: random.Random, count: int) -> Iterable[str]:
    for _ in range(count):
        yield " ".join(invent_words(chance, chance.randrange(40, 400)))


def claude_image(session: str, identity: str, data: str) -> bytes:
    """One user message of Claude Code that is an image, as a line; ``data`` is base64."""
    source = {"type": "base64", "media_type": "image/png", "data": data}
    value = orjson.loads(claude_message(session, identity, ""))
    value["message"]["content"] = [{"type": "image", "source": source}]
    return _line(value)
