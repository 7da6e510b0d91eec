"""Inputs of a size that would show a reader whose memory follows what it reads.

Their bytes hardly compress, as those of images do not: what is kept of the original bytes is then
as large as it can be. Equal arguments give equal bytes.
"""

from __future__ import annotations

import base64
import json
import random
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from ops.bench import corpus

_IMAGE_BYTES = 750_000
_EPOCH_MS = 1_780_000_000_000
_OPENCODE_SCHEMA = """
create table project(id text primary key, worktree text, time_updated integer);
create table session(
  id text primary key, project_id text, parent_id text, directory text, title text,
  version text, time_created integer, time_updated integer);
create table message(
  id text primary key, session_id text, time_created integer, time_updated integer, data text);
create table part(
  id text primary key, message_id text, session_id text, time_created integer,
  time_updated integer, data text);
create index part_session on part(session_id);
create index message_session on message(session_id);
"""


class Prose:
    """Texts of invented words, a few of them frequent and most of them rare."""

    def __init__(self, seed: int, *, words: int = 5_000) -> None:
        self._chance = random.Random(seed)
        self._words = list(corpus.invent_words(self._chance, words))
        self._weights = list(accumulate(1 / rank for rank in range(1, words + 1)))

    def text(self, characters: int) -> str:
        """About so many characters."""
        count = max(1, characters // 7)
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=count))


def image_data(chance: random.Random, size: int = _IMAGE_BYTES) -> str:
    """Base64 of bytes that do not compress."""
    return base64.b64encode(chance.randbytes(size)).decode()


def build_lines(path: Path, *, size: int) -> None:
    """A session of Claude Code: ordinary messages, and among them images of 1 MB."""
    chance, prose = random.Random(7), Prose(7)
    texts = [prose.text(1_500) for _ in range(64)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        number = 0
        while file.tell() < size:
            number += 1
            text = f"{number} {texts[number % len(texts)]}"
            file.write(corpus.claude_message(path.stem, f"large {number}", text))
            if number % len(texts) == 0:
                image = image_data(chance)
                file.write(corpus.claude_image(path.stem, f"image {number}", image))


def build_long_line(path: Path, *, size: int) -> None:
    """A session of Claude Code with three messages, the middle one a line of this size."""
    chance = random.Random(11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(corpus.claude_message(path.stem, "before", "before the long line"))
        head, tail = corpus.claude_message(path.stem, "long", "@").split(b"@")
        end = file.tell() + size
        file.write(head)
        while (left := end - file.tell() - len(tail)) > 0:
            file.write(image_data(chance)[:left].encode())
        file.write(tail)
        file.write(corpus.claude_message(path.stem, "after", "after the long line"))


def build_document(path: Path, *, size: int, images: bool) -> None:
    """A conversation of Gemini CLI in one JSON document of exactly this size: nine tenths images,
    or text alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = b'{"sessionId":"%s","messages":[' % path.stem.encode()
    with path.open("wb") as file:
        file.write(head)
        for entry in _entries(images=images):
            if file.tell() + len(entry) > size - 1_000:
                break
            file.write(entry + b",")
        empty = _entry("last", "")
        file.write(_entry("last", "x" * (size - file.tell() - len(empty) - 2)) + b"]}")


def _entries(*, images: bool) -> Iterator[bytes]:
    chance, prose = random.Random(13), Prose(13)
    number = 0
    while True:
        number += 1
        yield _entry(f"m{number}", prose.text(4_000))
        if images and number % 28 == 0:
            media = {"mimeType": "image/png", "data": image_data(chance)}
            yield _entry(f"i{number}", [{"inlineData": media}])


def _entry(identity: str, content: object) -> bytes:
    return _json({"id": identity, "type": "user", "content": content})


def build_opencode(path: Path, *, large_bytes: int, small: int) -> None:
    """An opencode database: one session of this size, three quarters of it images, and small ones
    of four messages each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    chance, prose = random.Random(17), Prose(17)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(_OPENCODE_SCHEMA)
        connection.execute("insert into project values ('p', '/home/dev/project', 1)")
        written = number = 0
        _session(connection, "ses_large")
        while written < large_bytes:
            number += 1
            parts: list[dict[str, str]] = [{"type": "text", "text": prose.text(20_000)}]
            if number % 16 == 0:
                url = f"data:image/png;base64,{image_data(chance)}"
                parts.append({"type": "file", "mime": "image/png", "url": url})
            written += _turn(connection, "ses_large", number, parts)
        for session in range(small):
            name = f"ses_{session:05}"
            _session(connection, name)
            for turn in range(4):
                _turn(connection, name, turn, [{"type": "text", "text": prose.text(600)}])


def _session(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(
        "insert into session values (?, 'p', null, '/home/dev/project', ?, '1.0', ?, ?)",
        (name, f"title of {name}", _EPOCH_MS, _EPOCH_MS),
    )


def _turn(
    connection: sqlite3.Connection, session: str, number: int, parts: list[dict[str, str]]
) -> int:
    at = _EPOCH_MS + number
    message = f"msg_{session}_{number:06}"
    role = "assistant" if number % 2 else "user"
    data = json.dumps({"role": role, "time": {"created": at}})
    connection.execute(
        "insert into message values (?, ?, ?, ?, ?)", (message, session, at, at, data)
    )
    written = len(data)
    for place, part in enumerate(parts):
        data = json.dumps(part)
        name = f"prt_{session}_{number:06}_{place}"
        connection.execute(
            "insert into part values (?, ?, ?, ?, ?, ?)", (name, message, session, at, at, data)
        )
        written += len(data)
    return written


def build_chatgpt_zip(path: Path, *, size: int, messages: int = 100) -> None:
    """A data export of ChatGPT whose conversations are one line of about this size.

    Its texts have few different words, so that the text index does not take most of the time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("conversations.json", "w", force_zip64=True) as member,
    ):
        _write_conversations(member, size, messages)


def _write_conversations(member: IO[bytes], size: int, messages: int) -> None:
    prose = Prose(19, words=40)
    texts = [prose.text(10_000) for _ in range(messages)]
    written = member.write(b"[")
    number = 0
    while written < size:
        number += 1
        lead = b"," if number > 1 else b""
        written += member.write(lead + _json(_conversation(number, texts)))
    member.write(b"]")


def _conversation(number: int, texts: list[str]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    parent = None
    for place, text in enumerate(texts):
        name = corpus.new_id(f"node {place}", number)
        mapping[name] = {
            "id": name,
            "parent": parent,
            "children": [],
            "message": {
                "id": name,
                "author": {"role": "assistant" if place % 2 else "user"},
                "create_time": _EPOCH_MS / 1000 + place,
                "content": {"content_type": "text", "parts": [f"{number} {place} {text}"]},
            },
        }
        if parent is not None:
            mapping[parent]["children"].append(name)
        parent = name
    return {
        "title": f"conversation {number}",
        "create_time": _EPOCH_MS / 1000,
        "update_time": _EPOCH_MS / 1000 + len(texts),
        "mapping": mapping,
        "current_node": parent,
        "conversation_id": corpus.new_id("conversation", number),
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
