"""An embedder: one thread that cuts, several that embed, and one that says that it is alive."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recall import disk
from recall.config import Settings
from recall.errors import ModelError, RecallError, StoreError
from recall_embedder.cutter import Cutter
from recall_embedder.generations import Generations, Load, Shelf
from recall_embedder.health import STALE_SECONDS, Health
from recall_embedder.index_keeper import keep_indexes
from recall_embedder.model import Model
from recall_embedder.store import EmbedStore, Generation
from recall_embedder.waker import Waker, listen
from recall_embedder.worker import Worker

_log = logging.getLogger(__name__)

#: An idle thread looks again after this time, then after twice that, up to the longest.
FIRST_POLL_SECONDS = 2.0
LONGEST_POLL_SECONDS = 30.0
BEAT_SECONDS = 15.0
#: Embedders that were killed are not missed any more after this time.
_FORGET_SECONDS = 3_600.0
#: An embedder that did not beat for this long does not work.
ALIVE_SECONDS = 60.0
_JOIN_SECONDS = 30.0
_HEARTBEAT = "heartbeat"


@dataclass(slots=True)
class Embedder:
    """One process's share of the work, on one database.

    ``load`` is asked for one model that all threads share, and for one a thread if it does not
    allow that.
    """

    settings: Settings
    url: str
    host: str
    load: Load
    health: Health = field(default_factory=Health)
    stop: threading.Event = field(default_factory=threading.Event)
    waker: Waker = field(default_factory=Waker)
    beat_seconds: float = BEAT_SECONDS
    #: What one look of a thread does, by its name; a test can put something else in its place.
    parts: dict[str, Callable[[EmbedStore], Callable[[], bool]]] = field(init=False)
    _store: EmbedStore = field(init=False)
    _shelf: Shelf = field(init=False)
    _generations: Generations = field(init=False)
    _threads: list[threading.Thread] = field(init=False, default_factory=list)
    #: Only a convenience: nothing is lost without them.
    _helpers: list[threading.Thread] = field(init=False, default_factory=list)
    _instance: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._store = EmbedStore(self.url)
        self._shelf = Shelf(self.load, self.settings.embed_model)
        self._generations = Generations(self.settings, self._store, self._shelf)
        self.parts = {"cutter": self._cutter}
        for number in range(1, (self.settings.embed_threads or processors()) + 1):
            self.parts[f"worker {number}"] = partial(self._worker, f"worker {number}")

    def run(self, *, until: Callable[[], bool] | None = None) -> None:
        """Work until stopped, or until ``until`` holds (asked once for each beat).

        :class:`RecallError` if a thread ended by itself: the process is to be started again.
        """
        self.health.expect([*self.parts, _HEARTBEAT])
        try:
            self._beat()
            self._start()
            while not self.stop.is_set() and not (until is not None and until()):
                self._beat()
                if dead := self.check_threads():
                    raise RecallError(f"the embedder cannot go on: {dead}")
                self.stop.wait(self.beat_seconds)
        finally:
            self._end()

    def request_stop(self) -> None:
        """Stop soon: batches that have begun are stored, what was claimed is given back."""
        self.stop.set()
        self.waker.wake()

    def check_threads(self) -> str | None:
        """Note threads that ended though nobody stopped them; the first of them, in words."""
        found = None
        for thread in self._threads:
            if not thread.is_alive() and not self.stop.is_set():
                self.health.died(thread.name, "its thread is gone")
                found = found or f"{thread.name} ended"
        return found

    def _start(self) -> None:
        for target, values in (
            (listen, (self.url, self.waker, self.stop)),
            (keep_indexes, (self.url, self.stop)),
        ):
            helper = threading.Thread(target=target, args=values, name=target.__name__, daemon=True)
            helper.start()
            self._helpers.append(helper)
        for name, make in self.parts.items():
            thread = threading.Thread(target=self.loop, args=(name, make), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _end(self) -> None:
        self.request_stop()
        for thread in (*self._threads, *self._helpers):
            thread.join(_JOIN_SECONDS)
        try:
            self._store.stop_beating(self._instance)
        except StoreError as error:
            _log.warning("end not told", extra={"reason": error.message})
        self._store.close()

    def loop(self, name: str, make: Callable[[EmbedStore], Callable[[], bool]]) -> None:
        """The work of one thread while there is any; it waits without a transaction."""
        store = EmbedStore(self.url)
        work = make(store)
        pause = FIRST_POLL_SECONDS
        try:
            while not self.stop.is_set():
                seen = self.waker.count
                reason = None
                busy = False
                try:
                    busy = self._why_paused() is None and work()
                except RecallError as error:
                    reason = error.message
                except Exception as error:  # boundary: a thread outlives whatever one look meets
                    reason = type(error).__name__
                if reason is not None:
                    _log.warning("embedder fails", extra={"part": name, "reason": reason})
                    self.health.failing(name, reason)
                    store.close()
                    self.stop.wait(pause)
                else:
                    self.health.beat(name)
                if busy or (reason is None and self.waker.wait(seen, pause)):
                    pause = FIRST_POLL_SECONDS
                else:
                    pause = min(2 * pause, LONGEST_POLL_SECONDS)
        finally:
            store.close()

    def _why_paused(self) -> str | None:
        """Why nothing is to be written now. The last of the disk is not for vectors."""
        room = disk.look(self.settings)
        return room.told if room and room.is_short else None

    def _cutter(self, store: EmbedStore) -> Callable[[], bool]:
        return Cutter(
            store,
            self._models_of_thread(),
            step=lambda _step: self.health.beat("cutter"),
            should_stop=self.stop.is_set,
            timed=lambda seconds: self.health.stage("cut", seconds),
        ).cut_next

    def _worker(self, name: str, store: EmbedStore) -> Callable[[], bool]:
        return Worker(
            store,
            self._models_of_thread(),
            self.health,
            step=lambda _step: self.health.beat(name),
            should_stop=self.stop.is_set,
        ).embed_next

    def _models_of_thread(self) -> Callable[[Generation], Model | None]:
        own = Shelf(self.load, self.settings.embed_model)

        def model_of(generation: Generation) -> Model | None:
            shared = self._shelf.get(generation)
            return shared if shared is None or shared.threads_safe else own.get(generation)

        return model_of

    def _beat(self) -> None:
        """Look at the generations, and tell the store how this embedder is."""
        try:
            generations = self._generations.refresh()
            paused = self._why_paused()
            self.health.problem = paused or self._generations.problem
            self.health.hint = disk.HINT if paused else self._generations.hint
            self.health.unfilled = self._generations.unfilled
            self.health.model = generations[0].model if generations else None
            self.health.queue = {
                str(number): waiting for number, waiting in self._store.waiting().items()
            }
            self._store.forget_instances(
                self.host, here_seconds=STALE_SECONDS, seconds=_FORGET_SECONDS
            )
            self.health.beat(_HEARTBEAT)
            self._store.beat(self._instance, self.host, os.getpid(), self._detail())
        except (StoreError, ModelError) as error:
            self._store.close()
            self.health.failing(_HEARTBEAT, error.message)
            _log.warning("heartbeat not written", extra={"reason": error.message})

    def _detail(self) -> dict[str, Any]:
        report = self.health.report()
        report["interval_seconds"] = self.beat_seconds
        report["unfilled"] = list(self.health.unfilled)
        del report["stale_after_seconds"]
        return report


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
