"""Where texts are cut, what becomes one document, and where a passage says that it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from recall.keys import content_hash, stable_id
from recall_embedder.passages import (
    Entry,
    Passage,
    PassageDraft,
    cut,
    documents,
    passages_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TS = datetime(2026, 8, 1, 9, tzinfo=UTC)
KINDS = ("text", "summary", "ledger", "memory")


class Words:
    """A tokenizer without a model: a word is a token, and so is a punctuation mark."""

    name = "words"
    dimension = 1
    pooling = "mean"
    max_tokens = 512
    threads_safe = True

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NotImplementedError


WORDS = Words()

TEXTS = st.lists(
    st.sampled_from(["word", "x", "end.", "(a)", "\n", "\n\n", "  ", "a-b", "日本。", "e\u0301t"]),
    max_size=300,
).map(" ".join)
SIZES = st.tuples(st.integers(3, 40), st.integers(0, 30))


def entry(
    ordinal: int, role: str, text: str, kind: str = "text", part: int = 0, session: str = "s"
) -> Entry:
    return Entry(
        id=1_000 + ordinal * 10 + part,
        ordinal=ordinal,
        part=part,
        session_key=session,
        source="claude-code",
        host="desk",
        project="shop",
        role=role,
        kind=kind,
        ts=TS,
        content=text,
    )


def pieces(text: str, max_tokens: int, overlap: int = 0) -> list[str]:
    found = cut(text, WORDS.spans(text), max_tokens=max_tokens, overlap=overlap)
    return [text[one.start_char : one.start_char + one.length] for one in found]


def drafts(
    entries: Sequence[Entry], max_tokens: int = 12, overlap: int = 0, kinds: Sequence[str] = KINDS
) -> list[PassageDraft]:
    return list(passages_of(entries, WORDS, max_tokens, overlap, kinds))


def test_a_short_text_is_one_passage_without_the_space_around_it() -> None:
    text = "  two words \n"
    assert cut(text, WORDS.spans(text), max_tokens=12, overlap=4) == [Passage(2, 9, 4)]


def test_a_text_without_tokens_has_no_passage() -> None:
    assert pieces("", 12) == []
    assert pieces(" \n\t ", 12) == []


def test_a_paragraph_ends_a_passage_before_a_later_line_or_sentence() -> None:
    words = [f"w{n}" for n in range(30)]
    text = f"{' '.join(words[:16])}\n\nnow. Then\nanother {' '.join(words[20:])}"
    assert pieces(text, 22)[0] == " ".join(words[:16])


def test_a_sentence_ends_a_passage_before_a_later_space() -> None:
    words = [f"w{n}" for n in range(40)]
    text = f"{' '.join(words[:15])}. {' '.join(words[15:])}"
    assert pieces(text, 22)[0].endswith("w14.")


def test_an_end_before_the_last_quarter_does_not_count() -> None:
    words = [f"w{n}" for n in range(40)]
    text = f"{' '.join(words[:5])}\n\n{' '.join(words[5:])}"
    assert pieces(text, 22)[0].endswith(" w19")


def test_a_word_is_not_cut_if_there_is_another_place() -> None:
    # One token a character: only the hyphens are between words.
    text = "aaaaaaaa-bbbbbbbb-cccccccc"
    found = cut(text, [(n, n + 1) for n in range(len(text))], max_tokens=12, overlap=0)
    assert text[: found[0].length] == "aaaaaaaa-"


def test_the_next_passage_repeats_whole_sentences_within_the_overlap() -> None:
    words = [f"w{n}" for n in range(40)]
    text = f"{' '.join(words[:16])}. {' '.join(words[17:19])}. {' '.join(words[19:])}"
    first, second = pieces(text, 24, overlap=5)[:2]
    assert first.endswith("w17 w18.")
    assert second.startswith("w17 w18. w19")


@given(TEXTS, SIZES)
def test_passages_cover_the_text_in_bounded_pieces(text: str, sizes: tuple[int, int]) -> None:
    max_tokens, overlap = sizes
    spans = WORDS.spans(text)
    found = cut(text, spans, max_tokens=max_tokens, overlap=overlap)
    covered: set[int] = set()
    for one in found:
        end = one.start_char + one.length
        piece = text[one.start_char : end]
        assert piece
        assert piece == piece.strip()
        assert len(WORDS.spans(piece)) + 2 == one.tokens <= max_tokens
        covered.update(range(one.start_char, end))
    assert all(place in covered for place, char in enumerate(text) if not char.isspace())
    for before, after in pairwise(found):
        assert before.start_char < after.start_char
        assert before.start_char + before.length < after.start_char + after.length
        shared = text[after.start_char : before.start_char + before.length]
        assert len(WORDS.spans(shared)) <= overlap


@given(TEXTS, TEXTS, SIZES)
def test_a_text_that_grows_keeps_its_passages_but_the_last_two(
    text: str, more: str, sizes: tuple[int, int]
) -> None:
    max_tokens, overlap = sizes
    before = cut(text, WORDS.spans(text), max_tokens=max_tokens, overlap=overlap)
    grown = text + more
    after = cut(grown, WORDS.spans(grown), max_tokens=max_tokens, overlap=overlap)
    kept = before[: max(0, len(before) - 2)]
    assert after[: len(kept)] == kept


def test_assistant_texts_between_two_prompts_are_one_document_whatever_tools_did() -> None:
    entries = [
        entry(0, "user", "Fix it."),
        entry(1, "assistant", "I look."),
        entry(2, "assistant", "ls", "tool_call"),
        entry(3, "tool", "a.py", "tool_result"),
        entry(4, "assistant", "Found."),
        entry(5, "user", "And?"),
        entry(6, "assistant", "Done."),
    ]
    assert [one.text for one in documents(entries)] == [
        "Fix it.",
        "I look.\n\nFound.",
        "ls",
        "a.py",
        "And?",
        "Done.",
    ]


def test_parts_of_one_prompt_are_one_document_and_two_prompts_are_two() -> None:
    entries = [
        entry(0, "user", "See this:", part=0),
        entry(0, "user", "[image]", part=1),
        entry(1, "user", "Well?"),
    ]
    assert [one.text for one in documents(entries)] == ["See this:\n\n[image]", "Well?"]


def test_a_summary_is_a_document_of_its_own_and_does_not_end_a_run() -> None:
    entries = [
        entry(0, "assistant", "Before."),
        entry(1, "system", "What was done.", "summary"),
        entry(2, "assistant", "After."),
    ]
    assert [one.text for one in documents(entries)] == ["Before.\n\nAfter.", "What was done."]


def test_kinds_outside_the_setting_and_empty_texts_are_left_out() -> None:
    entries = [
        entry(0, "user", " \n"),
        entry(1, "assistant", "hm", "thinking"),
        entry(2, "tool", "out", "tool_result"),
        entry(3, "assistant", "Yes."),
    ]
    assert [draft.passage for draft in drafts(entries)] == ["Yes."]
    assert [draft.passage for draft in drafts(entries, kinds=("thinking", "tool_result"))] == [
        "hm",
        "out",
    ]


def test_a_passage_has_the_columns_of_its_entry_and_a_stable_id() -> None:
    (draft,) = drafts([entry(3, "user", "How  do I\n\tfix this?")])
    assert draft == PassageDraft(
        id=stable_id("passage", 1_030, 0),
        entry_id=1_030,
        session_key="s",
        source="claude-code",
        host="desk",
        project="shop",
        role="user",
        kind="text",
        ts=TS,
        start_char=0,
        length=20,
        tokens=8,
        text_hash=content_hash("How do I fix this?"),
        passage="How do I fix this?",
    )


def test_passages_of_one_entry_are_numbered_and_give_their_place() -> None:
    text = " ".join(f"w{n}" for n in range(25))
    found = drafts([entry(0, "user", text)])
    assert [draft.id for draft in found] == [stable_id("passage", 1_000, n) for n in range(3)]
    for draft in found:
        assert text[draft.start_char : draft.start_char + draft.length] == draft.passage


def test_a_passage_over_several_entries_belongs_to_the_one_with_most_of_it() -> None:
    long = "This remark is the long one"
    entries = [
        entry(0, "assistant", "Hm."),
        entry(1, "assistant", long),
        entry(2, "assistant", "Ok."),
    ]
    (draft,) = drafts(entries, max_tokens=20)
    assert draft.passage == f"Hm. {long} Ok."
    assert (draft.entry_id, draft.start_char, draft.length) == (1_010, 0, len(long))


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), TEXTS.map(lambda t: t[:120])),
        max_size=12,
    ),
    SIZES,
)
def test_every_place_lies_in_its_entry_and_ids_are_unique(
    said: list[tuple[str, str]], sizes: tuple[int, int]
) -> None:
    entries = [entry(n, role, text) for n, (role, text) in enumerate(said)]
    found = drafts(entries, *sizes)
    assert len({draft.id for draft in found}) == len(found)
    by_id = {one.id: one.content for one in entries}
    for draft in found:
        assert draft.length > 0
        assert 0 <= draft.start_char <= len(by_id[draft.entry_id]) - draft.length
        place = by_id[draft.entry_id][draft.start_char : draft.start_char + draft.length]
        assert " ".join(place.split()) in draft.passage


def test_a_run_that_grows_by_an_entry_keeps_the_ids_and_texts_of_its_passages() -> None:
    entries = [entry(n, "assistant", f"Step {n} is done now.") for n in range(12)]
    before = drafts(entries, overlap=4)
    after = drafts([*entries, entry(12, "assistant", "One more.")], overlap=4)
    assert len(before) > 4
    assert after[: len(before) - 2] == before[:-2]


def test_cutting_may_begin_at_any_document() -> None:
    entries = [
        entry(n, "user" if n % 3 == 0 else "assistant", f"Text number {n} of them all.")
        for n in range(9)
    ]
    whole = drafts(entries)
    assert drafts(entries[3:]) == [draft for draft in whole if draft.entry_id >= entries[3].id]


def test_what_no_database_takes_is_replaced_in_the_passage() -> None:
    (draft,) = drafts([entry(0, "user", "a\x00 \ud800 b")])
    assert draft.passage == "a\ufffd \ufffd b"
    assert draft.text_hash == content_hash(draft.passage)
