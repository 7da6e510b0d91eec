"""One way to embed, in a process of its own: what :mod:`.embed` starts and compares."""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recall.config import Settings
from recall_embedder import bundled, onnx_model
from recall_embedder.batching import batches
from recall_embedder.model import Model, load_model
from recall_embedder.worker import CLAIM_ROWS

_NAIVE_ROWS = 32


@dataclass(frozen=True, slots=True)
class Row:
    """A passage, as far as it matters here."""

    passage: str
    tokens: int


Batch = list[tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to embed. ``budget`` 0 means batches of 32 rows; ``threads`` 0 is the library's
    default; ``shared`` says that all workers use one session."""

    name: str
    engine: str = "wheel"
    is_sorted: bool = False
    budget: int = 0
    threads: int = 0
    workers: int = 1
    shared: bool = False
    max_tokens: int = 256


def run_child(variant: Variant, rows: Sequence[Row], vectors: Path) -> dict[str, Any]:
    """Embed all passages once, after a warm-up, and say what it took."""
    embedders = _embedders(variant)
    work: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for embed in embedders:
        embed([row.passage for row in rows[:4]])
    for batch in _batches(variant, rows):
        work.put(batch)
    made: dict[int, NDArray[np.float32]] = {}

    def pull(embed: Callable[[list[str]], NDArray[np.float32]]) -> None:
        while True:
            try:
                batch = work.get_nowait()
            except queue.Empty:
                return
            found = embed([row.passage for _, row in batch])
            made.update(zip((index for index, _ in batch), found, strict=True))

    threads = [threading.Thread(target=pull, args=(embed,)) for embed in embedders]
    cpu, wall = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    np.save(vectors, np.stack([made[index] for index in range(len(rows))]))
    status = Path("/proc/self/status")
    peak = status.read_text().partition("VmHWM:")[2].split()[0] if status.exists() else "0"
    return took | {"peak_bytes": 1024 * int(peak), "rows": len(rows)}


def _batches(variant: Variant, rows: Sequence[Row]) -> Iterator[Batch]:
    """As a worker makes them: sorting reaches as far as one claim."""
    numbered = list(enumerate(rows))
    for start in range(0, len(numbered), CLAIM_ROWS):
        claim = numbered[start : start + CLAIM_ROWS]
        if variant.budget:
            yield from batches(claim, [row.tokens for _, row in claim], variant.budget)
            continue
        if variant.is_sorted:
            claim.sort(key=lambda numbered_row: -numbered_row[1].tokens)
        for first in range(0, len(claim), _NAIVE_ROWS):
            yield claim[first : first + _NAIVE_ROWS]


def _embedders(variant: Variant) -> list[Callable[[list[str]], NDArray[np.float32]]]:
    if variant.engine == "fastembed":
        return [_fastembed(variant.max_tokens)]
    _set_threads(variant.threads)
    made: list[Model] = [_load(variant.engine)]
    while len(made) < variant.workers:
        made.append(made[0] if variant.shared else _load(variant.engine))
    return [model.embed for model in made]


def _load(engine: str) -> Model:
    if engine != "wheel":
        return load_model(Settings(embed_model=engine))
    model = bundled.read_verified(bundled.MODEL)
    return onnx_model.OnnxModel(
        "wheel", model, bundled.read_verified(bundled.TOKENIZER), "mean", 256
    )


def _set_threads(threads: int) -> None:
    """What the product fixes at one thread is here what the variant says."""
    made = onnx_model._session_options

    def options() -> Any:
        found = made()
        found.intra_op_num_threads = threads
        return found

    onnx_model._session_options = options


def _fastembed(max_tokens: int) -> Callable[[list[str]], NDArray[np.float32]]:
    """fastembed itself, on the files of the bundled model."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = Path(tempfile.mkdtemp(dir=os.environ["BENCH_FOLDER"]))
    (folder / "model.onnx").write_bytes(bundled.read_verified(bundled.MODEL))
    (folder / "tokenizer.json").write_bytes(bundled.read_verified(bundled.TOKENIZER))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": max_tokens, "pad_token": "[PAD]"})
    )
    TextEmbedding.add_custom_model(
        "bench", PoolingType.MEAN, True, ModelSource(hf="bench/bench"), 384, "model.onnx"
    )
    model = TextEmbedding("bench", specific_model_path=str(folder))
    return lambda texts: np.asarray(list(model.embed(texts, batch_size=_NAIVE_ROWS)), np.float32)
