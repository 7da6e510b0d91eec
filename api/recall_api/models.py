"""What requests may say: the one description behind every door, the HTTP API and the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recall.errors import UsageError
from recall.records import Kind, Relation, Role, Shelf
from recall_api.filters import parse_when
from recall_api.messages import DEFAULT_CHARS, MOST_CHARS, MOST_MESSAGES, MessagesRequest
from recall_api.notes import DEFAULT_NOTE_CHARS, MOST_NOTE_CHARS, MOST_NOTES, NotesRequest
from recall_api.search_plan import MOST_HITS, MOST_QUERY_CHARS, Mode, SearchRequest
from recall_api.sessions import SessionsRequest

_Word = Annotated[str, Field(min_length=1, max_length=1_024)]
_Words = Annotated[list[_Word], Field(max_length=50)]
_Cursor = Annotated[str, Field(max_length=2_048)]
_When = Annotated[str, Field(max_length=64, examples=["2026-01-31", "3d", "2026-01-31T12:00:00Z"])]

SearchKind = Kind | Shelf | Literal["prompt"]
SessionRelation = Relation | Literal["main"]


class Params(BaseModel):
    """Parameters of a request. An unknown name is an error: a typing mistake must not unfilter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check parameters that did not come by HTTP; ``None`` means not given."""
        try:
            return cls.model_validate({k: v for k, v in values.items() if v is not None})
        except ValidationError as error:
            raise UsageError(explain([dict(item) for item in error.errors()])) from None


def explain(errors: list[dict[str, Any]]) -> str:
    """What is wrong with which parameter; what the caller sent is not repeated."""
    lines = []
    for error in errors[:5]:
        names = [str(part) for part in error["loc"] if part not in ("query", "path")]
        name = names[0] if names else "request"
        if error["type"] == "extra_forbidden":
            lines.append(f"`{name}` is not a parameter here")
        elif error["type"] == "missing":
            lines.append(f"`{name}` is missing")
        else:
            lines.append(f"`{name}`: {error['msg'][:1].lower()}{error['msg'][1:]}")
    return "; ".join(lines)


class SearchParams(Params):
    """What to search for, and where."""

    q: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MOST_QUERY_CHARS,
            description='Words, a "phrase", `or`, `-not`; or an exact text or regular expression.',
            examples=["could not resize shared memory segment"],
        ),
    ]
    mode: Annotated[
        Mode, Field(description="`exact` finds substrings: error messages, paths, flags.")
    ] = "auto"
    limit: Annotated[int, Field(ge=1, le=MOST_HITS)] = 20
    cursor: _Cursor | None = None
    source: Annotated[_Words, Field(description="Clients, such as `claude-code`.")] = []
    host: Annotated[_Words, Field(description="Machines that fed the store.")] = []
    project: Annotated[_Words, Field(description="Working folders, as the client names them.")] = []
    role: list[Role] = []
    kind: list[SearchKind] = []
    tool: Annotated[_Words, Field(description="Names of tools, such as `Bash`.")] = []
    session: Annotated[
        _Words, Field(description="Sessions, by key or by a unique beginning of their id.")
    ] = []
    since: _When | None = None
    until: _When | None = None
    ignore_case: Annotated[bool, Field(description="For `exact` and `regex`.")] = False
    exclude_session: Annotated[
        _Words, Field(description="Sessions to leave out with everything that comes from them.")
    ] = []
    include_retracted: Annotated[
        bool, Field(description="Also search what a client took back or wrote over.")
    ] = False
    min_similarity: Annotated[
        float | None,
        Field(
            ge=-1,
            le=1,
            description="By meaning, only passages with at least this cosine similarity.",
        ),
    ] = None
    strict: Annotated[
        bool, Field(description="No hits instead of `weak` ones, of which none is close.")
    ] = False

    def request(self, now: datetime) -> SearchRequest:
        """The search that these parameters ask for."""
        return SearchRequest(
            query=self.q,
            mode=self.mode,
            limit=self.limit,
            cursor=self.cursor,
            sources=tuple(self.source),
            hosts=tuple(self.host),
            projects=tuple(self.project),
            roles=tuple(self.role),
            kinds=tuple(self.kind),
            tools=tuple(self.tool),
            sessions=tuple(self.session),
            since=parse_when(self.since, now) if self.since else None,
            until=parse_when(self.until, now) if self.until else None,
            ignore_case=self.ignore_case,
            exclude_sessions=tuple(self.exclude_session),
            include_retracted=self.include_retracted,
            min_similarity=self.min_similarity,
            strict=self.strict,
        )


class SessionsParams(Params):
    """Which sessions to list."""

    q: Annotated[str, Field(max_length=1_024, description="Part of the title.")] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: _Cursor | None = None
    source: _Words = []
    host: _Words = []
    project: _Words = []
    relation: Annotated[
        list[SessionRelation],
        Field(description="How a session came from its parent; `main` has none."),
    ] = []
    since: Annotated[_When | None, Field(description="Still active at this time or later.")] = None
    until: Annotated[_When | None, Field(description="Started before this time.")] = None
    include_spills: Annotated[
        bool, Field(description="Also list sessions that only hold spilled tool output.")
    ] = False

    def request(self, now: datetime) -> SessionsRequest:
        """The list that these parameters ask for."""
        return SessionsRequest(
            limit=self.limit,
            cursor=self.cursor,
            sources=self.source,
            hosts=self.host,
            projects=self.project,
            relations=self.relation,
            since=parse_when(self.since, now) if self.since else None,
            until=parse_when(self.until, now) if self.until else None,
            title=self.q,
            include_spills=self.include_spills,
        )


_Ordinal = Annotated[int, Field(ge=0, lt=2**63)]
_Chars = Annotated[
    int, Field(ge=1, le=MOST_CHARS, description="Longer messages are cut and marked `truncated`.")
]


class MessagesParams(Params):
    """Which messages of a session to give."""

    from_ordinal: _Ordinal | None = None
    cursor: _Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 100
    around: Annotated[
        _Ordinal | None, Field(description="The messages at this place and `context` on each side.")
    ] = None
    context: Annotated[int, Field(ge=0, le=100)] = 5
    role: list[Role] = []
    kind: list[Kind] = []
    max_chars: _Chars = DEFAULT_CHARS

    def request(self) -> MessagesRequest:
        """The stretch that these parameters ask for."""
        return MessagesRequest(
            from_ordinal=self.from_ordinal,
            cursor=self.cursor,
            limit=self.limit,
            around=self.around,
            context=self.context,
            roles=self.role,
            kinds=self.kind,
            max_chars=self.max_chars,
        )


class MessageParams(Params):
    """What to give beside one message."""

    context: Annotated[
        int, Field(ge=0, le=50, description="Messages of the session on each side.")
    ] = 0
    max_chars: Annotated[_Chars, Field(le=200_000)] = DEFAULT_CHARS


class _NotesParams(Params):
    """What both lists of notes take."""

    q: Annotated[
        str | None,
        Field(
            max_length=MOST_QUERY_CHARS,
            description="Words as in a search; without any, all entries are listed.",
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=MOST_NOTES)] = 20
    cursor: _Cursor | None = None
    source: _Words = []
    host: Annotated[_Words, Field(description="Machines that fed the store.")] = []
    project: Annotated[_Words, Field(description="Working folders, or the last part of one.")] = []
    since: _When | None = None
    until: _When | None = None
    max_chars: Annotated[
        int,
        Field(ge=1, le=MOST_NOTE_CHARS, description="Longer entries are cut: `truncated`."),
    ] = DEFAULT_NOTE_CHARS

    def _request(self, shelf: Shelf, now: datetime) -> NotesRequest:
        return NotesRequest(
            shelf=shelf,
            query=self.q,
            limit=self.limit,
            cursor=self.cursor,
            sources=self.source,
            hosts=self.host,
            projects=self.project,
            since=parse_when(self.since, now) if self.since else None,
            until=parse_when(self.until, now) if self.until else None,
            max_chars=self.max_chars,
        )


class LedgerParams(_NotesParams):
    """Which entries of work ledgers to give."""

    session: Annotated[
        _Words,
        Field(description="Sessions that entries are about; they need not be stored themselves."),
    ] = []

    def request(self, now: datetime) -> NotesRequest:
        """The list that these parameters ask for."""
        return replace(self._request("ledger", now), sessions=self.session)


class MemoriesParams(_NotesParams):
    """Which memories to give."""

    path: Annotated[
        _Words, Field(description="Files: the path, the end of one, or a folder above it.")
    ] = []
    include_replaced: Annotated[
        bool, Field(description="Also search and list earlier texts, and entries that are gone.")
    ] = False

    def request(self, now: datetime) -> NotesRequest:
        """The list that these parameters ask for."""
        return replace(
            self._request("memory", now),
            paths=self.path,
            include_replaced=self.include_replaced,
        )


class StatusParams(Params):
    """How much to list."""

    problems: Annotated[
        int, Field(ge=0, le=1_000, description="How many problems of each kind to list.")
    ] = 0
