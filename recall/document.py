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

#: Characters of a message in one index row. PostgreSQL keeps 255 places of a word in a row and
#: 16,383 in all; in a longer row, phrases of a word that repeats in every line would be lost.
CHUNK_CHARS = 8_000
#: How far a chunk reaches back into the one before it, so that a phrase on the border is found;
#: an exact search relies on 300 (sql/recall_sql/migrations/0005_scan_search.sql).
OVERLAP_CHARS = 400
#: A longer word is cut; PostgreSQL drops lexemes over 2 KB, a cut word is still found by prefix.
WORD_CHARS = 255

_WORD = re.compile(r"[^\W_]+")
_SYMBOLS = re.compile(r"[^\x00-\x7f\w]+")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: The same for ASCII text, which most is, at a fifth of the cost: what is no word becomes a space.
_ASCII_WORDS = {code: " " for code in range(128) if not chr(code).isalnum()}
# Scripts written without spaces: each character is a word, so that a phrase of them is found.
_UNSPACED = re.compile("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_BORDER = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)
_MIXED = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]|[^\W\d_]\d|\d[^\W\d_]")

#: How every English word ends that stemming changes: the suffixes of the Porter 2 rules, shortened
#: to what they have in common. https://snowballstem.org/algorithms/english/stemmer.html
_STEMMED_ENDINGS = (
    "s", "e", "y", "i", "ed", "ing", "ant", "ent", "ion", "er", "or", "al", "ful", "ism", "ic",
    "ll",
)  # fmt: skip

#: What was found out about words seen lately: the same ones come again and again, and a look-up
#: costs a tenth of the searches.
_KNOWN_WORDS = 200_000
_Found = tuple[tuple[str, ...], tuple[str, ...]]
_NOTHING: _Found = ((), ())
_known: dict[str, _Found] = {}


def documents(text: str) -> Iterator[str]:
    """The index documents of a text: one for most, several with a small overlap for a long one.

    A document has two lines. The first has every word in order and, behind them, the parts of mixed
    words; it is indexed as it stands. The second has each word once that English stemming may
    shorten: only its stem is new to the index, and where it stands is known from the first line.
    """
    if len(text) <= CHUNK_CHARS:
        yield _document(text)
        return
    for at in range(0, len(text) - OVERLAP_CHARS, CHUNK_CHARS - OVERLAP_CHARS):
        yield _document(text[at : at + CHUNK_CHARS])


def _document(text: str) -> str:
    words: list[str]
    if not text.isascii():  # most often because of an arrow, a dash or an ellipsis
        text = _SYMBOLS.sub(" ", text)
    if text.isascii():
        line = text.translate(_ASCII_WORDS)
        words = line.split()
    else:
        words = _WORD.findall(_UNSPACED.sub(r" \1 ", text))
        line = " ".join(words)
    unique = dict.fromkeys(words)
    parts: list[str] = []
    if "\x1b" in text:  # a colour code sticks to the word behind it
        plain = dict.fromkeys(_WORD.findall(_ANSI.sub(" ", text)))
        parts = [word[:WORD_CHARS] for word in plain if word not in unique]
        unique |= dict.fromkeys(parts)
    stems: list[str] = []
    has_long = False
    for word in unique:
        found = _known.get(word)
        if found is None:
            if len(word) > WORD_CHARS:
                has_long = True
                continue
            found = _look_into(word)
        if found is not _NOTHING:
            parts += found[0]
            stems += found[1]
    if has_long:
        line = " ".join(word[:WORD_CHARS] for word in words)
    if parts:
        line = f"{line} {' '.join(parts)}"
    return f"{line}\n{' '.join(stems)}"


def _look_into(word: str) -> _Found:
    """The parts of a mixed word, and of the word and its parts those that may have a stem."""
    if len(_known) >= _KNOWN_WORDS:
        _known.clear()
    parts: tuple[str, ...] = ()
    if len(word) > 2 and _MIXED.search(word):
        parts = tuple(_BORDER.split(word))
    stems = tuple(
        form
        for form in (word, *parts)
        if len(form) > 2 and form.lower().endswith(_STEMMED_ENDINGS) and form.isalpha()
    )
    found = (parts, stems) if parts or stems else _NOTHING
    _known[word] = found
    return found
