"""The passages of the sample sessions, which every variant of :mod:`.embed` gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ops.bench import corpus
from recall.config import Settings
from recall.hygiene import clean
from recall.jsontext import MalformedLine, loads
from recall_embedder import bundled, onnx_model
from recall_embedder.model import Model
from recall_embedder.passages import Entry, PassageDraft, passages_of
from recall_ingester.sources.claude_transcript import TranscriptParser
from recall_ingester.sources.codex_parser import RolloutParser


def read_passages(model: Model, max_tokens: int) -> tuple[list[PassageDraft], int]:
    """The distinct passages of the sample sessions as they arrive, and how many were copies."""
    found: dict[bytes, PassageDraft] = {}
    total = 0
    for client, path in corpus.sample_sessions():
        entries = list(read_entries(client, path))
        for draft in passages_of(entries, model, max_tokens, 32, Settings().embed_kinds):
            total += 1
            found.setdefault(draft.text_hash, draft)
    return list(found.values()), total - len(found)


def read_entries(client: str, path: Path) -> Iterator[Entry]:
    """The entries of a session file of a client."""
    parser = TranscriptParser(path.stem) if client == "claude-code" else RolloutParser(path.stem)
    for ordinal, line in enumerate(path.read_bytes().split(b"\n")):
        try:
            value, _ = loads(line)
        except MalformedLine:
            continue
        if not isinstance(value, dict):
            continue
        for one in parser.record(value, ordinal).messages:
            number = ordinal * 1_000 + one.part
            text = clean(one.text)[0]
            yield Entry(
                number, ordinal, one.part, path.stem, client, "host", None, one.role, one.kind,
                None, text,
            )  # fmt: skip


class _Cutter:
    """The tokenizer of the bundled model without the model, which would count as memory."""

    name, dimension, pooling, max_tokens, threads_safe = "", 0, "", 256, True

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(bundled.read_verified(bundled.TOKENIZER).decode())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def spans(self, text: str) -> list[tuple[int, int]]:
        return onnx_model.token_spans(self._tokenizer, text)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NotImplementedError


def load_tokenizer() -> Model:
    """Something that can cut passages."""
    return _Cutter()
