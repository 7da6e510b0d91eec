"""The readable strings in the values that VS Code writes about a chat.

Most of them are objects of the editor (addresses, Markdown, trees of prompt parts) around a few
words. What is dropped on the way is one table, which the source also gives as what it leaves out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from recall_ingester.sources.toolinput import image_stub, leaves, render_input, stub_images

Value = Mapping[str, Any]

_ID = "an identifier that only the client resolves"
_WORD = "a word of the program for what a value is"
_SAME = "the same address in another spelling; the path is stored"
_SEALED = "encrypted or signed for the provider of the model"
_LOOK = "how the client draws it"
_BYTES = "bytes of an image or file; type, size and hash are stored"

#: Keys whose values are left out wherever they stand, and why.
UNTOLD: dict[str, str] = {
    "id": _ID,
    "$mid": _WORD,
    "kind": _WORD,
    "type": _WORD,
    "scheme": _WORD,
    "_sep": _WORD,
    "ctor": _WORD,
    "ctorName": _WORD,
    "fsPath": _SAME,
    "external": _SAME,
    "uris": _SAME,
    "baseUri": _SAME,
    "encrypted": _SEALED,
    "signature": _SEALED,
    "redactedData": _SEALED,
    "statefulMarker": _SEALED,
    "icon": _LOOK,
    "_icon": _LOOK,
    "iconPath": _LOOK,
    "themeIcon": _LOOK,
    "terminalTheme": _LOOK,
    "presentation": _LOOK,
    "isTrusted": _LOOK,
    "base64Data": _BYTES,
    "$base64": _BYTES,
    "requestId": "stored as the id of the message",
    "responseId": "stored as the id of the message",
    "toolCallId": "stored as the call's id, without the number that the editor appends",
    "toolId": "the editor's name of a tool; stored where the model's name of it is not known",
    "resolveId": _ID,
    "undoStopId": _ID,
    "subAgentInvocationId": _ID,
    "toolCallRoundId": _ID,
    "suggestionId": _ID,
    "modelMessageId": _ID,
    "cacheKey": _ID,
    "globalContextCacheKey": _ID,
    "sessionId": "stored as the id of the session",
    "sessionResource": _ID,
    "agentId": _ID,
    "extensionId": _ID,
    "terminalToolSessionId": _ID,
    "terminalCommandId": _ID,
    "terminalCommandUri": _ID,
    "serverDefinitionId": _ID,
    "collectionId": _ID,
    "didStartServerIds": _ID,
    "modeId": _WORD,
    "telemetryModeId": _WORD,
    "telemetryModeName": _WORD,
    "permissionLevel": _WORD,
    "mimeType": _WORD,
    "language": _WORD,
    "sha1": _ID,
    "shouldBeRemovedOnSend": _ID,
    "range": "a place in a text, in numbers; the line of a reference is stored",
    "containerName": "the name of the symbol and its file are stored",
    "modelId": "the name under which the model was chosen; the one that answered is stored",
    "agent": "what the participant says of itself, the same with each request",
    "source": "the server or extension that offers a tool",
}

#: Below this depth, values are taken as their bare strings.
_DEPTH = 40
#: From this length on, a list of small numbers is a file's bytes.
_BYTES_FROM = 32
_ENCODED = ("$base64", "base64Data")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_MEDIA = ("image/", "audio/", "video/")


def string(value: object) -> str | None:
    """A non-empty string, else ``None``."""
    return value if isinstance(value, str) and value else None


def mapping(value: object) -> Value:
    """A mapping, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """A list, empty for anything else."""
    return value if isinstance(value, list) else []


def markdown(value: object) -> str:
    """The text of a Markdown string, which is a bare string or an object around one."""
    text = value if isinstance(value, str) else mapping(value).get("value")
    return stub_images(text) if isinstance(text, str) else ""


def address(value: object) -> str | None:
    """A file's path, another resource's URI, or a place in one; ``None`` for anything else."""
    given = mapping(value)
    path, scheme = given.get("path"), given.get("scheme")
    if isinstance(path, str) and isinstance(scheme, str):
        return _uri(given, scheme, path)
    if "uri" in given and set(given) <= {"uri", "range", "$mid"}:
        base = string(given["uri"]) or address(given["uri"])
        line = mapping(given.get("range")).get("startLineNumber")
        return f"{base}:{line}" if base and isinstance(line, int) else base
    return None


