"""Walking folders that hold more than sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recall_ingester.checkpoint import Checkpoint, Stat
from recall_ingester.plan import make_plan
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.walk import Walk


def names(root: Path, hidden: frozenset[str] = frozenset()) -> list[str]:
    return [path.relative_to(root).as_posix() for path in Walk(root, hidden=hidden).files()]


def test_order_is_stable_and_hidden_entries_are_left_out(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a", ".hidden/x", ".claude/y", ".env"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path) == ["a", "b/1", "b/2"]
    assert names(tmp_path, hidden=frozenset({".claude"})) == [".claude/y", "a", "b/1", "b/2"]


def test_links_are_followed_once_and_never_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "x").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (root / "loop").symlink_to(root)
    (root / "real" / "up").symlink_to("..")
    (root / "twin").symlink_to(root / "real")
    (root / "file").symlink_to(root / "real" / "x")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "self").symlink_to(root / "self")
    assert names(root) == ["real/x"]


def test_link_to_a_folder_that_is_hidden_otherwise_is_followed(tmp_path: Path) -> None:
    (tmp_path / ".store").mkdir()
    (tmp_path / ".store" / "x").touch()
    (tmp_path / "projects").symlink_to(tmp_path / ".store")
    assert names(tmp_path) == ["projects/x"]


def test_hard_links_are_both_files(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    os.link(tmp_path / "b", tmp_path / "a")
    assert names(tmp_path) == ["a", "b"]


def test_devices_and_pipes_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert names(tmp_path) == []


def test_missing_root_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        names(tmp_path / "nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_folder_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "open").touch()
    walk = Walk(tmp_path)
    assert [path.name for path in walk.files()] == ["open"]
    assert walk.unreadable == {tmp_path / "closed": "Permission denied"}


class Unlistable(ClaudeCode):
    """A source whose folders below the root are there and cannot be listed."""

    def discover(self, root: Path):  # type: ignore[no-untyped-def]
        self.unreadable = {root / "projects": "Permission denied"}
        return iter(())


def test_files_below_an_unreadable_folder_are_not_missing(tmp_path: Path) -> None:
    path = str(tmp_path / "projects" / "gone.jsonl")
    known = {path: Checkpoint(path, "claude-code", "k", Stat(1, 1, 1, 1))}
    plan = make_plan([(Unlistable(), [tmp_path])], known)
    assert plan.missing == []
    assert list(plan.unreadable.values()) == [("claude-code", "Permission denied")]
    plan = make_plan([(ClaudeCode(), [tmp_path])], known)
    assert plan.missing == [path]
