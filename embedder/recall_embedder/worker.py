"""Gives passages of the queue their vectors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from recall.errors import ModelError, StoreError
from recall_embedder.batching import BATCH_TOKENS, batches
from recall_embedder.cutter import Step, no_step
from recall_embedder.model import Model
from recall_embedder.store import Claim, EmbedStore, Generation, QueuedPassage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

#: Passages of one claim. They are sorted by length into batches, so it is several batches.
CLAIM_ROWS = 256
#: A claim that takes longer is extended in time; what a killed process held is free after this.
_LEASE_SECONDS = 120.0
_PAUSE_SECONDS = 30.0
#: Any model has a vector for this; one that has none fails as a whole.
_PROBE = "recall"


class Tally(Protocol):
    """Where a worker says what it did."""

    def stage(self, name: str, seconds: float) -> None:
        """Seconds that a stage of the work took: ``claim``, ``model``, ``store``."""
        ...

    def batch(self, *, failed: bool) -> None:
        """A batch that the model has answered, or not."""
        ...

    def embedded(self, passages: int) -> None:
        """Passages that were stored."""
        ...

    def failed(self, passages: int) -> None:
        """Passages that have failed for good."""
        ...


class ModelFailsError(ModelError):
    """The model fails on any text, so no passage is to blame."""


@dataclass(slots=True)
class Worker:
    """Embeds for one thread. ``step`` is called between the steps of the work, for tests."""

    store: EmbedStore
    model_of: Callable[[Generation], Model | None]
    tally: Tally
    step: Step = no_step
    claim_rows: int = CLAIM_ROWS
    batch_tokens: int = BATCH_TOKENS
    pause_seconds: float = _PAUSE_SECONDS
    should_stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic

    def embed_next(self) -> bool:
        """Embed one claim of the first generation that has any; whether there was one.

        Raises :class:`ModelFailsError` if the model fails whatever it is given.
        """
        for generation in self.store.generations():
            model = self.model_of(generation)
            if model is None:
                continue
            started = self.clock()
            claim, given_up = self.store.claim_passages(
                generation, rows=self.claim_rows, seconds=_LEASE_SECONDS
            )
            self.tally.stage("claim", self.clock() - started)
            if given_up:
                self.tally.failed(given_up)
            if claim.passages:
                self.step("claimed")
                self._embed(claim, model)
            if claim.passages or given_up:
                return True
        return False

    def _embed(self, claim: Claim, model: Model) -> None:
        known = {item.text_hash: item.vector for item in claim.passages if item.vector is not None}
        if known:
            self._store(claim, [item for item in claim.passages if item.text_hash in known], known)
        texts = _texts([item for item in claim.passages if item.text_hash not in known])
        left = {group[0].text_hash: group for group in texts}
        leased = self.clock()
        try:
            tokens = [group[0].tokens for group in texts]
            for batch in batches(texts, tokens, self.batch_tokens):
                if self.should_stop():
                    break
                if self.clock() - leased >= _LEASE_SECONDS / 3:
                    leased = self.clock()
                    self.store.extend(claim, _ids(left), seconds=_LEASE_SECONDS)
                self._embed_batch(claim, batch, model)
                for group in batch:
                    del left[group[0].text_hash]
        except StoreError:
            left.clear()  # nobody knows what was stored; the lease decides
            raise
        finally:
            if ids := _ids(left):
                self.store.release_passages(claim, ids)

    def _embed_batch(
        self, claim: Claim, groups: Sequence[Sequence[QueuedPassage]], model: Model
    ) -> None:
        """A batch that fails is halved until the texts are found that fail alone."""
        try:
            vectors = self._run(model, [group[0].text for group in groups], claim.generation)
        except Exception as error:  # boundary: one text must not stop the others
            self.tally.batch(failed=True)
            if len(groups) > 1:
                middle = len(groups) // 2
                self._embed_batch(claim, groups[:middle], model)
                self._embed_batch(claim, groups[middle:], model)
            else:
                self._fail(claim, groups[0], model, error)
            return
        self.tally.batch(failed=False)
        self.step("embedded")
        found = {
            group[0].text_hash: as_text(vector)
            for group, vector in zip(groups, vectors, strict=True)
        }
        self._store(claim, [item for group in groups for item in group], found)

    def _run(
        self, model: Model, texts: Sequence[str], generation: Generation
    ) -> NDArray[np.float32]:
        started = self.clock()
        try:
            vectors = model.embed(texts)
        finally:
            self.tally.stage("model", self.clock() - started)
        _check(vectors, len(texts), generation.dimension)
        return vectors

    def _store(
        self, claim: Claim, items: Sequence[QueuedPassage], vectors: dict[bytes, str]
    ) -> None:
        started = self.clock()
        stored = self.store.store_passages(claim, [item.id for item in items], vectors)
        self.tally.stage("store", self.clock() - started)
        self.tally.embedded(stored)
        self.step("stored")

    def _fail(
        self, claim: Claim, group: Sequence[QueuedPassage], model: Model, error: Exception
    ) -> None:
        try:
            self._run(model, [_PROBE], claim.generation)
        except Exception as other:
            raise ModelFailsError(f"the model fails on any text ({_reason(other)})") from None
        reason = _reason(error)
        for item in group:
            pause = self.pause_seconds * item.attempts
            final = self.store.fail_passage(claim, item.id, reason, pause_seconds=pause)
            _log.warning(
                "passage failed",
                extra={"passage": item.id, "attempts": item.attempts, "reason": reason,
                       "final": final},
            )  # fmt: skip
            if final:
                self.tally.failed(1)


def as_text(vector: NDArray[np.float32]) -> str:
    """A vector as the database reads it; six digits are more than a halfvec keeps."""
    return f"[{','.join([f'{number:.6g}' for number in vector.tolist()])}]"


def _ids(groups: Mapping[bytes, Sequence[QueuedPassage]]) -> list[int]:
    return [item.id for group in groups.values() for item in group]


def _texts(items: Sequence[QueuedPassage]) -> list[list[QueuedPassage]]:
    """Passages by text: the model sees each text once."""
    groups: dict[bytes, list[QueuedPassage]] = {}
    for item in items:
        groups.setdefault(item.text_hash, []).append(item)
    return list(groups.values())


def _check(vectors: NDArray[np.float32], rows: int, dimension: int) -> None:
    """Refuse what the index would not find: a vector of another shape, zeros, not a number."""
    import numpy as np

    if vectors.shape != (rows, dimension):
        raise ModelError("the model gave vectors of another shape")
    if not (np.isfinite(vectors).all() and np.abs(vectors).max(axis=1).all()):
        raise ModelError("the model gave no usable vector")


def _reason(error: Exception) -> str:
    """Why, in words that hold nothing of the text: our own words, or the kind of the error."""
    return error.message if isinstance(error, ModelError) else type(error).__name__
