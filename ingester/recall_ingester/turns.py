"""In which order the files of a pass may claim sessions, whatever thread is the faster one."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Condition

from recall_ingester.plan import Work


class Turns:
    """New files of a source claim in the order of the plan, so that of two files of one session the
    same one keeps its id wherever the same files are read.

    A file only waits for files that a worker has taken up before, and must hold nothing that one of
    those may wait for.
    """

    def __init__(self, claiming: Iterable[Work]) -> None:
        self._changed = Condition()
        self._waiting: dict[str, dict[str, None]] = {}
        for item in claiming:
            self._waiting.setdefault(item.source.name, {})[item.key] = None

    def wait(self, item: Work) -> None:
        """Until the files before this one have claimed."""
        keys = self._waiting.get(item.source.name, {})
        with self._changed:
            self._changed.wait_for(lambda: item.key not in keys or next(iter(keys)) == item.key)

    def done(self, item: Work) -> None:
        """The file claims nothing (more). May be said again."""
        with self._changed:
            self._waiting.get(item.source.name, {}).pop(item.key, None)
            self._changed.notify_all()
