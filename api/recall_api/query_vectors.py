"""Vectors of queries: the model is loaded when it is first needed, and kept."""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING

from recall.config import Settings
from recall.errors import ModelError, RecallError

if TYPE_CHECKING:
    from recall_embedder.model import Model

_log = logging.getLogger(__name__)
_KEPT_QUERIES = 1_000
#: A model that could not be loaded is tried again after this time.
_RETRY_SECONDS = 60.0


class QueryVectors:
    """Turns queries into vectors of the model that is asked for. For use by several threads.

    Loading takes a second and 100 MB or more, so it happens once, and only when somebody searches
    by meaning. A failure is remembered for a minute: a search must not wait for it each time.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings], Model] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._load = load or _load_model
        self._clock = clock
        self._lock = Lock()
        self._model: Model | None = None
        self._failure: tuple[str, str, float] | None = None
        self._kept: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def of(self, query: str, model: str) -> list[float]:
        """The vector of a query. Raises :class:`ModelError` with a reason for the answer."""
        with self._lock:
            kept = self._kept.get((model, query))
            if kept is not None:
                self._kept.move_to_end((model, query))
                return kept
            vector = self._embed(self._loaded(model), query)
            self._kept[model, query] = vector
            if len(self._kept) > _KEPT_QUERIES:
                self._kept.popitem(last=False)
            return vector

    def _embed(self, model: Model, query: str) -> list[float]:
        try:
            vector: list[float] = model.embed([query])[0].tolist()
        except RecallError as error:
            raise ModelError(f"the model failed: {error.message}", hint=error.hint) from error
        return vector

    def _loaded(self, name: str) -> Model:
        if self._model is not None and self._model.name == name:
            return self._model
        if self._failure and self._failure[0] == name:
            _, reason, until = self._failure
            if self._clock() < until:
                raise ModelError(reason)
        try:
            # The name of a model in a folder is not the path that it is loaded from.
            given = self._settings.embed_model
            wanted = given if os.sep in given else name
            model = self._load(replace(self._settings, embed_model=wanted))
            if model.name != name and wanted != name:
                model = self._load(replace(self._settings, embed_model=name))
            if model.name != name:
                raise ModelError(f"`{name}` loads as `{model.name}`")
        except RecallError as error:
            self._failure = (name, error.message, self._clock() + _RETRY_SECONDS)
            _log.warning("embedding model not available", extra={"reason": error.message})
            raise ModelError(error.message, hint=error.hint) from error
        self._model, self._failure = model, None
        return model


def _load_model(settings: Settings) -> Model:
    if find_spec("onnxruntime") is None:
        raise ModelError("onnxruntime is not installed", hint="pip install 'recall[server]'")
    from recall_embedder.model import load_model

    return load_model(settings)
