"""Requests of a VS Code chat as units: what the user sent, and what the response is made of.

Part numbers do not move while a response grows: each entry of ``response`` has three from its own
index on, what stands above the response has 0, and what comes with its end has numbers from
:data:`TAIL` on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recall.records import Kind, Message, Parsed, Role
from recall.timestamps import parse_timestamp
from recall_ingester.sources.base import Unit
from recall_ingester.sources.toolinput import json_text, render_input, stub_images
from recall_ingester.sources.vscode_entries import (
    client_words,
    edit_text,
    inline,
    thinking,
    thought,
)
from recall_ingester.sources.vscode_readable import (
    Value,
    items,
    leftovers,
    mapping,
    markdown,
    string,
    tree_text,
)
from recall_ingester.sources.vscode_tools import Calls, call_messages, invocation, result_messages

#: The first part number of what is not an entry of the response.
TAIL = 1_000_000
_PARTS_PER_ENTRY = 3

#: Entries that change files.
_EDITS = frozenset(
    {
        "externalEdit", "multiDiffData", "notebookEdit", "notebookEditGroup", "textEdit",
        "textEditGroup", "workspaceEdit",
    }
)  # fmt: skip
#: Entries by which the client tells or asks something.
_EVENTS = frozenset(
    {
        "confirmation", "disabledClaudeHooks", "elicitation", "elicitation2",
        "elicitationSerialized", "hook", "info", "planReview", "questionCarousel",
        "systemNotification", "warning",
    }
)  # fmt: skip
#: Entries that only accompany the response.
_ASIDES = frozenset(
    {
        "autoModeResolution", "codeCitation", "command", "extensions", "move", "progressMessage",
        "progressTask", "progressTaskSerialized", "pullRequest", "reference", "treeData",
        "usedContext", "voiceProgress",
    }
)  # fmt: skip
_SILENT = frozenset(
    {
        "clearToPreviousToolInvocation", "mcpServersStarting", "prepareToolInvocation", "undoStop",
        "usage",
    }
)  # fmt: skip
#: Fields of a request and of its result that have their own place in the messages.
_PLACED_OF_REQUEST = frozenset(
    {
        "message", "variableData", "confirmation", "slashCommand", "modeInfo", "response",
        "contentReferences", "result", "responseErrorDetails",
    }
)  # fmt: skip
_PLACED_OF_RESULT = frozenset({"metadata", "errorDetails"})
_PLACED_OF_METADATA = frozenset(
    {
        "toolCallRounds", "toolCallResults", "renderedUserMessage", "renderedGlobalContext",
        "resolvedModel", "summary", "summaries",
    }
)  # fmt: skip
_PLACED_OF_ROUND = frozenset({"response", "thinking", "toolCalls", "summary"})
_PLACED_OF_TEXT = frozenset({"value", "content", "inlineReference", "name", "uri"})
_MODEL = frozenset({"resolvedModel"})
_NAME, _ARGUMENTS = frozenset({"name"}), frozenset({"arguments"})


def request_units(request: object, index: int) -> tuple[Unit, Unit]:
    """The message of the user and the response, at the two places of a request."""
    return (
        Unit(index * 2, _outcome(user_messages(request), request, sent_at(request), "user")),
        Unit(index * 2 + 1, _outcome(_answer(request), request, answered_at(request), "response")),
    )


def _outcome(messages: list[Message], request: object, ts: datetime | None, side: str) -> Parsed:
    given = mapping(request)
    native = string(given.get("requestId"))
    answer = string(given.get("responseId")) if side == "response" else None
    undone = given.get("isHidden") is True or _is_undone(given.get("shouldBeRemovedOnSend"))
    for message in messages:
        message.native_id = answer or native
        message.copy_scope = f"{native}:{side}" if native else None
        message.on_active_branch = not undone
    return Parsed(messages=messages, ts=ts, skipped=None if messages else f"empty {side} side")


def _is_undone(mark: object) -> bool:
    """Whether the user went back to before the request; it is removed when the next one is sent."""
    return isinstance(mark, Mapping) and not mark.get("afterUndoStop")


def sent_at(request: object) -> datetime | None:
    """When the user sent a request."""
    return parse_timestamp(mapping(request).get("timestamp"))


def answered_at(request: object) -> datetime | None:
    """When a response was complete, else when its request was sent."""
    given = mapping(request)
    completed = mapping(given.get("modelState")).get("completedAt")
    if completed and (ts := parse_timestamp(completed)):
        return ts
    start, timings = given.get("timestamp"), mapping(mapping(given.get("result")).get("timings"))
    elapsed = timings.get("totalElapsed", given.get("elapsedMs"))
    if _is_number(start) and _is_number(elapsed):
        try:
            return parse_timestamp(start + elapsed) or sent_at(request)
        except OverflowError:
            pass
    return sent_at(request)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def model_of(request: object) -> str | None:
    """The model that answered, else the one that was chosen."""
    given = mapping(request)
    metadata = mapping(mapping(given.get("result")).get("metadata"))
    return string(metadata.get("resolvedModel")) or string(given.get("modelId"))


def user_messages(request: object) -> list[Message]:
    """What the user wrote (part 0), what was attached (1), and the prompt made of it (2)."""
    if not isinstance(request, Mapping):
        text = json_text(request) if request is not None else ""
        return [Message("system", "unknown", text)] if text else []
    text, message = user_text(request), request.get("message")
    attached = {key: request.get(key) for key in ("confirmation", "modeInfo", "slashCommand")}
    attached["parts"] = mapping(message).get("parts")
    attached["message"] = {
        key: value
        for key, value in mapping(message).items()
        if key != "parts" and not (key == "text" and isinstance(value, str))
    }
    attached["variables"] = request.get("variableData")
    metadata = mapping(mapping(request.get("result")).get("metadata"))
    rendered = [
        tree_text(metadata.get(key)) for key in ("renderedGlobalContext", "renderedUserMessage")
    ]
    found: tuple[tuple[Kind, str], ...] = (
        ("text", text),
        ("meta", leftovers(attached, text)),
        ("meta", "\n".join(part for part in rendered if part)),
    )
    return [
        Message("user", kind, shown, part=part)
        for part, (kind, shown) in enumerate(found)
        if shown.strip()
    ]


def user_text(request: Value) -> str:
    """What the user wrote, in any of the shapes it has had."""
    message = request.get("message")
    if not isinstance(message, Mapping):
        return render_input(message)
    if isinstance(text := message.get("text"), str):
        return stub_images(text)
    parts = (mapping(part).get("text") for part in items(message.get("parts")))
    return stub_images("".join(part for part in parts if isinstance(part, str)))


def _answer(request: object) -> list[Message]:
    return response_messages(request) if isinstance(request, Mapping) else []


def response_messages(request: Value) -> list[Message]:
    """Everything in a request that is not the user's."""
    answer = _Answer(request)
    response = request.get("response")
    entries = response if isinstance(response, list) else [response]
    for index, entry in enumerate(entries):
        answer.entry(entry, 1 + index * _PARTS_PER_ENTRY)
    answer.tail(max(TAIL, 1 + len(entries) * _PARTS_PER_ENTRY))
    model = model_of(request)
    for message in answer.messages:
        if message.role == "assistant":
            message.model = model
    return sorted(answer.messages, key=lambda message: message.part)


