"""Which generations there are to be filled, and with which models."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from recall.config import Settings
from recall.errors import ModelError
from recall_embedder.model import Model
from recall_embedder.store import EmbedStore, Generation

_log = logging.getLogger(__name__)

#: Loads the model of a name, which is a value of the setting `embed_model`.
Load = Callable[[str], Model]
#: A model that could not be loaded is tried again after this time.
_RETRY_SECONDS = 60.0


@dataclass(slots=True)
class Shelf:
    """The models of one thread, by generation; ``problems`` says which cannot be had, and why.

    ``configured`` is the model of the settings. It is tried first, because a generation knows its
    model by the name that the model gives itself, and not by the folder from which it was loaded.
    """

    load: Load
    configured: str
    clock: Callable[[], float] = time.monotonic
    problems: dict[int, ModelError] = field(default_factory=dict)
    _models: dict[str, Model] = field(default_factory=dict)
    _failures: dict[str, tuple[float, ModelError]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, generation: Generation) -> Model | None:
        """The model of a generation; ``None`` if it cannot be loaded now."""
        with self._lock:
            return self._get(generation)

    def _get(self, generation: Generation) -> Model | None:
        problem = ModelError("no model")
        for name in dict.fromkeys((self.configured, generation.model)):
            try:
                model = self.named(name)
            except ModelError as error:
                problem = error
                continue
            if model.name == generation.model:
                if fits(model, generation):
                    self.problems.pop(generation.number, None)
                    return model
                problem = ModelError(
                    f"`{model.name}` is not what it was when its vectors were made"
                )
        self.problems[generation.number] = problem
        return None

    def named(self, name: str) -> Model:
        """The model of a name; :class:`ModelError` if it cannot be loaded, for a while at once."""
        with self._lock:
            return self._named(name)

    def _named(self, name: str) -> Model:
        if name in self._models:
            return self._models[name]
        if name in self._failures:
            failed_at, problem = self._failures[name]
            if self.clock() - failed_at < _RETRY_SECONDS:
                raise ModelError(problem.message, hint=problem.hint)
        try:
            model = self._models[name] = self.load(name)
        except ModelError as error:
            problem = error
        except Exception as error:  # boundary: a runtime that is broken in whatever way
            kind = type(error).__name__
            problem = ModelError(f"the model `{name}` cannot be loaded ({kind})")
        else:
            return model
        self._failures[name] = (self.clock(), problem)
        raise problem

    def keep_only(self, generations: list[Generation]) -> None:
        """Give models back that no generation needs any more."""
        names = {generation.model for generation in generations}
        numbers = {generation.number for generation in generations}
        with self._lock:
            for name, model in list(self._models.items()):
                if model.name not in names and name != self.configured:
                    del self._models[name]
            for number in self.problems.keys() - numbers:
                del self.problems[number]


def fits(model: Model, generation: Generation) -> bool:
    """Whether vectors of the model can be compared with those of the generation."""
    return (model.name, model.dimension, model.pooling) == (
        generation.model,
        generation.dimension,
        generation.pooling,
    )


def shape_of(settings: Settings, model: Model) -> dict[str, Any]:
    """What a generation with these settings and this model is."""
    tokens = min(settings.embed_tokens, model.max_tokens)
    return {
        "model": model.name,
        "dimension": model.dimension,
        "pooling": model.pooling,
        "max_tokens": tokens,
        "overlap_tokens": min(settings.embed_overlap_tokens, tokens // 2),
        "kinds": sorted(settings.embed_kinds),
    }


def has_shape(generation: Generation, shape: dict[str, Any]) -> bool:
    """Whether a generation is what the settings ask for."""
    own = {name: getattr(generation, name) for name in shape}
    return {**own, "kinds": sorted(own["kinds"])} == shape


class Generations:
    """Makes the first generation, and says when the settings ask for another one."""

    def __init__(self, settings: Settings, store: EmbedStore, shelf: Shelf) -> None:
        self._settings = settings
        self._store = store
        self._shelf = shelf
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def refresh(self) -> list[Generation]:
        """The generations that are to be filled. :attr:`problem` is up to date afterwards."""
        with self._lock:
            found = self._store.generations()
            active = next((one for one in found if one.state == "active"), None)
            self.problem = self.hint = None
            if active is None:
                self._create()
                found = self._store.generations()
            elif self._shelf.get(active) is None:
                self._say_off(self._shelf.problems[active.number])
            elif len(found) == 1:
                self._compare(active)
            self._shelf.keep_only(found)
            self.unfilled = {
                one.number: f"no vectors of `{one.model}`: "
                f"{self._shelf.problems[one.number].message}"
                for one in found
                if one.state == "filling" and self._shelf.get(one) is None
            }
            return found

    #: Generations beside the active one that get no vectors here, with the reason.
    unfilled: Mapping[int, str] = MappingProxyType({})
    #: Why new texts get no vectors, and what is to be done; ``None`` if they do.
    problem: str | None = None
    hint: str | None = None

    def _create(self) -> None:
        try:
            model = self._shelf.named(self._settings.embed_model)
        except ModelError as error:
            self._say_off(error)
            return
        number = self._store.create_generation(shape_of(self._settings, model), only_first=True)
        if number is not None:
            _log.info("embedding generation made", extra={"number": number, "model": model.name})

    def _say_off(self, problem: ModelError) -> None:
        self.problem = problem.message
        self.hint = problem.hint or (
            "bring the model back, or make all vectors again with another one: "
            "`recall reembed --model NAME`"
        )
        self._tell("search by meaning is off", reason=problem.message, hint=self.hint)

    def _compare(self, active: Generation) -> None:
        try:
            model = self._shelf.named(self._settings.embed_model)
        except ModelError as error:
            self._tell(
                "configured model cannot be loaded",
                reason=error.message,
                hint=f"the vectors in use are of `{active.model}`, which goes on",
            )
            return
        if not has_shape(active, shape_of(self._settings, model)):
            self._tell(
                "settings differ from the vectors in use",
                reason=f"they are of `{active.model}`, which goes on",
                hint="`recall reembed` makes them again with the settings",
            )

    def _tell(self, event: str, *, reason: str, hint: str) -> None:
        """Once for each reason, not at each look."""
        if reason not in self._told:
            self._told.add(reason)
            _log.warning(event, extra={"reason": reason, "hint": hint})
