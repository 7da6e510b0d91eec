"""What the API answers about the store and its parts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from recall_api.answers import Moment


class Totals(BaseModel):
    """Rows in the store."""

    sessions: int
    messages: int
    prompts: int
    notes: int
    retracted: int
    estimated: list[str] = Field(description="Which of these are estimates.")


class Component(BaseModel):
    """A process that reports that it is alive."""

    component: str
    instance: str = Field(description="Tells several processes of one component apart.")
    host: str
    pid: int
    started_at: Moment
    beat_at: Moment
    age_seconds: float
    stale_after_seconds: float
    stale: bool
    detail: dict[str, Any]


class Embedding(BaseModel):
    """How far the passages of one embedding model are."""

    number: int
    model: str
    dimension: int
    state: Literal["active", "filling"]
    embedded: int
    is_estimated: bool = Field(description="Whether `embedded` is an estimate.")
    waiting: int = Field(description="Passages that wait for their vector.")
    failed: int = Field(description="Passages that the model could not embed.")
    uncut_entries: int = Field(description="Entries that are not cut into passages yet.")
    failed_sessions: int = Field(description="Sessions that could not be cut.")
    remaining: int = Field(description="Passages that are to come; an estimate.")
    share: float = Field(description="Of all passages, those that have a vector.")
    passages_per_minute: float
    eta_seconds: int | None = Field(description="Null while nothing moves.")


class HostStatus(BaseModel):
    """A machine that stores something here, by the last beat of its ingester."""

    host: str
    first_seen: Moment | None
    beat_at: Moment | None = Field(description="Null for a machine that never reported.")
    age_seconds: float | None
    stale_after_seconds: float
    silent: bool = Field(description="Whether it was not heard of within its time limit.")
    version: str | None = Field(description="Of Recall, on that machine.")
    state: Literal["reading", "waiting"] | None
    sources: list[str] = Field(description="What its last pass found.")
    sink_errors: dict[str, int] = Field(
        description="Errors of its last pass when it stored what it had read, by code."
    )


class SourceStatus(BaseModel):
    """What came from one client on one machine."""

    host: str
    source: str
    files: int
    missing_files: int
    unreadable_files: int
    sessions: int
    notes: int
    newest_message: Moment | None
    newest_read: Moment | None
    newest_sync: Moment | None = Field(
        description="When it was last known to be read to its end, or a file of it was read."
    )
    lag_seconds: float | None = Field(
        description="How long ago that is; null for what no pass of the machine reads."
    )
    lines_seen: int
    lines_stored: int
    lines_merged: int
    lines_quarantined: int
    lines_skipped: int
    lines_add_up: bool = Field(description="Whether every line seen is accounted for.")
    bytes_read: int = Field(description="Of the files as they are now, unpacked.")
    bytes_kept: int = Field(description="Of these, what is kept as it was written.")
    bytes_quarantined: int
    quarantined: int


class QuarantinedSpan(BaseModel):
    """A span of a file that could not be read as a record."""

    host: str
    source: str
    path: str
    generation: int
    byte_offset: int
    byte_length: int
    line: int
    session_key: str | None
    reason: str
    sha256: str
    salvaged: bool
    created_at: Moment


class UnreadableFile(BaseModel):
    """A file or folder that could not be read the last time."""

    host: str
    source: str
    path: str
    reason: str
    read_at: Moment


class Problems(BaseModel):
    """How many problems there are, and the newest of them if they were asked for."""

    quarantined: int
    unreadable: int
    missing: int
    quarantined_spans: list[QuarantinedSpan]
    unreadable_files: list[UnreadableFile]


class Disk(BaseModel):
    """The volume of the database."""

    ok: bool = Field(description="Whether something can be stored.")
    free_bytes: int
    reserve_bytes: int = Field(description="Free space below which nothing more is stored.")
    detail: str | None = Field(description="Why not.")


class StatusAnswer(BaseModel):
    """What is in the store and which parts are alive."""

    schema_version: int
    schema_expected: int
    server_version: str
    database_bytes: int
    disk: Disk | None = Field(description="Null where the API does not see that volume.")
    totals: Totals
    components: list[Component]
    embedding: list[Embedding]
    hosts: list[HostStatus]
    sources: list[SourceStatus]
    problems: Problems


class HealthAnswer(BaseModel):
    """The state of every component."""

    ok: bool
    components: dict[str, dict[str, Any]]
