"""What an embedding model is to the rest of Recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Model(Protocol):
    """A model that is loaded. Not for use by several threads at once, unless it says so.

    ``name`` is what is stored with its vectors: two models of equal name give equal vectors for
    equal text. ``pooling`` is how a text's vector is made from those of its tokens (``mean``,
    ``cls``).
    """

    name: str
    dimension: int
    pooling: str
    #: The longest text that the model reads, in tokens, with its own special ones.
    max_tokens: int

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First and last character (exclusive) of each token of a text, without special tokens and
        without a limit."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, one row a text, for one batch as it is. Texts beyond ``max_tokens``
        are cut. Raises :class:`recall.errors.ModelError` if the model fails."""
        ...
