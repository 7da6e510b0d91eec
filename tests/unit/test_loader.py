"""Named SQL blocks."""

from __future__ import annotations

from importlib import resources

import pytest

from recall_sql.loader import load, parse_blocks

TEXT = """\
-- What a file says about itself.

-- name: first
-- Finds one.
select 1

-- name: second
-- Finds two
-- because of a reason.
select '
-- not a header';
"""


def test_block_is_its_statement_without_the_header() -> None:
    blocks = parse_blocks(TEXT, "sample")
    assert blocks == {
        "first": "select 1",
        "second": "-- because of a reason.\nselect '\n-- not a header';",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: a\n-- One.\nselect 1\n-- name: a\n-- Two.\nselect 2\n", "twice"),
        ("-- name: a\nselect 1\n", "what it is for"),
        ("-- name: a\n", "what it is for"),
        ("-- name: a\n-- One.\n\n-- name: b\n-- Two.\nselect 2\n", "empty"),
        ("-- name: Not A Name\n-- One.\nselect 1\n", "not a block name"),
        ("select 1;\n-- name: a\n-- One.\nselect 1\n", "before the first block"),
    ],
)
def test_file_that_breaks_the_format_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_blocks(text, "sample")


def test_every_packaged_file_loads_and_an_unknown_block_is_a_key_error() -> None:
    files = [
        file.name.removesuffix(".sql")
        for file in (resources.files("recall_sql") / "queries").iterdir()
        if file.name.endswith(".sql")
    ]
    assert files
    for name in files:
        blocks = load(name)
        assert blocks
        with pytest.raises(KeyError):
            blocks["no_such_block"]


@pytest.mark.parametrize("name", ["no_such_file", "../migrations/0001_store", "Ingest", ""])
def test_unknown_file_is_not_found(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        load(name)


def test_file_is_read_once() -> None:
    assert load("ingest") is load("ingest")
