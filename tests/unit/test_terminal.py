"""Text of session logs on a terminal, and arguments that look like options."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.cli.search import sort_arguments
from recall.cli.terminal import (
    highlight,
    one_line,
    printable,
    project_name,
    short_age,
    short_size,
    short_time,
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;new title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;aGk=\x07", ""),
        ("\x1bP1$r\x1b\\x", "x"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1bcreset", "reset"),
        ("\x1b(Btext", "text"),
        ("end\x1b", "end"),
        ("end\x1b[", "end"),
        ("a\x08b\x07c\x7fd\x00e", "abcde"),
        ("one\r\ntwo\rthree\n\tfour", "one\ntwo\nthree\n\tfour"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("naïve 日本語 🙂 «x»", "naïve 日本語 🙂 «x»"),
    ],
)
def test_nothing_in_a_text_controls_the_terminal(given: str, expected: str) -> None:
    assert printable(given) == expected


@given(
    st.text(
        alphabet=st.sampled_from("\x1b[]P\\;0mHx\x07\x9b\x9d\x9c\r\n\t(?\x90") | st.characters()
    )
)
def test_no_control_character_is_ever_left(text: str) -> None:
    left = {char for char in printable(text) if ord(char) < 32 or 127 <= ord(char) < 160}
    assert left <= {"\n", "\t"}
    assert printable(printable(text)) == printable(text)


def test_an_unfinished_sequence_does_not_swallow_the_next_line() -> None:
    assert "kept" in printable("\x1b[31\nkept")


def test_matches_are_bold_or_between_quotes() -> None:
    snippet = "a <mark>b</mark> c\x1b[0m <mark>d</mark>"
    assert highlight(snippet, styled=False).plain == "a «b» c «d»"
    styled = highlight(snippet, styled=True)
    assert styled.plain == "a b c d"
    assert [styled.plain[span.start : span.end] for span in styled.spans] == ["b", "d"]


def test_a_long_title_stays_on_one_line() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("x" * 81) == "x" * 79 + "…"
    assert one_line(None) == ""
    assert project_name("/home/dev/shop/") == "shop"
    assert project_name("C:\\work\\shop") == "shop"
    assert project_name(None) == ""


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-03-15T12:00:00Z", "0s"),
        ("2026-03-15T11:48:00Z", "12m"),
        ("2026-03-15T09:00:00Z", "3h"),
        ("2026-03-10T12:00:00Z", "5d"),
        ("2026-01-01T12:00:00Z", "2026-01-01"),
        ("2027-01-01T12:00:00Z", "2027-01-01"),
        (None, "no date"),
    ],
)
def test_times_are_short(moment: str | None, expected: str) -> None:
    assert short_time(moment, datetime(2026, 3, 15, 12, tzinfo=UTC)) == expected


def test_ages_and_sizes_are_short() -> None:
    assert [short_age(seconds) for seconds in (8, 60, 7_300, 200_000)] == ["8s", "1m", "2h", "2d"]
    sizes = [short_size(size) for size in (12, 1_500, 8_189_631, 5e9, 5e12)]
    assert sizes == ["12 B", "1.5 kB", "8.2 MB", "5.0 GB", "5000.0 GB"]


OPTIONS = {"--mode": True, "--limit": True, "--json": False, "-i": False, "-h": False}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--shm-size"], ["--", "--shm-size"]),
        (["--shm-size=64g", "--json"], ["--json", "--", "--shm-size=64g"]),
        (["--limit", "5", "-list", "x"], ["--limit", "5", "--", "-list", "x"]),
        (["foo", "-bar", "-i"], ["-i", "--", "foo", "-bar"]),
        (["-hash", "-"], ["--", "-hash", "-"]),
        (["--mode=exact", "-"], ["--mode=exact", "--", "-"]),
        (["--json=yes"], ["--", "--json=yes"]),
        (["--json", "--", "--json", "--"], ["--json", "--", "--json", "--"]),
        (["x", "--limit"], ["--limit", "--", "x"]),
        (["--limit", "--json"], ["--limit", "--json", "--"]),
        ([], ["--"]),
    ],
)
def test_only_known_options_are_options(arguments: list[str], expected: list[str]) -> None:
    assert sort_arguments(arguments, OPTIONS) == expected


def test_a_mistyped_option_is_searched_for_and_said_to_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sort_arguments(["--limt", "5"], OPTIONS) == ["--", "--limt", "5"]
    assert "the option is `--limit`" in capsys.readouterr().err
