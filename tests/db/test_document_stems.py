"""The second line of a document holds every word whose stem differs from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recall.document import documents
from tests.db.ingesting import ingest, rows

# One word or more for each rule of the English stemmer, and its exceptions.
WORDS = """
    caresses gaps kiwis gas ties cries agreed feed plastered motoring conflated troubled sized
    hopping tanned falling hissing fizzed failing filing happy sky dying lying tying idly gently
    ugly early only singly news inning relational conditional rational valency hesitancy digitizer
    conformably radically differently vilely analogously vietnamization predication operator
    feudalism decisiveness hopefulness callousness formality sensitivity sensibility triplicate
    formative formalize electricity electrical hopeful goodness revival allowance inference airliner
    gyroscopic adjustable defensible irritant replacement adjustment dependent adoption communism
    activate angularity homologous effective bowdlerize probate rate cease controll roll theology
    semantically Users MIGRATIONS queries indices timeouts retried retries connection connected
"""


def test_no_stem_is_left_out_of_known_words(database: str) -> None:
    _check(database, WORDS.split())


@pytest.mark.corpus
def test_no_stem_is_left_out_of_real_logs(database: str, corpus: Path) -> None:
    ingest(database, corpus / "claude/episodic-memory")
    text = " ".join(row[0] for row in rows(database, "select content from recall.message"))
    words = {word for word in text.split() if word.isalpha() and word.isascii()}
    assert len(words) > 2_000
    _check(database, sorted(words))


def _check(url: str, words: list[str]) -> None:
    chunks = documents(" ".join(words))
    listed = {word.lower() for chunk in chunks for word in chunk.partition("\n")[2].split()}
    changed = rows(
        url,
        "select lower(word) from unnest(%s::text[]) as word"
        " where ts_lexize('pg_catalog.english_stem', word) not in"
        " (array[]::text[], array[lower(word)])",
        words,
    )
    assert len(changed) > len(words) / 10
    assert {row[0] for row in changed if len(row[0]) > 2} - listed == set()
