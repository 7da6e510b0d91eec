"""What an embedding model is to the rest of Recall, and how the configured one is found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from recall.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from recall.config import Settings

#: The model that comes with Recall's dependencies and needs no download.
BUNDLED = "all-MiniLM-L6-v2-onnx-int8"
#: The same weights, computed with 8-bit numbers: faster, and with other vectors.
BUNDLED_INT8 = "all-MiniLM-L6-v2-dynamic-int8"


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
    #: Whether several threads may call :meth:`embed` and :meth:`spans` at once. They then share
    #: the weights, and each call computes on the thread that made it.
    threads_safe: bool

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First and last character (exclusive) of each token of a text, without special tokens and
        without a limit."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, one row a text, for one batch as it is. Texts beyond ``max_tokens``
        are cut. Raises :class:`recall.errors.ModelError` if the model fails."""
        ...


def load_model(settings: Settings) -> Model:
    """The model of the setting ``embed_model``: the bundled one, a folder, or one of fastembed's.

    Raises :class:`ModelError` if it is not there, damaged, or does not run. Everything heavy is
    imported here, so that a process that only asks whether there is a model stays small.
    """
    # One passage is tokenised in under a millisecond; the pool of threads that the tokenizers
    # library starts for it only takes processors from the model.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    name = settings.embed_model
    try:
        if name in (BUNDLED, BUNDLED_INT8):
            from recall_embedder.bundled import load_bundled

            return load_bundled(int8=name == BUNDLED_INT8)
        if is_folder(name):
            from recall_embedder.onnx_model import load_folder

            return load_folder(Path(name).expanduser())
        from recall_embedder.fastembed_model import load_fastembed

        return load_fastembed(name, settings.home / "models")
    except ImportError as error:
        raise ModelError(
            f"the embedding model cannot be loaded: {error.name or error} is not installed",
            hint="install the packages of the server: pip install 'recall[server]'",
        ) from error


def is_folder(name: str) -> bool:
    """Whether a model is given as a path. Names of a hub hold a slash too, but not in front."""
    return name.startswith(("/", "~", "./", "../")) or name in (".", "..")
