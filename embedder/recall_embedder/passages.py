"""What is embedded: pieces of bounded length, and the place that each of them has in an entry.

A passage comes from a document: one user prompt, one assistant run, or one entry of any other kind.
Cutting looks only ahead as far as one passage is long, so a document that grows keeps the passages
that it had, but the last one or two; their ids come from the entry and do not change either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from recall.hygiene import clean
from recall.keys import content_hash, stable_id
from recall_embedder.model import Model

#: What a tokenizer adds to a text: one token at its beginning, one at its end.
SPECIAL_TOKENS = 2
_BETWEEN_ENTRIES = "\n\n"
_SENTENCE_ENDS = frozenset(".!?…。！？")  # noqa: RUF001 - those of Chinese and Japanese too

# How good a place is to cut at.
_IN_WORD, _BETWEEN_WORDS, _SPACE, _LINE_OR_SENTENCE, _PARAGRAPH = range(5)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message, or a note as if it were one: its kind is its shelf and it has no session key."""

    id: int
    ordinal: int
    part: int
    session_key: str | None
    source: str
    host: str
    project: str | None
    role: str
    kind: str
    ts: datetime | None
    content: str


@dataclass(frozen=True, slots=True)
class Document:
    """What is cut as one text: the entries, joined by a blank line."""

    entries: tuple[Entry, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return _BETWEEN_ENTRIES.join(entry.content for entry in self.entries)

    def starts(self) -> list[int]:
        """Where each entry begins in the text."""
        places = [0]
        for entry in self.entries[:-1]:
            places.append(places[-1] + len(entry.content) + len(_BETWEEN_ENTRIES))
        return places


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a text. ``tokens`` counts the special ones too."""

    start_char: int
    length: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PassageDraft:
    """A row of ``recall.embed_queue``, but for what the queue says about its work.

    ``entry_id`` is the entry in which most of the passage stands, ``start_char`` and ``length`` are
    the part of it that stands there. ``passage`` is the text that the model gets, whole.
    """

    id: int
    entry_id: int
    session_key: str | None
    source: str
    host: str
    project: str | None
    role: str
    kind: str
    ts: datetime | None
    start_char: int
    length: int
    tokens: int
    text_hash: bytes
    passage: str


def documents(entries: Sequence[Entry]) -> list[Document]:
    """The documents of one session (or of one note), from its entries in order.

    The texts of the assistant between two of the user are one document, whatever tools did in
    between; so are the parts of one prompt. Entries without text are left out.
    """
    found: list[list[Entry]] = []
    run: list[Entry] | None = None
    prompt: list[Entry] | None = None
    for entry in entries:
        if not entry.content.strip():
            continue
        if (entry.role, entry.kind) == ("assistant", "text"):
            if run is None:
                found.append(run := [])
            run.append(entry)
        elif (entry.role, entry.kind) == ("user", "text"):
            if prompt is None or prompt[0].ordinal != entry.ordinal:
                found.append(prompt := [])
            prompt.append(entry)
            run = None
        else:
            found.append([entry])
    return [Document(tuple(document)) for document in found]


def cut(
    text: str, spans: Sequence[tuple[int, int]], *, max_tokens: int, overlap: int
) -> list[Passage]:
    """Cut a text whose tokens are ``spans``; every character but white space is in a passage.

    No passage is longer than ``max_tokens``, special tokens included. It ends at the best place in
    its last quarter: the end of a paragraph, of a line or sentence, a space. The next one begins at
    most ``overlap`` tokens before that, at the first such place. No tokens, no passages.
    """
    limit = max(1, max_tokens - SPECIAL_TOKENS)
    overlap = min(overlap, limit // 2)
    found: list[Passage] = []
    first = 0
    while first < len(spans):
        end = first + limit
        if end >= len(spans):
            found.append(_passage(text, spans, first, len(spans)))
            break
        ends = range(end, max(first, end - limit // 4 - 1), -1)
        end = max(ends, key=lambda place: _quality(text, spans, place))
        found.append(_passage(text, spans, first, end))
        first = _next_start(text, spans, max(first + 1, end - overlap), end)
    return found


def passages_of(
    entries: Sequence[Entry],
    model: Model,
    max_tokens: int,
    overlap: int,
    kinds: Collection[str],
) -> Iterator[PassageDraft]:
    """The passages of one session or note, from all its entries in order.

    ``entries`` may begin at the first entry of any document: what comes before changes nothing.
    """
    max_tokens = min(max_tokens, model.max_tokens)
    for document in documents([entry for entry in entries if entry.kind in kinds]):
        text = document.text
        starts = document.starts()
        chunks: Counter[int] = Counter()
        for passage in cut(text, model.spans(text), max_tokens=max_tokens, overlap=overlap):
            index = _home(document, starts, passage)
            entry = document.entries[index]
            chunk = chunks[entry.id]
            chunks[entry.id] += 1
            yield _draft(entry, chunk, starts[index], passage, text)


def _draft(entry: Entry, chunk: int, entry_start: int, passage: Passage, text: str) -> PassageDraft:
    end = passage.start_char + passage.length
    start_char = max(0, passage.start_char - entry_start)
    # A tokenizer sees no difference between one space and many; copies of a text differ there.
    words = " ".join(clean(text[passage.start_char : end])[0].split())
    return PassageDraft(
        id=stable_id("passage", entry.id, chunk),
        entry_id=entry.id,
        session_key=entry.session_key,
        source=entry.source,
        host=entry.host,
        project=entry.project,
        role=entry.role,
        kind=entry.kind,
        ts=entry.ts,
        start_char=start_char,
        length=min(end - entry_start, len(entry.content)) - start_char,
        tokens=passage.tokens,
        text_hash=content_hash(words),
        passage=words,
    )


def _home(document: Document, starts: Sequence[int], passage: Passage) -> int:
    """The index of the entry in which most of a passage stands; the first of equals."""
    end = passage.start_char + passage.length
    index = bisect_right(starts, passage.start_char) - 1
    best, most = index, -1
    while index < len(starts) and starts[index] < end:
        entry_end = starts[index] + len(document.entries[index].content)
        shared = min(end, entry_end) - max(passage.start_char, starts[index])
        if shared > most:
            best, most = index, shared
        index += 1
    return best


def _passage(text: str, spans: Sequence[tuple[int, int]], first: int, end: int) -> Passage:
    """The tokens from ``first`` to ``end`` with what stands between them and around them.

    Up to the next token and not to the end of the last one: a tokenizer drops characters.
    """
    start_char = spans[first][0] if first else 0
    end_char = spans[end][0] if end < len(spans) else len(text)
    piece = text[start_char:end_char]
    start_char += len(piece) - len(piece.lstrip())
    return Passage(start_char, len(piece.strip()), end - first + SPECIAL_TOKENS)


def _next_start(text: str, spans: Sequence[tuple[int, int]], least: int, end: int) -> int:
    places = range(least, end)
    for wanted in (_LINE_OR_SENTENCE, _SPACE, _BETWEEN_WORDS):
        for place in places:
            if _quality(text, spans, place) >= wanted:
                return place
    return end


def _quality(text: str, spans: Sequence[tuple[int, int]], place: int) -> int:
    """How good it is to cut before a token that is neither the first nor behind the last."""
    before, after = spans[place - 1][1], spans[place][0]
    gap = text[before:after]
    if "\n" in gap:
        return _PARAGRAPH if gap.count("\n") > 1 else _LINE_OR_SENTENCE
    last = text[before - 1 : before]
    if gap and (gap[0].isspace() or gap[-1].isspace()):
        return _LINE_OR_SENTENCE if last in _SENTENCE_ENDS else _SPACE
    if last in _SENTENCE_ENDS and not last.isascii():
        return _LINE_OR_SENTENCE
    return _IN_WORD if last.isalnum() and text[after : after + 1].isalnum() else _BETWEEN_WORDS
