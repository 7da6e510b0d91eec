"""Records of a declared source, by the fields that its table names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from recall.declared import DeclaredSource, Scalar
from recall.records import Kind, Message, Parsed, Role, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.codex_header import (
    FIRST_MESSAGE_RANK,
    NAME_RANK,
    restore_session,
    session_state,
    widen,
    word,
)
from recall_ingester.sources.json_path import JsonPath, first_found
from recall_ingester.sources.toolinput import render_input

_TITLE_CHARS = 120
#: Usual words for the roles, besides our own.
_ROLES: dict[str, Role] = {
    **{role: role for role in get_args(Role)},
    "human": "user",
    "ai": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function": "tool",
    "developer": "system",
}
_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
_ROLE_OF_KIND: dict[Kind, Role] = {
    "thinking": "assistant",
    "tool_call": "assistant",
    "tool_result": "tool",
}

Paths = tuple[JsonPath, ...]
Condition = tuple[JsonPath, tuple[Scalar, ...]]


@dataclass(frozen=True, slots=True)
class Fields:
    """A table with its paths taken apart."""

    paths: Mapping[str, Paths]
    roles: Mapping[str, Role]
    kinds: Mapping[str, Kind]
    default_role: Role
    skip: tuple[Condition, ...]
    only: tuple[Condition, ...]

    @classmethod
    def of(cls, spec: DeclaredSource) -> Fields:
        """The fields of a table whose form was checked when the settings were read."""
        names = (
            "text", "session", "role", "time", "project", "branch", "model", "tool", "title", "kind"
        )  # fmt: skip
        return cls(
            {name: tuple(map(JsonPath.parse, getattr(spec, name))) for name in names},
            {**_ROLES, **spec.roles},
            {**_KINDS, **spec.kinds},
            spec.default_role,
            _conditions(spec.skip),
            _conditions(spec.only),
        )

    @property
    def gives_session(self) -> bool:
        """Whether records, and not the file's name, give the session id."""
        return bool(self.paths["session"])

    def session_of(self, value: object) -> str | None:
        """The session id of a record."""
        return self.one("session", value)

    def all(self, name: str, value: object) -> list[Any]:
        """What a field holds: the values of the first of its paths that has any."""
        return first_found(self.paths[name], value)

    def one(self, name: str, value: object) -> str | None:
        """A field that is one short text; a number is its digits."""
        for item in self.all(name, value):
            if isinstance(item, str | int | float) and (found := word(str(item).strip())):
                return found
        return None


class DeclaredParser:
    """One file of a declared source."""

    session: SessionDraft | None

    def __init__(
        self, fields: Fields, external_id: str, state: Mapping[str, Any] | None = None
    ) -> None:
        self._fields = fields
        self._draft = SessionDraft(external_id)
        self.session = self._draft
        self._project: str | None = None
        self._branch: str | None = None
        self._model: str | None = None
        if state:
            restore_session(self._draft, state["session"])
            self._project, self._branch, self._model = state["current"]

    def state(self) -> dict[str, Any]:
        """The session so far, and what holds for the records that do not say it again."""
        current = [self._project, self._branch, self._model]
        return {"session": session_state(self._draft), "current": current}

    def labels(self) -> list[SessionDraft]:
        """Nothing: a file tells of one session only."""
        return []

    def text(self, content: str) -> Parsed:
        """A declared source has lines of JSON only."""
        return Parsed(skipped="not JSON" if content.strip() else "empty")

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:  # noqa: ARG002
        """The message of a record, and what it tells about the session.

        A record that ``only`` leaves out may still tell about the session, as a header does; one
        that ``skip`` names does not.
        """
        if any(_holds(condition, value) for condition in self._fields.skip):
            return Parsed(skipped="skip")
        told = self._learn(value)
        ts = self._time(value)
        if not all(_holds(condition, value) for condition in self._fields.only):
            return Parsed(skipped=None if told else "not in only", session_info=told)
        widen(self._draft, ts)
        text = "\n".join(map(render_input, self._fields.all("text", value)))
        parsed = Parsed(ts=ts, cwd=self._project, branch=self._branch)
        if text.strip():
            parsed.messages = [self._message(text, value)]
        elif told:
            parsed.session_info = True
        else:
            parsed.skipped = "no text"
        return parsed

    def _learn(self, value: Mapping[str, Any]) -> bool:
        """What a record says about its session; whether it says anything."""
        fields, draft = self._fields, self._draft
        title = fields.one("title", value)
        project, branch = fields.one("project", value), fields.one("branch", value)
        model = fields.one("model", value)
        if title:
            draft.title, draft.title_rank = " ".join(title.split()), NAME_RANK
        self._project, draft.cwd = project or self._project, draft.cwd or project
        self._branch, draft.branch = branch or self._branch, draft.branch or branch
        self._model, draft.model = model or self._model, draft.model or model
        return any((title, project, branch, model))

    def _time(self, value: Mapping[str, Any]) -> datetime | None:
        found = map(parse_timestamp, self._fields.all("time", value))
        return next((ts for ts in found if ts), None)

    def _message(self, text: str, value: Mapping[str, Any]) -> Message:
        fields = self._fields
        tool = fields.one("tool", value)
        role = _look_up(fields.roles, fields.one("role", value))
        kind = _look_up(fields.kinds, fields.one("kind", value))
        if kind is None and role == "tool":
            kind = "tool_result"
        elif kind is None:
            kind = "tool_call" if tool else "text"
        role = role or _ROLE_OF_KIND.get(kind, fields.default_role)
        if role == "user" and kind == "text" and not self._draft.title_rank:
            self._draft.title, self._draft.title_rank = _one_line(text), FIRST_MESSAGE_RANK
        model = self._model if role == "assistant" else None
        return Message(role, kind, text, tool=tool, model=model)


def _look_up(words: Mapping[str, Any], found: str | None) -> Any:
    if found is None:
        return None
    return words.get(found) or words.get(found.lower())


def _one_line(text: str) -> str:
    words = " ".join(text[: _TITLE_CHARS * 20].split())
    return (word(words) or "")[:_TITLE_CHARS].rstrip()


def _conditions(table: Mapping[str, tuple[Scalar, ...]]) -> tuple[Condition, ...]:
    return tuple((JsonPath.parse(path), values) for path, values in table.items())


def _holds(condition: Condition, value: object) -> bool:
    path, wanted = condition
    return any(_equal(item, other) for item in path.find(value) for other in wanted)


def _equal(found: object, wanted: Scalar) -> bool:
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted
