"""An ONNX file and a tokenizer, run by onnxruntime on the processor."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from recall.errors import ModelError
from recall.hygiene import REPLACEMENT

#: Beyond this many characters a text is tokenised in pieces: a tokenizer needs 80 times the memory
#: of its text.
_PIECE_CHARS = 65_536
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_WITHOUT_CONFIG = 512


class OnnxModel:
    """A :class:`recall_embedder.model.Model` over onnxruntime.

    One session with one thread, for all workers. Measured on 2 cores (``ops/bench/embed.py``): two
    threads that share it are as fast as two sessions and hold the weights once; one session with
    two threads is slower than both, because its threads wait for each other in each operation.
    """

    threads_safe = True

    def __init__(
        self, name: str, model: bytes | Path, tokenizer: bytes, pooling: str, max_tokens: int
    ) -> None:
        self.name = name
        self.pooling = pooling
        self.max_tokens = max_tokens
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer.decode())
            self._truncating = Tokenizer.from_str(tokenizer.decode())
            self._truncating.enable_truncation(max_tokens)
            self._session = onnxruntime.InferenceSession(
                model if isinstance(model, bytes) else str(model),
                _session_options(),
                providers=["CPUExecutionProvider"],
            )
        # The boundary to two native libraries, which raise plain exceptions for a damaged file.
        except Exception as error:
            raise ModelError(f"the embedding model `{name}` cannot be loaded: {error}") from error
        self._pad_id = int((self._tokenizer.padding or {}).get("pad_id", 0))
        self._truncating.no_padding()
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._inputs = {node.name for node in self._session.get_inputs()}
        self.dimension = int(self.embed(["a"]).shape[1])

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See :class:`recall_embedder.model.Model`."""
        return token_spans(self._tokenizer, text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See :class:`recall_embedder.model.Model`."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        try:
            encoded = [self._truncating.encode(whole(text)) for text in texts]
            feed = _padded(encoded, self._pad_id)
            asked = {name: feed[name] for name in self._inputs}
            output = np.asarray(self._session.run(None, asked)[0])
            return normalised(_pooled(output, feed["attention_mask"], self.pooling))
        # The boundary to two native libraries; what they raise says only that the model failed.
        except Exception as error:
            raise ModelError(f"the embedding model `{self.name}` failed: {error}") from error


def load_folder(folder: Path) -> OnnxModel:
    """The model in a folder, as sentence-transformers lays one out.

    ``model.onnx`` and ``tokenizer.json`` must be there; ``1_Pooling/config.json`` and
    ``sentence_bert_config.json`` say how to pool and how long a text may be (mean, 512). The name
    holds a hash of all that decides about the vectors, so that a changed folder is another model.
    """
    if not folder.is_dir():
        raise ModelError(
            f"there is no folder `{folder}` (setting `embed_model`)",
            hint="name a folder with `model.onnx` and `tokenizer.json`",
        )
    model = folder / "model.onnx"
    tokenizer = _read(folder / "tokenizer.json")
    pooling = _pooling(_read_config(folder / "1_Pooling" / "config.json"))
    longest = _read_config(folder / "sentence_bert_config.json").get("max_seq_length")
    max_tokens = longest if type(longest) is int and longest > 2 else _LONGEST_WITHOUT_CONFIG
    digest = hashlib.blake2b(tokenizer, digest_size=6)
    digest.update(f"{pooling}/{max_tokens}/".encode())
    try:
        with model.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise _unreadable(model, error) from error
    # By its path and not as bytes: weights of more than 2 GB stand in files beside it.
    name = f"{folder.resolve().name}@{digest.hexdigest()}"
    return OnnxModel(name, model, tokenizer, pooling, max_tokens)


def token_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """The places of all tokens. Long texts go in pieces, cut where white space is if there is."""
    spans: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = _piece_end(text, start)
        encoding = tokenizer.encode(whole(text[start:end]), add_special_tokens=False)
        spans += [(start + first, start + last) for first, last in encoding.offsets if last > first]
        start = end
    return spans


def whole(text: str) -> str:
    """The text, character for character, without what a tokenizer cannot take."""
    return text if text.isascii() else _SURROGATE.sub(REPLACEMENT, text)


def normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1. ``ValueError`` if one of them is no direction at all."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
        raise ValueError("it gave a vector without a direction")
    result: NDArray[np.float32] = (vectors / lengths).astype(np.float32, copy=False)
    return result


def _session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # what goes wrong is raised; warnings would go to stderr
    return options


def _piece_end(text: str, start: int) -> int:
    end = start + _PIECE_CHARS
    if end >= len(text):
        return len(text)
    space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
    return space if space > start else end


def _padded(encoded: Sequence[Encoding], pad_id: int) -> dict[str, NDArray[np.int64]]:
    shape = (len(encoded), max(len(one.ids) for one in encoded))
    ids = np.full(shape, pad_id, np.int64)
    mask = np.zeros(shape, np.int64)
    for row, one in enumerate(encoded):
        ids[row, : len(one.ids)] = one.ids
        mask[row, : len(one.ids)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


def _pooled(
    output: NDArray[np.float32], mask: NDArray[np.int64], pooling: str
) -> NDArray[np.float32]:
    if output.ndim == 2:
        return output  # the file pools by itself
    if pooling == "cls":
        first: NDArray[np.float32] = output[:, 0]
        return first
    weights = mask.astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    mean: NDArray[np.float32] = np.matmul(weights[:, None, :], output)[:, 0]
    return mean


def _pooling(config: dict[str, Any]) -> str:
    if not config or config.get("pooling_mode_mean_tokens"):
        return "mean"
    if config.get("pooling_mode_cls_token"):
        return "cls"
    raise ModelError(
        "the folder of the embedding model asks for a pooling that Recall does not have",
        hint="`1_Pooling/config.json` may ask for `pooling_mode_mean_tokens` or "
        "`pooling_mode_cls_token`",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ModelError(f"`{path}` of the embedding model is not JSON") from error
    return value if isinstance(value, dict) else {}


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"`{path}` of the embedding model cannot be read: {error.strerror}",
        hint="the folder must hold `model.onnx` and `tokenizer.json` (docs/models.md)",
    )
