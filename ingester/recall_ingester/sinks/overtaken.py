"""Files that another ingester of the same host read meanwhile, and a batch without them."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import fields, replace

from recall.errors import StoreUnavailableError
from recall_ingester.checkpoint import Counts
from recall_ingester.sinks import Batch, Written

#: What the store says of such a batch. An older version sends it again under a new name.
CODE = "PT409"


class OvertakenError(StoreUnavailableError):
    """A batch builds on states of files that are not the stored ones (any more).

    Nothing of the batch was stored. ``paths`` are such files, perhaps not all of them.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(
            f"another ingester of this host read {len(paths)} of these files meanwhile",
            hint="run it again; do two copies of one home write under one host name?",
        )
        self.paths = list(paths)


def overtaken_paths(detail: object) -> list[str]:
    """The files that a refusal names; none if it is of another kind."""
    if not isinstance(detail, str) or not detail.startswith("["):
        return []
    try:
        value = json.loads(detail)
    except ValueError:
        return []
    return [path for path in value if isinstance(path, str)]


class Remainder:
    """A batch without some of its files. ``batch`` is a new one; the given one stays as it is."""

    def __init__(self, whole: Batch, left_out: Container[str]) -> None:
        self._pieces = len(whole.pieces)
        self._numbers: dict[int, int] = {}
        for number, piece in enumerate(whole.pieces):
            if piece.path not in left_out:
                self._numbers[number] = len(self._numbers)
        at = self._numbers
        self.batch = Batch(
            pieces=[whole.pieces[number] for number in at],
            sessions={key: row for key, row in whole.sessions.items() if key[1] not in left_out},
            messages=[(at[piece], row) for piece, row in whole.messages if piece in at],
            taken_back=[(at[piece], row) for piece, row in whole.taken_back if piece in at],
            prompts=[(at[piece], row) for piece, row in whole.prompts if piece in at],
            notes=[(at[piece], row) for piece, row in whole.notes if piece in at],
            quarantine=[row for row in whole.quarantine if row.path not in left_out],
            raw=[span for span in whole.raw if span.path not in left_out],
            places={
                (at[piece], ordinal): place
                for (piece, ordinal), place in whole.places.items()
                if piece in at
            },
        )

    def as_of_whole(self, written: Written) -> Written:
        """What became of the whole batch: nothing of the pieces that were left out."""
        counts = [
            written.counts[self._numbers[number]] if number in self._numbers else Counts()
            for number in range(self._pieces)
        ]
        return replace(written, counts=counts)


def leave_out(batch: Batch, paths: Container[str]) -> None:
    """Take away what a batch has of some files. What it counts of its size stays."""
    rest = Remainder(batch, paths).batch
    rest.content_chars, rest.raw_bytes = batch.content_chars, batch.raw_bytes
    for item in fields(batch):
        setattr(batch, item.name, getattr(rest, item.name))
