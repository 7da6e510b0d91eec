"""The sink that writes over HTTP: rows go up in parts, and one call stores them, all or none.

A batch gets a name of its own, and everything under that name can be sent again at any time: rows
are upserted, and the call that stores them answers the second time what it answered the first
time. So a request whose outcome is not known is simply sent again.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import httpx

from recall.errors import ConfigError, SchemaError, StoreError, StoreUnavailableError
from recall.hygiene import clean_json
from recall.identity import Identity
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.sinks import Batch, Written, postgrest_rows
from recall_ingester.sinks.piece_objects import (
    checkpoint_of_object,
    piece_objects,
    written_of,
)
from recall_ingester.sinks.postgrest_http import RefusedError, SinkErrors, StaleBatchError, Wire
from recall_ingester.sinks.postgrest_refused import Refused
from recall_ingester.sinks.postgrest_rows import COLUMNS, Item, Part, parts

_log = logging.getLogger(__name__)

#: Checkpoints of one answer, and values of one list in a request.
_PAGE = 1_000
_LIST = 5_000
#: How often a batch gets a new name: because the store changed meanwhile, or rows were lost with a
#: crash of the database.
_STALE_ROUNDS = 6
#: How often rows are left out of a batch; each time all that were refused until then.
_REFUSED_ROUNDS = 5
#: After so many refused rows without one that is accepted, a row that is good shows whether it is
#: the store that is wrong.
_ALL_REFUSED = 20


class PostgrestSink:
    """Rows of one host to the PostgREST at ``url``, as the host that the token belongs to."""

    def __init__(
        self,
        url: str,
        token: str,
        identity: Identity,
        *,
        errors: SinkErrors | None = None,
        transport: httpx.BaseTransport | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._identity = identity
        self._wire = Wire(url, token, errors=errors, transport=transport, wait=wait)

    def register(self) -> None:
        """Make sure that the token is one of this host and installation.

        Raises :class:`ClaimError` if another installation has the name.
        """
        answer = self._call("register", install_id=self._identity.install_id)
        host = answer.get("host") if isinstance(answer, dict) else None
        if host != self._identity.host:
            raise ConfigError(
                f"the token is that of the host `{host}`, and this machine is"
                f" `{self._identity.host}`",
                hint="`recall token create HOST` on the server prints the line to join with",
            )

    def checkpoints(self) -> dict[str, Checkpoint]:
        """How far every file of this host was read, by path."""
        found: dict[str, Checkpoint] = {}
        after: str | None = None
        while True:
            page = self._list("checkpoints", after=after, most=_PAGE)
            for item in page:
                try:
                    checkpoint = checkpoint_of_object(item)
                except (LookupError, TypeError, ValueError, AttributeError):
                    raise self._odd_rows() from None
                found[checkpoint.path] = checkpoint
                after = checkpoint.path
            if len(page) < _PAGE:
                return found

    def begin(self, expected_bytes: int) -> None:
        """Nothing: how the text index is built is the server's affair."""

    def write(self, batch: Batch) -> Written:
        """Store a batch; rows that the store refuses are quarantined, and the others go on."""
        refused = Refused()
        stale = narrowed = 0
        while True:
            left = refused.without(batch, self._identity.host) if refused else batch
            try:
                found = self._attempt(left)
            except RefusedError as error:
                raise self._all_refused(error.code) from None
            except StaleBatchError as error:
                stale += 1
                if stale >= _STALE_ROUNDS:
                    raise StoreUnavailableError(
                        f"the server at `{self._wire.url}` does not keep what is sent ({error})",
                        hint="`recall status` on the server says what is wrong there",
                    ) from None
                _log.warning("batch sent again", extra={"attempt": stale})
                continue
            if isinstance(found, Written):
                found.counts[len(batch.pieces) :] = []
                return found
            narrowed += 1
            if narrowed >= _REFUSED_ROUNDS:
                raise self._all_refused(found[0][1])
            for origin, code in found:
                if not refused.add(origin, code):
                    raise self._all_refused(code)
            _log.warning("rows refused by the store", extra={"rows": len(found)})

    def _all_refused(self, code: str) -> StoreError:
        return StoreError(
            f"the server at `{self._wire.url}` refuses what it is sent ({code})",
            hint="run the same version of Recall on the server and on this machine",
        )

    def _attempt(self, batch: Batch) -> Written | list[tuple[postgrest_rows.Origin, str]]:
        """Send a batch under a new name; what became of it, or what of it was refused."""
        attempt = _Attempt(self._wire, self._identity.host)
        attempt.upload("session", postgrest_rows.sessions(batch))
        attempt.upload("key", postgrest_rows.keys(batch))
        attempt.upload("prompt_key", postgrest_rows.prompt_keys(batch))
        attempt.upload("note_key", postgrest_rows.note_keys(batch))
        attempt.upload("quarantine", postgrest_rows.quarantine(batch))
        attempt.upload("span", postgrest_rows.spans(batch))
        if attempt.refused:
            return attempt.refused
        changed: set[int] = set()
        if batch.messages or batch.prompts or batch.notes:
            rows = self._list("changed_rows", batch=attempt.id)
            changed = {row[0] for row in rows}
        attempt.upload("message", postgrest_rows.messages(batch, changed))
        attempt.upload("prompt", postgrest_rows.prompts(batch, changed))
        attempt.upload("note", postgrest_rows.notes(batch, changed))
        attempt.upload("taken_back", postgrest_rows.taken_back(batch))
        attempt.upload("document", postgrest_rows.index_documents(batch, changed))
        if batch.raw:
            attempt.upload("blob", postgrest_rows.blobs(batch, self._known_blobs(batch)))
        if attempt.refused:
            return attempt.refused
        body = {"rows": attempt.rows, "pieces": piece_objects(batch)}
        answer = self._call("store_batch", batch=attempt.id, body=body)
        try:
            return written_of(answer)
        except (LookupError, TypeError, ValueError):
            raise self._odd_answer() from None

    def _known_blobs(self, batch: Batch) -> set[bytes]:
        hashes = sorted({span.hash for span in batch.raw})
        known: set[bytes] = set()
        for some in _chunks([f"\\x{digest.hex()}" for digest in hashes]):
            known |= {
                bytes.fromhex(text.removeprefix("\\x"))
                for text in self._list("known_blobs", hashes=some)
            }
        return known

    def mark(self, *, missing: Iterable[str], unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Note files that are gone, and by path the source and reason of what cannot be read."""
        for paths in _chunks(list(missing)):
            self._call("mark", missing=_clean(paths), unreadable={})
        for notes in _chunks(list(unreadable.items())):
            self._call(
                "mark", missing=[], unreadable=_clean({path: list(note) for path, note in notes})
            )

    def mark_present(self, paths: Iterable[str], *, readable: Iterable[str]) -> None:
        """Files that are back unchanged, and folders that can be listed again."""
        for some in _chunks(list(paths)):
            self._call("mark_present", paths=_clean(some), readable=[])
        for some in _chunks(list(readable)):
            self._call("mark_present", paths=[], readable=_clean(some))

    def raw_spans(self, path: str, generation: int) -> list[tuple[int, int, bytes]]:
        """Offset, length and hash of the original bytes that are kept of a path, by offset."""
        rows = self._list("raw_spans", path=_clean(path), generation=generation)
        return [
            (offset, length, bytes.fromhex(digest.removeprefix("\\x")))
            for offset, length, digest in rows
        ]

    def finish(
        self, session_keys: Iterable[str], *, wrote: int, replaced_raw: Iterable[bytes] = ()
    ) -> None:
        """Link new sessions that copy others, tidy the text index, drop original bytes that nothing
        points to any more."""
        keys, hashes = list(session_keys), [f"\\x{digest.hex()}" for digest in replaced_raw]
        first = True
        while first or keys or hashes:
            self._call(
                "finish_pass",
                session_keys=keys[:_LIST],
                wrote=wrote if first else 0,
                replaced_raw=hashes[:_LIST],
            )
            keys, hashes, first = keys[_LIST:], hashes[_LIST:], False

    def beat(self, detail: Mapping[str, Any]) -> None:
        """Say that the ingester is alive, what its last pass did, and which errors it met."""
        told = {**detail, "sink_errors": self._wire.errors.as_json()}
        self._call("beat", detail=_clean(told), pid=os.getpid())

    def probe(self) -> None:
        """Whether the server answers and takes the token; raises what is wrong."""
        self._wire.probe()

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return self._wire.call(name, **arguments)
        except RefusedError as error:
            raise self._all_refused(error.code) from None

    def _list(self, name: str, **arguments: Any) -> list[Any]:
        answer = self._call(name, **arguments)
        if not isinstance(answer, list):
            raise self._odd_answer()
        return answer

    def _odd_rows(self) -> SchemaError:
        return SchemaError(
            f"the server at `{self._wire.url}` answers otherwise than this version expects",
            hint="run the same version of Recall on the server and on this machine",
        )

    def _odd_answer(self) -> StoreError:
        return StoreError(
            f"what answers at `{self._wire.url}` is not a Recall server",
            hint="check `url`; a proxy or a login page may stand in between",
        )


class _Attempt:
    """The rows of one batch under one name: how many went up, and which were refused."""

    def __init__(self, wire: Wire, host: str) -> None:
        self._wire = wire
        self._host = host
        self._taken: dict[str, bool] = {}
        self.id = str(uuid.uuid4())
        self.rows: dict[str, int] = {}
        self.refused: list[tuple[postgrest_rows.Origin, str]] = []

    def upload(self, kind: str, items: Iterable[Item]) -> None:
        """Send rows, in parts; a part that is refused is sent in halves, down to the row."""
        columns = f"batch,n,{COLUMNS[kind]}"
        for part in parts(items):
            self._send(kind, columns, part)

    def _send(self, kind: str, columns: str, whole: Part) -> None:
        waiting = [whole]
        while waiting:
            part = waiting.pop()
            try:
                self._wire.upload(kind, columns, part.body(self.id))
            except RefusedError as error:
                if len(part.rows) > 1:
                    waiting.extend(part.halves())
                    continue
                self.refused.append((part.rows[0][1].origin, error.code))
                if len(self.refused) >= _ALL_REFUSED and not self._takes(kind):
                    raise
            else:
                self.rows[kind] = self.rows.get(kind, 0) + len(part.rows)

    def _takes(self, kind: str) -> bool:
        """Whether the store takes rows of a kind that are good: many may be bad, as one file is."""
        if self.rows.get(kind):
            return True
        if kind not in self._taken:
            self._taken[kind] = False
            for part in parts(postgrest_rows.good_rows(kind, self._host)):
                try:
                    body = part.body(str(uuid.uuid4()))
                    self._wire.upload(kind, f"batch,n,{COLUMNS[kind]}", body)
                    self._taken[kind] = True
                except RefusedError:
                    pass
        return self._taken[kind]


def _chunks(values: list[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(values), _LIST):
        yield values[at : at + _LIST]


def _clean(value: Any) -> Any:
    return clean_json(value)
