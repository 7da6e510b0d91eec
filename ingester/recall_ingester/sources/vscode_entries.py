"""Entries of a VS Code response that are text, reasoning, an edit or a word of the client."""

from __future__ import annotations

from collections.abc import Mapping

from recall_ingester.sources.toolinput import stub_images
from recall_ingester.sources.vscode_readable import (
    Value,
    address,
    items,
    leftovers,
    mapping,
    markdown,
    string,
    tree_text,
)

#: Fields of reasoning that are its text, or a word of the program.
_PLACED = frozenset({"value", "stopReason"})


def inline(entry: object) -> str | None:
    """The text of an entry that belongs into the running text; ``None`` for any other entry."""
    if isinstance(entry, str):
        return stub_images(entry)
    given = mapping(entry)
    kind = given.get("kind")
    if kind is None and isinstance(given.get("value"), str):
        return markdown(given)
    if kind == "markdownContent" or kind == "markdownVuln":
        content = given.get("content")
        text = mapping(content).get("value", content)
        return markdown(text) if isinstance(text, str) else None
    if kind == "inlineReference":
        return _reference(given)
    if kind == "codeblockUri":
        place = string(given.get("uri")) or address(given.get("uri"))
        return f"{place}\n" if place else None
    return None


def _reference(given: Value) -> str | None:
    """A reference as Markdown writes a link: the words that the client shows, and the place."""
    target = given.get("inlineReference")
    symbol = mapping(target)
    place = string(target) or address(target) or address(symbol.get("location"))
    name = string(given.get("name")) or string(symbol.get("name"))
    if place is None:
        return name
    if name is None:
        if place.startswith(("http:", "https:")):
            return place
        name = place.rstrip("/").rpartition("/")[2].partition(":")[0] or place
    return f"[{name}]({place})"


def thinking(given: Value) -> str:
    """Reasoning in a response. The entry that ends it has no text."""
    value = given.get("value")
    if isinstance(value, list) and all(isinstance(piece, str) for piece in value):
        value = "".join(value)
    text = value if isinstance(value, str) else tree_text(value)
    rest = {key: item for key, item in given.items() if key not in _PLACED}
    if isinstance(metadata := given.get("metadata"), Mapping):
        rest["metadata"] = {key: item for key, item in metadata.items() if key not in _PLACED}
    more = leftovers(rest, text)
    return "\n".join(line for line in (text, more) if line.strip())


def thought(given: object) -> str:
    """Reasoning in a round, which has other names for the same."""
    if not isinstance(given, Mapping):
        return tree_text(given)
    return thinking(
        {**{key: item for key, item in given.items() if key != "text"}, "value": given.get("text")}
    )


def edit_text(given: Value) -> str:
    """The file and the new texts of an edit."""
    place = string(given.get("uri")) or address(given.get("uri")) or ""
    texts = [place] if place else []
    stack = list(reversed(items(given.get("edits"))))
    while stack:
        edit = stack.pop()
        if isinstance(edit, list):
            stack.extend(reversed(edit))
        elif isinstance(text := mapping(edit).get("text"), str):
            texts.append(stub_images(text))
        else:
            texts.append(leftovers(edit))
    told = "\n".join(text for text in texts if text)
    more = leftovers(given, told)
    return "\n".join(text for text in (told, more) if text.strip())


def client_words(given: Value, kind: str | None) -> str:
    """What the client tells, under the name of its kind."""
    rest = {key: value for key, value in given.items() if key != "content"}
    text = markdown(given.get("content")) or leftovers(given.get("content"))
    shown = "\n".join(line for line in (text, leftovers(rest, text)) if line.strip())
    return f"{kind}\n{shown}" if shown else ""
