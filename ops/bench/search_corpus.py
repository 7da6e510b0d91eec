"""Messages for the search benchmark: a fixed seed gives the same ones on every machine.

Words follow a Zipf distribution over a large vocabulary whose head is English and code. A session
draws some of its words from a topic of its own and its identifiers and paths from its project, so
that words are clustered in time and by project as they are in real logs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate

from ops.bench import search_text
from ops.bench.search_text import Voice

SEED = 20_260_601
NEWEST = datetime(2026, 6, 1, tzinfo=UTC)
SPAN_DAYS = 548.0
PROJECTS = 120
MESSAGES_A_SESSION = 80
VOCABULARY = 120_000

#: Share of the messages by source.
SOURCES = {
    "claude-code": 590.0,
    "codex": 30.0,
    "opencode": 12.0,
    "gemini": 4.3,
    "copilot": 3.7,
}
TINY_SOURCE = "copilot"
#: Texts that clients write again and again, and their share of all messages.
_BOILERPLATE_SHARE = 0.075
#: One session in so many is a resumed one: it begins with the messages of another session.
_RESUMED_ONE_IN = 33
_SIGMA = 1.08
_LONGEST = 60_000

#: Share, role, kind, tool and median length of the messages.
_KINDS = (
    (0.09, "user", "text", None, 300),
    (0.25, "assistant", "text", None, 760),
    (0.03, "assistant", "thinking", None, 900),
    (0.29, "assistant", "tool_call", "Bash", 500),
    (0.34, "tool", "tool_result", "Bash", 1_520),
)


@dataclass(frozen=True, slots=True)
class Session:
    """One session of the plan."""

    number: int
    source: str
    host: str
    project: int
    started: datetime
    messages: int
    parent: int | None

    @property
    def external_id(self) -> str:
        """The id that the client gave it."""
        return str(search_text.uuid(random.Random(f"{SEED} id {self.number}")))

    @property
    def folder(self) -> str:
        """The working folder."""
        return f"/home/dev/project-{self.project}"


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``origin`` is the session that it was first written in."""

    ordinal: int
    origin: int
    role: str
    kind: str
    tool: str | None
    ts: datetime
    content: str


def plan(rows: int) -> list[Session]:
    """Sessions with this many messages together, in no order of time."""
    chance = random.Random(f"{SEED} plan")
    weights = [1 / (place + 1.2) ** 1.05 for place in range(PROJECTS)]
    sessions: list[Session] = []
    left = rows
    while left:
        number = len(sessions)
        size = round(chance.lognormvariate(math.log(MESSAGES_A_SESSION) - 0.405, 0.9))
        size = min(left, max(2, min(1_500, size)))
        (source,) = chance.choices(list(SOURCES), list(SOURCES.values()))
        (project,) = chance.choices(range(PROJECTS), weights)
        age = SPAN_DAYS * (1 - math.sqrt(chance.random()))
        resumed = number > 0 and chance.randrange(_RESUMED_ONE_IN) == 0
        parent = chance.randrange(number) if resumed else None
        if parent is not None and sessions[parent].parent is not None:
            parent = None
        host = "laptop" if chance.random() < 0.8 else "server"
        sessions.append(
            Session(
                number, source, host, project, NEWEST - timedelta(days=age), size, parent
            ) if parent is None else Session(
                number, sessions[parent].source, sessions[parent].host, sessions[parent].project,
                NEWEST - timedelta(days=age), size, parent,
            )
        )  # fmt: skip
        left -= size
    return sessions


class Writer:
    """Writes the messages of sessions of one plan."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._kind_weights = list(accumulate(kind[0] for kind in _KINDS))

    def messages(self, session: Session) -> Iterator[Message]:
        """The messages of a session, first to last."""
        copied = 0
        if session.parent is not None:
            parent = self._sessions[session.parent]
            copied = min(parent.messages, session.messages // 2, 40)
            yield from self._own(parent, copied)
        for message in self._own(session, session.messages - copied):
            yield Message(
                message.ordinal + copied, message.origin, message.role, message.kind, message.tool,
                message.ts, message.content,
            )  # fmt: skip

    def _own(self, session: Session, count: int) -> Iterator[Message]:
        chance = random.Random(f"{SEED} session {session.number}")
        voice = Voice(chance, vocabulary(), project_names(session.project))
        ts = session.started
        for ordinal in range(count):
            ts += timedelta(seconds=chance.expovariate(1 / 25))
            (kind,) = chance.choices(_KINDS, cum_weights=self._kind_weights)
            _, role, kind_name, tool, median = kind
            if chance.random() < _BOILERPLATE_SHARE:
                content = chance.choice(search_text.BOILERPLATE)
            else:
                size = min(_LONGEST, int(chance.lognormvariate(math.log(median), _SIGMA)))
                content = voice.write(kind_name, size, ts)
            yield Message(ordinal, session.number, role, kind_name, tool, ts, content)


@cache
def vocabulary() -> search_text.Vocabulary:
    """The words of all sessions."""
    return search_text.Vocabulary(random.Random(f"{SEED} words"), VOCABULARY)


@cache
def project_names(project: int) -> search_text.Names:
    """The identifiers and paths of a project."""
    return search_text.Names(random.Random(f"{SEED} project {project}"), vocabulary())
