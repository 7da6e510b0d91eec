"""What the log of a VS Code chat took away from the conversation: requests and parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recall.records import Message
from recall_ingester.sources.base import Unit
from recall_ingester.sources.object_log import Removed
from recall_ingester.sources.vscode_readable import items, mapping, string
from recall_ingester.sources.vscode_requests import request_units


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A removed request, or the removed part of one at its place in it. ``owner`` tells which
    request it was; ``None`` if any live text makes it live."""

    owner: str | None
    index: int
    request: object


def taken_back(removed: list[Removed], live: list[Any], units: list[Unit]) -> list[Unit]:
    """The removed messages whose text does not live on, under the ordinals that they had.

    ``units`` are those of the live requests, two of each, and may go on behind them.

    A response is mostly removed because a longer one takes its place. So what is contained in the
    live request of the same id, or was removed once more later, is left out.
    """
    told: dict[str | None, list[str]] = {None: []}
    for index, request in enumerate(live):
        user, answer = (unit.parsed.messages for unit in units[index * 2 : index * 2 + 2])
        told.setdefault(_owner(request, index), []).extend(_texts([*user, *answer]))
        told[None].extend(_texts(user))
    found: list[Unit] = []
    for change in reversed(removed):
        for fragment in reversed(list(_fragments(change, len(live)))):
            known = told.setdefault(fragment.owner, [])
            for unit in reversed(request_units(fragment.request, fragment.index)):
                gone = [message for message in unit.parsed.messages if _is_new(message, known)]
                known.extend(_texts(gone))
                if gone:
                    unit.parsed.messages = gone
                    found.append(unit)
    found.reverse()  # the order of the log, where two stood at one place
    return sorted(found, key=lambda unit: unit.ordinal)


def _texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def _is_new(message: Message, known: list[str]) -> bool:
    text = message.text.strip()
    return not any(text in other for other in known)


def _owner(request: object, index: int) -> str:
    return string(mapping(request).get("requestId")) or f"#{index}"


def _fragments(change: Removed, live: int) -> Iterator[_Fragment]:
    path = change.path
    if not path:
        document = mapping(change.value)
        for name in ("requests", "pendingRequests"):
            yield from _fragments(Removed((name,), document.get(name)), live)
    elif path[0] == "requests":
        yield from _of_requests(change)
    elif path[0] == "pendingRequests":
        # A queued message is sent under an id of its own, so its text alone tells whether it lives.
        nested = _nested(path[1:], change.value)
        for index, entry in enumerate(items(nested)):
            request = mapping(entry).get("request")
            if isinstance(request, Mapping):
                yield _Fragment(None, live + index, request)


def _of_requests(change: Removed) -> Iterator[_Fragment]:
    path = change.path
    if len(path) > 2 and isinstance(path[1], int):
        part = _nested(path[2:], change.value)
        whole = mapping(change.trail[2])
        ids = {key: whole.get(key) for key in ("requestId", "responseId", "timestamp")}
        yield _Fragment(_owner(whole, path[1]), path[1], {**ids, **mapping(part)})
        return
    for index, request in enumerate(items(_nested(path[1:], change.value))):
        if request is not None:
            yield _Fragment(_owner(request, index), index, request)


def _nested(path: tuple[str | int, ...], value: Any) -> Any:
    """The value inside the containers of a path, with nothing else in them."""
    for key in reversed(path):
        value = [None] * key + [value] if isinstance(key, int) else {key: value}
    return value
