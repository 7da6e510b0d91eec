"""From which checkpoint a file is read, and whose session it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import IO, Any

from recall.jsontext import MalformedLine, loads
from recall.keys import path_key, session_key
from recall_ingester.checkpoint import ANCHOR_BYTES, Checkpoint, Reason, Stat, judge
from recall_ingester.file_keys import bounded
from recall_ingester.pipeline import safe_id
from recall_ingester.plan import Work, is_superseded
from recall_ingester.reader import decompressed, read_lines, trim
from recall_ingester.run_state import Pass
from recall_ingester.sources.base import SourceFile

_FIRST_RECORDS = 5


def is_new(known: Checkpoint | None, file: SourceFile | None = None) -> bool:
    """Whether nothing was ever stored of a file: it may have been unreadable, or have held no
    record that tells the session's id where nothing else does."""
    if known is None:
        return True
    if file is not None and is_provisional(known, file):
        return known.counts.stored + known.counts.merged == 0
    return known.lines == 0 and known.session_key is None and known.unreadable is not None


def may_claim(item: Work) -> bool:
    """Whether reading a file may need the id of a session that it does not have yet."""
    if item.file.shape == "container":
        return True
    return item.file.owns_session and is_new(item.known, item.file)


def is_provisional(known: Checkpoint, file: SourceFile) -> bool:
    """Whether a session goes by the place of its file because no record told its id."""
    place = safe_id(file.relative)
    ids = (place, f"{place}@")
    external = external_id(known)
    return (
        file.owns_session
        and file.natural_id is None
        and known.container is None
        and (external == ids[0] or external.startswith(ids[1]))
    )


def of_lines(
    run: Pass, item: Work, opened: IO[bytes], stat: Stat
) -> tuple[Checkpoint | None, Reason | None]:
    """Where to read on in a file of lines or a small record; ``None`` if there is nothing new."""
    known = item.known
    if known is None or is_new(known, item.file):
        natural = item.file.natural_id or _id_inside(item, opened, run.options.max_line_bytes)
        return first_checkpoint(run, item, stat, natural, lambda o: _begins_as(item, opened, o))
    if item.file.compressed or item.file.shape == "whole":
        return known.restart(stat), "changed"
    reason = judge(known, opened, stat, keep_raw=run.options.keep_raw)
    if reason is None or reason == "append":
        return known, reason or "append"
    return known.restart(stat), reason


def of_document(run: Pass, item: Work, data: bytes, stat: Stat) -> tuple[Checkpoint, Reason]:
    """Under which session a document is read, and what is known of it."""
    known = item.known
    if known is not None and not is_new(known, item.file):
        return known, "changed"
    natural = item.file.natural_id or _id_of_document(item, data)

    def begins_as(owner: Checkpoint) -> bool:
        width = owner.byte_offset
        return width <= len(data) and hashlib.sha256(data[:width]).digest() == owner.head_hash

    return first_checkpoint(run, item, stat, natural, begins_as)


def of_member(run: Pass, item: Work, external_id: str, path: str, stat: Stat) -> Checkpoint:
    """The first checkpoint of one session of a container."""
    run.turns.wait(item)
    external, taken_over = run.claims.claim(
        safe_id(external_id),
        item.file,
        lambda owner: is_superseded(owner, item.file) or run.claims.is_gone(owner),
    )
    return Checkpoint(
        path,
        item.source.name,
        _new_session(run, item, external),
        stat,
        rereading=taken_over,
        described=describe(item.file),
        container=item.key,
    )


def first_checkpoint(
    run: Pass, item: Work, stat: Stat, natural: str | None, begins_as: Any
) -> tuple[Checkpoint, Reason]:
    """The checkpoint of a file that was never read."""
    described = describe(item.file)
    if not item.file.owns_session:
        return Checkpoint(item.key, item.source.name, None, stat, described=described), "new"
    run.turns.wait(item)
    external, taken_over = run.claims.claim(
        safe_id(natural or item.file.relative),
        item.file,
        lambda owner: (
            is_superseded(owner, item.file) or (run.claims.is_gone(owner) and begins_as(owner))
        ),
    )
    run.turns.done(item)
    checkpoint = Checkpoint(
        item.key,
        item.source.name,
        _new_session(run, item, external),
        stat,
        rereading=taken_over,
        described=described,
    )
    return checkpoint, "moved" if taken_over else "new"


def describe(file: SourceFile) -> dict[str, Any]:
    """What has to be known of a file to parse its bytes when it is gone."""
    path = path_key(file.path)
    return {
        "label": file.label,
        "shape": file.shape,
        "relative": file.relative,
        "natural_id": file.natural_id,
        "compressed": file.compressed,
        "owns_session": file.owns_session,
        **({"path": path} if path != bounded(path) else {}),
    }


def external_id(checkpoint: Checkpoint) -> str:
    """The client's session id in a checkpoint's session key."""
    return checkpoint.session_key.split(":", 2)[2] if checkpoint.session_key else ""


def _new_session(run: Pass, item: Work, external: str) -> str:
    key = session_key(item.source.name, run.options.host, external)
    with run.lock:
        run.new_sessions.add(key)
    return key


def _begins_as(item: Work, opened: IO[bytes], owner: Checkpoint) -> bool:
    """Whether a file begins with the bytes that were read from another one."""
    width = min(ANCHOR_BYTES, owner.byte_offset)
    stream = decompressed(opened) if item.file.compressed else opened
    head = b""
    while len(head) < width and (piece := stream.read(width - len(head))):
        head += piece
    opened.seek(0)
    # A compressed file has no anchor; its name, made of date and id, has to do.
    return owner.head_hash == b"" or hashlib.sha256(head).digest() == owner.head_hash


def _id_inside(item: Work, opened: IO[bytes], max_line_bytes: int) -> str | None:
    """The session id that one of the first records gives; the file is left at its start."""
    if item.file.shape == "whole":
        return None
    stream = decompressed(opened) if item.file.compressed else opened
    found = None
    for line in read_lines(stream, byte_offset=0, ordinal=0, max_line_bytes=max_line_bytes):
        if line.ordinal >= _FIRST_RECORDS or found:
            break
        found = _id_of_line(item, line.data or b"", line.ordinal)
    opened.seek(0)
    return found


def _id_of_document(item: Work, data: bytes) -> str | None:
    """The id in a document that is one JSON object, or in its first lines."""
    try:
        whole, _ = loads(trim(data, 0))
    except MalformedLine:
        whole = None
    if isinstance(whole, Mapping):
        return item.source.first_id(whole)
    for ordinal, line in enumerate(data.split(b"\n", _FIRST_RECORDS)[:_FIRST_RECORDS]):
        if found := _id_of_line(item, line, ordinal):
            return found
    return None


def _id_of_line(item: Work, line: bytes, ordinal: int) -> str | None:
    try:
        value, _ = loads(trim(line, ordinal))
    except MalformedLine:
        return None
    return item.source.first_id(value) if isinstance(value, dict) else None
