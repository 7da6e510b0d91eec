"""A query falls into the same words as the text that it looks for."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recall import document
from tests.db.search_store import Messages, searching

_SCRIPTS = "aZ09_-/.éßİKΣςñ½²Ⅷ①वािक्ক数据カな한글กำ\u0301\u200d👍ﬁ Ａ٣\u00a0\t\n"


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


@pytest.fixture
def newer(messages: Messages) -> set[str]:
    """Characters that this Python takes for letters and Unicode 14 did not know."""
    row = messages.connection.execute("select recall.word_characters()::text").fetchone()
    assert row is not None
    known = {
        chr(code)
        for first, end in re.findall(r"\[(\d+),(\d+)\)", row[0])
        for code in range(int(first), int(end))
    }
    here = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isalnum()}
    assert not known - here, "a letter of the table is no letter here"
    return here - known


def test_the_table_of_letters_is_that_of_python(newer: set[str]) -> None:
    if unicodedata.unidata_version == "14.0.0":
        assert not newer
    assert len(newer) < 20_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text() | st.text(_SCRIPTS) | st.text("aB1_ 数", min_size=250), max_size=8))
def test_words_are_those_of_the_index_document(
    messages: Messages, newer: set[str], texts: list[str]
) -> None:
    texts = ["".join(c for c in text if c not in newer and c != "\0") for text in texts]
    rows = messages.connection.execute(
        "select array_agg(recall.words(t) order by n)"
        " from unnest(%s::text[]) with ordinality x (t, n)",
        (texts,),
    ).fetchone()
    assert rows is not None
    for text, words in zip(texts, rows[0] or [], strict=True):
        indexed = " ".join(document.documents(text))
        found = words.split()
        spaced = document._UNSPACED.sub(r" \1 ", text)
        assert len(found) == len(document._WORD.findall(spaced))
        assert indexed.split()[: len(found)] == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("src/foo/bar_baz.py:123", "src foo bar baz py 123"),
        ("--max-parallel-workers", "max parallel workers"),
        ("数据库abc", "数 据 库 abc"),
        ("x" * 300 + " y", "x" * 255 + " y"),
        ("…—", ""),
        ("", ""),
    ],
)
def test_words(messages: Messages, text: str, words: str) -> None:
    row = messages.connection.execute("select recall.words(%s)", (text,)).fetchone()
    assert row == (words,)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text("0123456789eExXaAfFvV", min_size=1, max_size=9), min_size=1, max_size=50)
)
def test_words_of_an_exact_query_are_in_the_index_row(messages: Messages, words: list[str]) -> None:
    """PostgreSQL takes `9e85fv` for a number and a word, in the row and in the query alike."""
    rows = messages.connection.execute(
        "select w from unnest(%s::text[]) w"
        " where not recall.index_document('see ' || w || 'tail1e5x') @@"
        "  (recall.whole_words('see ' || w)).query"
        " or not recall.index_document('see ' || w || ' b') @@"
        "  (recall.whole_words('e ' || w || ' b')).query",
        (words,),
    ).fetchall()
    assert rows == []
