"""Tool calls in a VS Code chat: what the client shows of a call, joined with what the model wrote.

The response has an entry for each call, with words for people; the arguments and the result stand
in the metadata of the participant, under an id to which the editor appended a number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from recall.jsontext import MalformedLine, loads
from recall.records import Message
from recall_ingester.sources.toolinput import render_input
from recall_ingester.sources.vscode_readable import (
    Value,
    items,
    leftovers,
    mapping,
    markdown,
    string,
    tree_text,
)

_APPENDED = re.compile(r"__vscode-\d+$")
#: Fields of an entry that have their own place in the messages.
_PLACED = frozenset({"invocationMessage", "resultDetails", "toolSpecificData", "isConfirmed"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it. ``turn`` is the index of its round."""

    id: str | None
    tool: str | None
    arguments: str
    turn: int


class Calls:
    """The calls and results in a participant's metadata, each to be taken once.

    Some models use an id again, so an exact id goes before an equal one without its number.
    """

    def __init__(self, metadata: Value) -> None:
        self._open: dict[str | None, list[Call]] = defaultdict(list)
        for turn, given in enumerate(items(metadata.get("toolCallRounds"))):
            for call in items(mapping(given).get("toolCalls")):
                if isinstance(call, Mapping):
                    self._add(call, turn)
        self._results: dict[str | None, list[tuple[str, object]]] = defaultdict(list)
        for key, result in mapping(metadata.get("toolCallResults")).items():
            self._results[short_id(str(key))].append((str(key), result))

    def _add(self, call: Value, turn: int) -> None:
        call_id, raw = string(call.get("id")), call.get("arguments")
        made = Call(call_id, string(call.get("name")), arguments_text(raw), turn)
        self._open[short_id(call_id)].append(made)

    def take(self, call_id: str | None) -> Call | None:
        """The call of an id, if there is one that was not taken yet."""
        known = self._open.get(short_id(call_id)) if call_id else None
        if not known:
            return None
        exact = (at for at, call in enumerate(known) if call.id == call_id)
        return known.pop(next(exact, 0))

    def result(self, call_id: str | None) -> object:
        """What the call of an id gave back; ``None`` if nothing is known of it."""
        known = self._results.get(short_id(call_id)) if call_id else None
        if not known:
            return None
        exact = (at for at, (key, _) in enumerate(known) if key == call_id)
        return known.pop(next(exact, 0))[1]

    def rest(self) -> dict[int, list[Call]]:
        """The calls that nobody took, by round; they count as taken now."""
        left: dict[int, list[Call]] = defaultdict(list)
        for known in self._open.values():
            for call in known:
                left[call.turn].append(call)
        self._open.clear()
        return left

    def rest_of_results(self) -> list[tuple[str, object]]:
        """The results that nobody took."""
        return [item for known in self._results.values() for item in known]


def short_id(call_id: str | None) -> str | None:
    """A call's id without the number that the editor appended."""
    return _APPENDED.sub("", call_id) if call_id else None


def arguments_text(value: object) -> str:
    """Arguments as text. They mostly come as a JSON string, and sometimes as a cut one."""
    parsed = _parsed(value)
    return render_input(value if parsed is None else parsed)


def _parsed(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return None
    try:
        return loads(value.encode("utf-8", "surrogatepass"))[0]
    except MalformedLine:
        return None


def call_messages(call: Call, result: object, part: int) -> list[Message]:
    """A call that the response has no entry for, and its result."""
    tool, call_id = call.tool or "tool", short_id(call.id)
    messages = [
        Message(
            "assistant", "tool_call", call.arguments.strip() or tool,
            part=part, tool=tool, call_id=call_id,
        )
    ]  # fmt: skip
    return messages + result_messages(tree_text(result), part + 1, tool, call_id)


def result_messages(
    text: str, part: int, tool: str | None, call_id: str | None, *, failed: bool = False
) -> list[Message]:
    """A tool's result, if it has any text."""
    if not text.strip():
        return []
    return [
        Message(
            "tool", "tool_result", text,
            part=part, tool=tool, call_id=call_id, is_error=failed,
        )
    ]  # fmt: skip


def invocation(entry: Value, calls: Calls, part: int) -> list[Message]:
    """The call of one entry of a response, and its result.

    The text begins with what the client says of the call, which is there first; the arguments
    follow when the turn ends.
    """
    native = string(entry.get("toolCallId"))
    call = calls.take(native)
    result = calls.result(call.id if call and call.id else native)
    details, specific = entry.get("resultDetails"), mapping(entry.get("toolSpecificData"))
    tool = (call.tool if call else None) or string(entry.get("toolId")) or "tool"
    shown = _shown(result, details, specific)
    given = mapping(details).get("input")
    if call is None or not call.arguments.strip():
        arguments = arguments_text(given)
    else:
        arguments = call.arguments
        if arguments_text(given) != arguments:
            arguments = _joined(arguments, leftovers(given, arguments))
    message = entry.get("invocationMessage")
    said = _joined(markdown(message) or leftovers(message), arguments)
    rest = {key: value for key, value in entry.items() if key not in _PLACED}
    rest |= {"toolSpecificData": specific} if specific else {"data": entry.get("toolSpecificData")}
    allowed = mapping(entry.get("isConfirmed"))
    rest["isConfirmed"] = {key: allowed.get(key) for key in ("reason", "selectedButton")}
    said = _joined(said, leftovers(rest, f"{said}\n{shown}"))
    call_id = short_id(native)
    return [
        Message("assistant", "tool_call", said or tool, part=part, tool=tool, call_id=call_id),
        *result_messages(shown, part + 1, tool, call_id, failed=_failed(details, specific)),
    ]


def _shown(result: object, details: object, specific: Value) -> str:
    """What came back: the result for the model, then what only the client kept of it."""
    shown = tree_text(result)
    kept = {key: value for key, value in mapping(details).items() if key != "input"} or details
    for more in (kept, specific.get("terminalCommandOutput"), specific.get("result")):
        text = tree_text(more)
        if text.strip() not in shown:
            shown = _joined(shown, text)
    return shown


def _failed(details: object, specific: Value) -> bool:
    code = mapping(specific.get("terminalCommandState")).get("exitCode")
    return mapping(details).get("isError") is True or (isinstance(code, int) and code != 0)


def _joined(*texts: str) -> str:
    return "\n".join(text for text in texts if text.strip())