def _uri(given: Value, scheme: str, path: str) -> str:
    authority, query = string(given.get("authority")), string(given.get("query"))
    fragment = string(given.get("fragment"))
    start = f"//{authority}" if authority else ""
    end = (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")
    return f"{start}{path}{end}" if scheme == "file" else f"{scheme}:{start}{path}{end}"


def encoded_stub(holder: Value, key: str, media: str | None) -> str | None:
    """A stub for a field that holds the bytes of an image or file in Base64."""
    text = holder.get(key)
    if not isinstance(text, str) or not _BASE64.fullmatch(text):
        return None
    is_text = holder.get("isText")
    is_media = is_text is not True and (media or "").startswith(_MEDIA)
    if key in _ENCODED or (key in ("data", "value") and (is_text is False or is_media)):
        return image_stub(media, text)
    return None


def byte_stub(value: Value | list[Any], media: str | None) -> str | None:
    """A stub for bytes as a list of numbers, or as an object of numbers under their indexes."""
    numbers = value if isinstance(value, list) else list(value.values())
    if len(numbers) < _BYTES_FROM or not all(_is_byte(number) for number in numbers):
        return None
    if isinstance(value, Mapping) and not all(str(key).isdigit() for key in value):
        return None
    return image_stub(media, base64.b64encode(bytes(numbers)).decode())


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 256


def leftovers(value: object, told: str = "") -> str:
    """The strings of a value, with the keys that name them, except those that ``told`` has."""
    return render_input(_pruned(value, told, 0, None)).strip()


def _pruned(value: object, told: str, depth: int, media: str | None) -> object:
    """The value without what is untold, not a string, or in ``told``; ``None`` for nothing."""
    if isinstance(value, str):
        text = value.strip()
        return value if text and text not in told else None
    if not isinstance(value, Mapping | list):
        return None
    if depth > _DEPTH:
        return "\n".join(text for text in leaves(value) if text.strip() not in told) or None
    short = address(value) or byte_stub(value, media)
    if short is not None:
        return short if short not in told else None
    if isinstance(value, list):
        kept = [_pruned(item, told, depth + 1, media) for item in value]
        return [item for item in kept if item is not None] or None
    media = string(value.get("mimeType")) or media
    fields: dict[str, object] = {}
    for key, item in value.items():
        shown: object = encoded_stub(value, key, media)
        if shown is None and key not in UNTOLD:
            shown = _pruned(item, told, depth + 1, media)
        if shown is not None:
            fields[key] = shown
    if len(fields) == 1 and not fields.keys().isdisjoint(("value", *_ENCODED)):
        return next(iter(fields.values()))
    return fields or None


def tree_text(value: object) -> str:
    """The text of a tool's result or of a rendered prompt: trees of pieces around strings.

    The addresses that pieces refer to follow the text, unless it names them.
    """
    pieces: list[str] = []
    references: list[str] = []
    stack: list[object] = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, str):
            _add(pieces, current, on_new_line=True)
        elif (short := address(current)) is not None:
            references.append(short)
        elif isinstance(current, Mapping | list):
            if (short := byte_stub(current, None)) is not None:
                _add(pieces, short, on_new_line=True)
            elif isinstance(current, Mapping):
                stack.extend(reversed(_children(current, pieces)))
            else:
                stack.extend(reversed(current))
    text = "".join(pieces)
    more = [line for line in dict.fromkeys(references) if line not in text]
    return "\n".join((text, *more)) if text else "\n".join(more)


def _children(piece: Value, pieces: list[str]) -> list[object]:
    """Add a piece's own text, and give what stands below it."""
    text = piece.get("text")
    if isinstance(text, str):
        # A leaf of a prompt tree says itself whether it begins a line.
        broken = piece.get("lineBreakBefore") is True or piece.get("type") != 2
        _add(pieces, text, on_new_line=broken)
    media = string(piece.get("mimeType"))
    below: list[object] = []
    for key, item in piece.items():
        if (stub := encoded_stub(piece, key, media)) is not None:
            below.append(stub)
        elif key not in UNTOLD and not (key == "text" and isinstance(item, str)):
            below.append(item)
    return below


def _add(pieces: list[str], text: str, *, on_new_line: bool) -> None:
    if not text:
        return
    if pieces and on_new_line and not pieces[-1].endswith("\n"):
        pieces.append("\n")
    pieces.append(stub_images(text))
