"""Text on its way into the store: cleaned, redacted, split into words, timed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.document import CHUNK_CHARS, OVERLAP_CHARS, documents
from recall.hygiene import clean, clean_json
from recall.jsontext import MalformedLine, loads
from recall.keys import content_hash, copy_key, message_id, path_key, stable_id
from recall.timestamps import parse_timestamp
from recall_ingester.redact import redact
from recall_ingester.salvage import salvage

ANY_TEXT = st.text(st.characters(codec=None, categories=None))


@given(ANY_TEXT)
def test_cleaned_text_is_storable_and_only_bad_parts_changed(text: str) -> None:
    cleaned, damaged = clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert damaged or cleaned == text
    assert clean(cleaned) == (cleaned, False)


def test_surrogate_halves_that_belong_together_are_joined() -> None:
    assert clean("\ud83d\ude00 \ud83d") == ("\U0001f600 \ufffd", True)


def test_json_is_cleaned_in_keys_and_values() -> None:
    assert clean_json({"a\x00": ["\ud83d", 1, None]}) == {"a\ufffd": ["\ufffd", 1, None]}


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("src/foo/bar_baz.py:123", "src foo bar baz py 123\n"),
        ("--max-parallel-workers", "max parallel workers\nworkers"),
        (
            "UserProfile, UserProfile",
            "UserProfile UserProfile User Profile\nUserProfile User Profile",
        ),
        ("E0382", "E0382 E 0382\n"),
        ("HTTPServer2", "HTTPServer2 HTTP Server 2\nServer"),
        ("naïve caféBar", "naïve caféBar\nnaïve"),
        ("修正する", "修 正 す る\n"),
        ("\x1b[31merror\x1b[0m: no", "31merror 0m no error 31 merror\nmerror error"),
        ("", "\n"),
        ("!?", "\n"),
    ],
)
def test_document_has_words_whole_and_by_their_parts(text: str, document: str) -> None:
    (found,) = documents(text)
    assert [" ".join(line.split()) for line in found.split("\n")] == document.split("\n")


def test_long_word_is_cut() -> None:
    assert list(documents("x" * 1000)) == ["x" * 255 + "\n"]


@given(st.integers(CHUNK_CHARS - 50, 3 * CHUNK_CHARS))
def test_every_short_span_of_a_long_text_stands_whole_in_one_chunk(length: int) -> None:
    text = "".join(f"{n:07d} " for n in range(length // 8 + 1))[:length]
    chunks = list(documents(text))
    words = text.split()
    for place in range(0, len(words) - 10, 997):
        span = " ".join(words[place : place + 10])
        assert any(span in chunk for chunk in chunks)
    assert len(chunks) <= 1 + length // (CHUNK_CHARS - OVERLAP_CHARS)


SECRETS = [
    ("aws-key-id", "AKIA" + "ABCDEFGH12345678"),
    ("github-token", "ghp_" + "aB3" * 12),
    ("github-token", "github_pat_" + "a1_" * 25),
    ("gitlab-token", "glpat-" + "a1b2c3d4e5f6g7h8i9j0"),
    ("anthropic-key", "sk-ant-api03-" + "a1B2" * 12),
    ("openai-key", "sk-proj-" + "a1B2" * 12),
    ("slack-token", "xoxb-" + "123456789012-abcdef"),
    ("stripe-key", "sk_live_" + "a1B2" * 6),
    ("google-key", "AIza" + "a1B2c" * 7),
    ("npm-token", "npm_" + "a1B2c3" * 6),
    ("huggingface-token", "hf_" + "a1B2c3" * 6),
    ("jwt", "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0" + "." + "c2ln" * 8),
]


@pytest.mark.parametrize(("rule", "secret"), SECRETS, ids=[secret[:8] for _, secret in SECRETS])
def test_known_secret_is_replaced_and_its_surroundings_stay(rule: str, secret: str) -> None:
    text, count = redact(f"before {secret} after")
    assert count == 1
    assert text.startswith(f"before [redacted:{rule}:")
    assert text.endswith("] after")
    assert secret not in text
    assert redact(text) == (text, 0)


def test_only_the_secret_part_of_a_longer_shape_is_replaced() -> None:
    url, _ = redact("postgres://app:hunter22@db/x")
    assert url.startswith("postgres://app:[redacted:url-password:")
    assert url.endswith("]@db/x")
    header, _ = redact('"Authorization": "Bearer abcdefghijklmnop1234"')
    assert header.startswith('"Authorization": "Bearer [redacted:authorization:')
    key, count = redact(
        "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIE" * 20 + "\n-----END RSA PRIVATE KEY-----"
    )
    assert count == 1
    assert "MIIE" not in key


@pytest.mark.parametrize(
    "text",
    ["ask-ant for more", "sk-learn is fine", "https://example.org:8080/path@x", "xox",
     "npm_modules", "see task-4f1c2d3e", "git@github.com:acme/shop.git", "AKIA"],
)  # fmt: skip
def test_text_that_only_looks_similar_stays(text: str) -> None:
    assert redact(text) == (text, 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-08-01T09:00:00.000Z", datetime(2026, 8, 1, 9, tzinfo=UTC)),
        ("2026-08-01T11:00:00+02:00", datetime(2026, 8, 1, 9, tzinfo=UTC)),
        ("2026-08-01T09:00:00", datetime(2026, 8, 1, 9, tzinfo=UTC)),
        (1785574800, datetime(2026, 8, 1, 9, tzinfo=UTC)),
        (1785574800000, datetime(2026, 8, 1, 9, tzinfo=UTC)),
        (1785574800.0, datetime(2026, 8, 1, 9, tzinfo=UTC)),
        ("1785574800000", datetime(2026, 8, 1, 9, tzinfo=UTC)),
        ("[trimmed]", None),
        (None, None),
        (True, None),
        (10**400, None),
        (float("nan"), None),
        ({}, None),
    ],
)
def test_timestamps_of_every_client_get_a_zone(value: object, expected: datetime | None) -> None:
    assert parse_timestamp(value) == expected


def test_json_that_javascript_accepts_is_read() -> None:
    assert loads(b'{"a":"\\ud83d"}') == ({"a": "\ud83d"}, False)
    assert loads(b'{"a":1,"a":2}') == ({"a": 2}, False)
    assert loads(b'{"a":"\xff"}') == ({"a": "\ufffd"}, True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 6_000, "number out of range"),
    ],
)
def test_malformed_line_has_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedLine, match=reason):
        loads(data)


def test_salvage_takes_the_last_whole_record_only() -> None:
    assert salvage(b'{"type":"user","me{"type":"user","n":2}') == {"type": "user", "n": 2}
    assert salvage(b'{"type":"user"}{"type":"assistant"}') == {"type": "assistant"}
    assert salvage(b'{"type":"user","message":{"id":"x"}') is None
    assert salvage(b'{"type":"user"') is None


def test_ids_come_from_content_and_stay_positive() -> None:
    assert message_id("a:b:c", 1, 2) == message_id("a:b:c", 1, 2)
    assert message_id("a:b:c", 12, 3) != message_id("a:b:c", 1, 23)
    assert 0 < stable_id("x") < 2**63
    digest = content_hash("x")
    assert copy_key("codex", None, digest) is None
    assert copy_key("codex", "t", digest) != copy_key("claude-code", "t", digest)


def test_path_that_is_not_utf8_becomes_text_that_differs(tmp_path: object) -> None:
    from pathlib import Path

    assert path_key(Path("/logs/ok é.jsonl")) == "/logs/ok é.jsonl"
    assert path_key(Path("/logs/bad \udce9.jsonl")) == "/logs/bad %E9.jsonl"


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-01:00"])
def test_a_time_outside_of_all_years_of_utc_is_none(text: str) -> None:
    assert parse_timestamp(text) is None
