"""What answers hold, for readers of ``/openapi.json``; tests hold the answers to it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
_Id = Annotated[str, Field(description="A 63-bit number as text.", examples=["812345678901234567"])]
_Key = Annotated[str, Field(examples=["claude-code:laptop:0b7f2c9e-5d1a-4e0e-9a55-3f6f3f1f9f10"])]
_Active = Annotated[bool, Field(description="False if the conversation went on without it.")]


class ProblemDocument(BaseModel):
    """Every error (RFC 9457)."""

    type: str = Field(examples=["urn:recall:problem:usage"])
    title: str
    status: int
    detail: str
    hint: str | None = Field(description="What to do next.")


class HitPlace(BaseModel):
    """Another place where the same message stands."""

    id: _Id
    session_key: _Key
    ordinal: int
    part: int


class HitPassage(BaseModel):
    """A part of a message, in characters of its content."""

    start_char: int
    length: int


class HitRank(BaseModel):
    """Where a hit stands in one of the searches that an answer was made of."""

    rank: int = Field(description="From 1.")
    score: float | None


class SearchHit(BaseModel):
    """One message that fits. Copies of it in other sessions are no hits of their own."""

    id: _Id
    session_key: _Key | None
    ordinal: int
    part: int | None
    source: str
    host: str
    project: str | None
    role: str
    kind: str
    tool: str | None
    ts: Moment | None
    score: float | None
    snippet: str = Field(
        description="Text around a match, which stands in `<mark>`. It is text and not HTML: "
        "escape it before it goes into a page."
    )
    title: str | None
    occurrences: list[HitPlace] = Field(description="Up to 20 other places of the same message.")
    passage: HitPassage | None = Field(
        default=None, description="By meaning: which part of the message is the nearest."
    )
    ranks: dict[str, HitRank] | None = Field(
        default=None, description="Hybrid: the place and score in each of its searches."
    )


class Closeness(BaseModel):
    """How close to the query the best hits of the first page are."""

    words: float | None = Field(
        description="The share of the query that the best hit by words holds, by the weight of "
        "its words. Null if words were not searched."
    )
    meaning: float | None = Field(
        description="The cosine similarity of the nearest passage. Null if there is none or "
        "meaning was not searched."
    )


class SearchAnswer(BaseModel):
    """Hits, and what the search could and could not see."""

    query: str
    mode_requested: str
    mode_used: str
    degraded: bool = Field(description="The answer may lack something; `reasons` says why.")
    reasons: list[str]
    weak: bool | None = Field(
        description="No hit is close to the query: nothing like it may be stored, and these are "
        "only the nearest. Null if that cannot be told: on later pages, and by meaning with a "
        "model of which it is not known what is near."
    )
    weak_reason: str | None
    closeness: Closeness
    coverage: dict[str, Any] = Field(description="What was searched.")
    hits: list[SearchHit]
    next_cursor: str | None
    took_ms: float


class SessionLine(BaseModel):
    """A session in a list."""

    session_key: _Key
    source: str
    host: str
    external_id: str = Field(description="The id that the client gave it.")
    title: str | None
    project: str | None
    branch: str | None
    model: str | None
    parent_key: str | None
    relation: str | None = Field(description="subagent, fork, resume or spill.")
    started_at: Moment | None = Field(description="Time of the first message.")
    ended_at: Moment | None = Field(description="Time of the last message.")
    message_count: int
    children_count: int


class SessionsAnswer(BaseModel):
    """One page of sessions, newest first."""

    sessions: list[SessionLine]
    total: int = Field(description="How many sessions fit the filters.")
    hidden_spills: int = Field(description="How many more would, if spills were included.")
    next_cursor: str | None


class SessionParent(BaseModel):
    """The session from which another came."""

    session_key: _Key
    title: str | None
    started_at: Moment | None
    stored: bool = Field(description="Whether it is in the store itself.")


class SessionChild(BaseModel):
    """A session that came from another."""

    session_key: _Key
    relation: str | None
    title: str | None
    started_at: Moment | None


class SessionFile(BaseModel):
    """A file that a session was read from."""

    path: str
    size: int
    read_at: Moment
    source_missing_at: Moment | None = Field(
        description="When the file was found to be gone; what was read from it is kept."
    )
    unreadable: str | None


class KindCount(BaseModel):
    """How many messages of a role and kind there are."""

    role: str
    kind: str
    messages: int


class SessionAnswer(SessionLine):
    """One session with its lineage, files and counts."""

    client_version: str | None
    first_seen: Moment
    retracted_count: int
    prompt_count: int
    parent: SessionParent | None
    children: list[SessionChild]
    files: list[SessionFile]
    counts: list[KindCount]


class MessageLine(BaseModel):
    """A message in a session."""

    ordinal: int
    part: int
    id: _Id
    role: str
    kind: str
    ts: Moment | None
    ts_origin: str | None
    tool: str | None
    call_id: str | None
    model: str | None
    is_error: bool
    is_damaged: bool
    on_active_branch: _Active
    redactions: int
    length: int = Field(description="Characters of the whole message.")
    truncated: bool
    content: str


class MessagesAnswer(BaseModel):
    """A stretch of a session in order."""

    session_key: _Key
    messages: list[MessageLine]
    next_cursor: str | None


class SessionName(BaseModel):
    """What names a session to a reader of one of its messages."""

    session_key: _Key
    title: str | None
    parent_key: str | None
    relation: str | None
    started_at: Moment | None
    ended_at: Moment | None


class MessagePlace(HitPlace):
    """Another place where the same message stands, with what its session is called."""

    title: str | None
    ts: Moment | None


class MessageVersion(BaseModel):
    """An earlier text of a message."""

    id: _Id
    retracted_at: Moment
    generation: int
    length: int


class NoteDetail(BaseModel):
    """What an entry of a ledger or memory has besides its text."""

    shelf: str = Field(description="ledger or memory.")
    entry_key: str = Field(description="What names the entry in its file or table.")
    path: str
    title: str | None
    session_id: str | None = Field(description="The client's own id of the session it is about.")
    fields: dict[str, Any] = Field(description="What else the client keeps about it.")
    is_current: bool
    replaced_at: Moment | None


class MessageAnswer(BaseModel):
    """One message in full, or one note in the same form."""

    id: _Id
    session_key: _Key | None
    ordinal: int
    part: int | None
    source: str
    host: str
    role: str
    kind: str
    ts: Moment | None
    ts_origin: str | None
    project: str | None
    branch: str | None
    tool: str | None
    call_id: str | None
    native_id: str | None
    model: str | None
    is_error: bool
    is_damaged: bool
    on_active_branch: _Active
    redactions: int | None
    stored_at: Moment
    retracted_at: Moment | None = Field(description="When the client took it back.")
    current_id: str | None = Field(description="The message that stands there now.")
    length: int
    content: str
    session: SessionName | None = Field(description="Of a note: the session that it is about.")
    note: NoteDetail | None
    occurrence_count: int = Field(description="In how many other places the same message stands.")
    occurrences: list[MessagePlace] = Field(description="Up to 50 of these places.")
    versions: list[MessageVersion]
    before: list[MessageLine]
    after: list[MessageLine]


class NoteText(BaseModel):
    """One text of a note, as it is or as it was."""

    id: _Id
    ts: Moment | None
    title: str | None
    stored_at: Moment
    replaced_at: Moment | None = Field(description="When another text took its place.")
    length: int = Field(description="Characters of the whole text.")
    truncated: bool
    content: str


class NoteLine(NoteText):
    """An entry of a ledger or memory in a list."""

    shelf: str = Field(description="ledger or memory.")
    entry_key: str = Field(description="What names the entry in its file or table.")
    source: str
    host: str
    path: str
    ordinal: int
    project: str | None
    score: float | None
    snippet: str = Field(description="As in a search hit, or the beginning of the content.")
    session_id: str | None = Field(description="The client's own id of the session it is about.")
    session_key: _Key | None = Field(description="That session, if it is stored.")
    session_title: str | None
    is_current: bool
    versions: list[NoteText] = Field(description="On request: up to 20 earlier texts.")


class NotesAnswer(BaseModel):
    """One page of a ledger or of memories."""

    query: str | None
    entries: list[NoteLine]
    stored: int = Field(description="How many current entries there are, whatever the filters.")
    reasons: list[str] = Field(description="What the search may have missed, and why.")
    next_cursor: str | None
