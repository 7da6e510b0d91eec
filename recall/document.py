"""What the text index sees of a message.

PostgreSQL's parser turns paths, hosts and versions into single opaque tokens, so a part of them is
not found. Before indexing, every character that is not a letter or digit therefore becomes a space,
and the parts of camelCase and letter-digit words are appended at the end, where they do not disturb
the distance between neighbours that a phrase search relies on. The query is normalised by the same
rule in SQL (``recall.words``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Characters of a message in one index row; keeps word positions below PostgreSQL's limit of 16383.
CHUNK_CHARS = 32_000
#: How far a chunk reaches back into the one before it, so that a phrase on the border is found.
OVERLAP_CHARS = 400
#: A longer word is cut; PostgreSQL drops lexemes over 2 KB, a cut word is still found by prefix.
WORD_CHARS = 255

_WORD = re.compile(r"[^\W_]+")
# Scripts written without spaces: each character is a word, so that a phrase of them is found.
_UNSPACED = re.compile("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_BORDER = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)
_MIXED = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]|[^\W\d_]\d|\d[^\W\d_]")

#: The parts of words seen lately: the same words come again and again, and a look-up costs a tenth
#: of the two searches.
_KNOWN_WORDS = 200_000
_known_parts: dict[str, tuple[str, ...]] = {}


def documents(text: str) -> Iterator[str]:
    """The index documents of a text: one for most, several with a small overlap for a long one."""
    if len(text) <= CHUNK_CHARS:
        yield _document(text)
        return
    for at in range(0, len(text) - OVERLAP_CHARS, CHUNK_CHARS - OVERLAP_CHARS):
        yield _document(text[at : at + CHUNK_CHARS])


def _document(text: str) -> str:
    if not text.isascii():
        text = _UNSPACED.sub(r" \1 ", text)
    words: list[str] = _WORD.findall(text)
    parts: list[str] = []
    known = _known_parts
    for place, word in enumerate(words):
        found = known.get(word)
        if found is None:
            if len(word) > WORD_CHARS:
                words[place] = word[:WORD_CHARS]
                continue
            found = _remember_parts(word)
        if found:
            parts += found
    words += parts
    return " ".join(words)


def _remember_parts(word: str) -> tuple[str, ...]:
    if len(_known_parts) >= _KNOWN_WORDS:
        _known_parts.clear()
    found: tuple[str, ...] = ()
    if len(word) > 2 and _MIXED.search(word):
        found = tuple(_BORDER.split(word))
    _known_parts[word] = found
    return found