class _Answer:
    """The messages of one response while it is read."""

    def __init__(self, request: Value) -> None:
        self._request = request
        self._result = mapping(request.get("result"))
        self._metadata = mapping(self._result.get("metadata"))
        self._calls = Calls(self._metadata)
        self._run: Message | None = None
        self._gap = False
        self.messages: list[Message] = []
        references = {"references": request.get("contentReferences")}
        self._add("system", "meta", leftovers(references), 0)

    def _add(
        self, role: Role, kind: Kind, text: str, part: int, *,
        tool: str | None = None, failed: bool = False,
    ) -> None:  # fmt: skip
        if text.strip():
            self.messages.append(Message(role, kind, text, part=part, tool=tool, is_error=failed))

    def entry(self, entry: object, part: int) -> None:
        """One entry of the response. Texts and references that follow each other are one text."""
        if entry is None:
            return
        given, before = mapping(entry), len(self.messages)
        if (text := inline(entry)) is not None:
            self._continue(text, part)
            beside = leftovers(_without(given, _PLACED_OF_TEXT), text)
            self._add("system", "meta", beside, part + 1)
            return
        kind = string(given.get("kind"))
        if kind == "toolInvocationSerialized" or kind == "toolInvocation":
            self.messages += invocation(given, self._calls, part)
        elif kind == "thinking":
            self._add("assistant", "thinking", thinking(given), part)
        elif kind in _EDITS:
            self._add("assistant", "tool_call", edit_text(given), part, tool=kind)
        elif kind in _EVENTS:
            self._add("system", "event", client_words(given, kind), part)
        elif kind in _ASIDES:
            self._add("system", "meta", client_words(given, kind), part)
        elif kind not in _SILENT:
            self._add("system", "unknown", json_text(entry), part)
        if len(self.messages) > before:
            self._run = None
        self._gap = True

    def _continue(self, text: str, part: int) -> None:
        if not text:
            return
        if self._run is None:
            self._run = Message("assistant", "text", "", part=part)
        elif self._gap and not self._run.text.endswith("\n") and not text.startswith("\n"):
            self._run.text += "\n"
        self._gap = False
        if not self._run.text.strip() and text.strip():
            self.messages.append(self._run)
        self._run.text += text

    def tail(self, part: int) -> None:
        """What comes with the end of a response, or belongs to none of its entries."""
        self._add("system", "event", self._error(), part + 1, failed=True)
        told = "\n".join(message.text for message in self.messages)
        answered = any(message.kind == "text" for message in self.messages)
        loose = self._loose(told, "meta" if answered else "text")
        for number, message in enumerate(loose, part + 2):
            message.part = number
        self.messages += loose
        told = "\n".join((told, *(message.text for message in loose)))
        self._add("system", "meta", leftovers(self._rest(), told), part)

    def _error(self) -> str:
        text = ""
        for given in (self._result.get("errorDetails"), self._request.get("responseErrorDetails")):
            message = markdown(mapping(given).get("message"))
            more = leftovers(given, f"{text}\n{message}")
            text = "\n".join(line for line in (text, message, more) if line.strip())
        return text

    def _loose(self, told: str, said: Kind) -> list[Message]:
        """Rounds of the model as far as the response does not show them, and summaries."""
        found: list[Message] = []
        calls = self._calls.rest()
        for turn, given in enumerate(items(self._metadata.get("toolCallRounds"))):
            found += _unless_told("thinking", thought(mapping(given).get("thinking")), told)
            found += _unless_told(said, tree_text(mapping(given).get("response")), told)
            for call in calls.get(turn, ()):
                found += call_messages(call, self._calls.result(call.id), 0)
            found += _summary(mapping(given).get("summary"))
        for call_id, result in self._calls.rest_of_results():
            found += result_messages(tree_text(result), 0, None, call_id)
        for key in ("summary", "summaries"):
            found += _summary(self._metadata.get(key))
        return found

    def _rest(self) -> dict[str, Any]:
        metadata = _without(self._metadata, _PLACED_OF_METADATA)
        metadata |= _without_strings({"resolvedModel": self._metadata.get("resolvedModel")}, _MODEL)
        rounds = items(self._metadata.get("toolCallRounds"))
        metadata["toolCallRounds"] = [_rest_of_round(given) for given in rounds]
        for key, shape in (("toolCallRounds", list), ("toolCallResults", Mapping)):
            if not isinstance(self._metadata.get(key), shape):
                metadata[key] = self._metadata.get(key)
        result = _without(self._result, _PLACED_OF_RESULT) | {"metadata": metadata}
        if not isinstance(self._result.get("metadata"), Mapping):
            result["metadata"] = self._result.get("metadata")
        rest = _without(self._request, _PLACED_OF_REQUEST) | {"result": result}
        if not isinstance(self._request.get("result"), Mapping):
            rest["result"] = self._request.get("result")
        return rest


def _without(value: Value, keys: frozenset[str]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


def _without_strings(value: Value, keys: frozenset[str]) -> dict[str, Any]:
    """The value without those of the keys that have the type they should have."""
    return {key: item for key, item in value.items() if not (key in keys and isinstance(item, str))}


def _rest_of_round(given: object) -> object:
    """What is left of a round besides its words and calls."""
    if not isinstance(given, Mapping):
        return given
    calls = given.get("toolCalls")
    if isinstance(calls, list):
        calls = [
            _without(_without_strings(call, _NAME), _ARGUMENTS)
            if isinstance(call, Mapping)
            else call
            for call in calls
        ]
    return _without(given, _PLACED_OF_ROUND) | {"toolCalls": calls}


def _unless_told(kind: Kind, text: str, told: str) -> list[Message]:
    """A message of the model, if it says anything that ``told`` does not have."""
    shown = text.strip()
    return [Message("assistant", kind, text)] if shown and shown not in told else []


def _summary(value: object) -> list[Message]:
    text = tree_text(value)
    return [Message("system", "summary", text)] if text.strip() else []
