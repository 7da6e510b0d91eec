"""How much of a disk is left to the database, and who is told where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from recall import disk
from recall.cli.up import _child_environment
from recall.config import Settings
from recall.disk import Room, Space
from recall_ingester.sinks.overloaded import NoRoomError, overloaded
from recall_ingester.sinks.postgrest_http import Decision, decide

GB = 1_000_000_000


def test_the_file_system_is_asked(tmp_path: Path) -> None:
    found = disk.read_space(tmp_path)
    assert found
    assert 0 <= found.free <= found.total
    assert disk.read_space(tmp_path / "missing") is None


def test_the_folder_is_that_of_the_database_where_it_can_be_known(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    remote = "postgresql://db/recall"
    assert disk.database_folder(Settings(home=tmp_path)) == tmp_path / "pg"
    assert disk.database_folder(Settings(home=tmp_path, database_url=remote)) is None
    assert disk.look(Settings(home=tmp_path, database_url=remote)) is None
    given = Settings(home=tmp_path, database_url=remote, database_volume=mounted)
    assert disk.database_folder(given) == mounted


@pytest.mark.parametrize(
    ("free", "total", "reserve_mb", "is_short"),
    [
        (2.1, 500, 2_000, False),
        (1.9, 500, 2_000, True),
        (1.1, 10, 2_000, False),  # a tenth of a small one
        (0.9, 10, 2_000, True),
        (0.0, 500, 0, False),
    ],
)
def test_so_much_is_kept_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: float,
    total: float,
    reserve_mb: int,
    is_short: bool,
) -> None:
    space = Space(int(free * GB), int(total * GB))
    monkeypatch.setattr(disk, "read_space", lambda folder: space)
    room = disk.look(Settings(home=tmp_path, disk_reserve_mb=reserve_mb))
    assert room
    assert room.is_short == is_short


def test_it_is_said_in_numbers() -> None:
    told = Room(412_000_000, 2 * GB).told
    assert "412 MB free" in told
    assert "below 2.0 GB" in told


def test_the_parts_of_recall_up_are_told_where_the_database_is(tmp_path: Path) -> None:
    """They get its URL and would else not know that it is the embedded one."""
    env = _child_environment(Settings(home=tmp_path), "postgresql:///recall")
    assert env["RECALL_DATABASE_VOLUME"] == str(tmp_path / "pg")
    remote = "postgresql://db/recall"
    env = _child_environment(Settings(home=tmp_path, database_url=remote), remote)
    assert "RECALL_DATABASE_VOLUME" not in env


def test_a_full_server_is_told_as_one() -> None:
    assert decide(507, "53100") is Decision.AGAIN  # so do clients of before take it
    given = overloaded("http://server:7717", 507, "53100", {"free_bytes": 512_000_000})
    assert isinstance(given, NoRoomError)
    assert given.retryable
    assert "0.5 GB free" in given.message
    assert "nothing is lost" in (given.hint or "")
    assert "almost full, and" in overloaded("http://s", 503, "53100", {"free_bytes": "x"}).message
    other = overloaded("http://s", 503, "PGRST003", {})
    assert not isinstance(other, NoRoomError)
    assert "PGRST003" in other.message
