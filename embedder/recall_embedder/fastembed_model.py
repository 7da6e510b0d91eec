"""Any model that fastembed knows, downloaded by it on first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastembed import TextEmbedding
from loguru import logger
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recall.errors import ModelError
from recall_embedder.model import BUNDLED
from recall_embedder.onnx_model import normalised, token_spans, whole

_HINT = (
    f"set `embed_model` to `{BUNDLED}`, which comes with Recall, or to the path of a folder with "
    "`model.onnx` and `tokenizer.json`"
)
_HUB = "https://huggingface.co"
_HUB_SECONDS = 10.0
#: What fastembed's classes do with the vectors of the tokens; any other one leaves it to the file.
_POOLING = {
    "OnnxTextEmbedding": "cls",
    "PooledEmbedding": "mean",
    "PooledNormalizedEmbedding": "mean",
    "LastTokenNormalizedEmbedding": "last",
}


class FastembedModel:
    """A :class:`recall_embedder.model.Model` over fastembed, whose pooling it keeps.

    Each worker has one of its own: fastembed promises nothing about threads.
    """

    threads_safe = False

    def __init__(self, name: str, embedding: TextEmbedding) -> None:
        self.name = name
        self._embedding = embedding
        inner: Any = embedding.model
        self.pooling = _POOLING.get(type(inner).__name__, "model")
        own: Tokenizer | None = getattr(inner, "tokenizer", None)
        if own is None:
            raise ModelError(f"the embedding model `{name}` has no tokenizer", hint=_HINT)
        self.max_tokens = int((own.truncation or {"max_length": 512})["max_length"])
        self._tokenizer = Tokenizer.from_str(own.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.dimension = int(self.embed(["a"]).shape[1])

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See :class:`recall_embedder.model.Model`."""
        return token_spans(self._tokenizer, text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See :class:`recall_embedder.model.Model`."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        try:
            batch = [whole(text) for text in texts]
            vectors = list(self._embedding.embed(batch, batch_size=len(batch)))
            return normalised(np.asarray(vectors, np.float32))
        # The boundary to fastembed, which lets through what its libraries raise.
        except Exception as error:
            raise ModelError(f"the embedding model `{self.name}` failed: {error}") from error


def load_fastembed(name: str, folder: Path) -> FastembedModel:
    """A model by its name; kept in ``folder`` unless ``FASTEMBED_CACHE_PATH`` names another one.

    :class:`ModelError` if fastembed does not know it, or the hub is needed and does not answer.
    """
    logger.disable("fastembed")  # it reports on stderr what it raises as well
    if not any(name.lower() == known["model"].lower() for known in _known()):
        raise ModelError(f"fastembed knows no embedding model `{name}`", hint=_HINT)
    options: dict[str, Any] = {
        "cache_dir": os.environ.get("FASTEMBED_CACHE_PATH") or str(folder),
        "threads": 1,
    }
    try:
        embedding = TextEmbedding(name, local_files_only=True, **options)
    # It raises ValueError for "not there", and anything for a damaged copy, which it loads again.
    except Exception:
        embedding = _download(name, options)
    return FastembedModel(name, embedding)


def _download(name: str, options: dict[str, Any]) -> TextEmbedding:
    # fastembed tries again for 39 seconds; whether anybody answers is known at once.
    hub = os.environ.get("HF_ENDPOINT") or _HUB
    try:
        httpx.head(hub, timeout=_HUB_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(
            f"the embedding model `{name}` is not on this machine, and {hub} does not answer: "
            f"{error}",
            hint=_HINT,
        ) from error
    try:
        return TextEmbedding(name, **options)
    # The boundary to fastembed and the hub's client.
    except Exception as error:
        raise ModelError(
            f"the embedding model `{name}` cannot be loaded: {error}", hint=_HINT
        ) from error


def _known() -> list[dict[str, Any]]:
    return TextEmbedding.list_supported_models()
