"""What the search benchmark asks: classes of queries by how common their words are, and filters.

Each class has two sets of queries that share no query: one to tune by and one to report on.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, LiteralString

from ops.bench import search_corpus
from ops.bench.search_corpus import NEWEST, TINY_SOURCE
from ops.bench.search_store import Connection
from ops.bench.search_text import HEAD

QuerySet = Literal["tune", "report"]
SETS: tuple[QuerySet, ...] = ("tune", "report")

#: Share of the index rows that hold a word, by the name of the band.
_BANDS = {"mid": (0.007, 0.014), "high": (0.09, 0.15), "vhigh": (0.22, 0.60)}
#: Messages whose text is sampled, and how many of them hold a string that is common.
_SAMPLES = 4_000
_COMMON_SAMPLES = 4
_RARE_SHARE = (0.00002, 0.0005)
#: Strings that are named in the design, reported whatever the set.
NAMED_STRINGS = (
    "get request", "return value", "the file", "import os", "def __init__(self",
    "Traceback (most recent call last)",
)  # fmt: skip
_ERRORS = (
    "could not resize shared memory segment", "No space left on device", "error[E0382]: borrow",
    "refusing to merge unrelated histories", "code ELIFECYCLE", "deadlock detected",
    "AssertionError: expected 1", "TypeError: ", "error[E0499]: cannot borrow",
    "required positional argument", "KeyError: '", "as mutable more than once",
    "ModuleNotFoundError: No module named", "failed with status:503", "failed with status:404",
    "psycopg.errors.DeadlockDetected", "--shm-size 3g", "after 7 retries", "ERR! code", "E0499",
    "string to replace not found", "Permission to use this tool", "ran out of context",
    "Operation not permitted", "segmentation fault", "error[E0382]: b", "moved value: `",
    "more than once at a time", "PostgreSQL.17", "memory segment \"/PostgreSQL.9",
    "errors.DeadlockDetected: deadlock", "unrelated histories", "shared memory", "E0382",
    "missing 1 required", "named '", "expected 77, got", "left on dev", "positional arg",
    "with status:500 after 8",
)  # fmt: skip
_REGEXES = {
    "regex broad": (
        r"def \w+\(self", r"\bself\.\w+ = ", r"status:[45]\d\d", r"took \d+ ms",
        r"^import \w+$", r"^class [A-Z]\w+\(", r"GET /v\d/", r"worker-[0-9] ", r"-> Result<",
        r"line \d+, in",
    ),
    "regex selective": (
        r"E0\d{3}\]: borrow", r"Postgre\w+\.7\d\d", r"(?i)elifecycle", r"refusing to \w+ unrelated",
        r"Deadlock[A-Z]\w+: dead", r"shm-size [89]g --rm", r"expected 13\d\d, got 9\d",
        r"No module named '[xz]", r"at a time$", r"retries\s+\S+ ERROR \S+ failed with status:404",
    ),
    "regex no hit": (
        r"E0\d{5}\]", r"qqq+x", r"panic at \S+\.go:\d+", r"^\s*BEGIN TRANSACTION;$",
        r"0x[0-9a-f]{16} zz",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryClass:
    """Queries of one kind and the mode that they are asked in."""

    name: str
    mode: Literal["text", "exact", "regex"]
    queries: Mapping[QuerySet, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter, as options of a search request."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def filters(conn: Connection) -> list[Filter]:
    """The filters, with names of things that are in the store."""
    project = "/home/dev/project-10"
    session = conn.execute(
        "select session_key from recall.message group by session_key"
        " order by abs(count(*) - 50), session_key limit 1"
    ).fetchone()
    assert session is not None, "the store has sessions"
    month = {"since": NEWEST - timedelta(days=30)}
    old = {"since": NEWEST - timedelta(days=400), "until": NEWEST - timedelta(days=370)}
    return [
        Filter("none"),
        Filter("broad source", {"sources": ["claude-code"]}),
        Filter("tiny source", {"sources": [TINY_SOURCE]}),
        Filter("project", {"projects": [project]}),
        Filter("role user", {"roles": ["user"]}),
        Filter("session", {"sessions": [session[0]]}),
        Filter("last 30 d", month),
        Filter("old 30 d", old),
        Filter("project 30 d", {"projects": [project], **month}),
        Filter("empty", {"sources": [TINY_SOURCE], "until": NEWEST - timedelta(days=900)}),
    ]


def classes(conn: Connection, count: int) -> list[QueryClass]:
    """All classes with this many queries in each set, the same for the same store."""
    maker = _Maker(conn, count)
    return [*_word_classes(maker), *_string_classes(maker), *_regex_classes()]


class _Maker:
    """Draws queries from what is stored."""

    def __init__(self, conn: Connection, count: int) -> None:
        self._conn = conn
        self.count = count
        self.chance = random.Random("queries")
        self.bands = {name: _split(self.chance, words) for name, words in _bands(conn).items()}
        self.samples = [row[0] for row in conn.execute(
            "select left(content, 4000) from recall.message"
            " where mod(id, 31) = 7 and length(content) > 60 order by id"
            f" limit {_SAMPLES}"
        ).fetchall()]  # fmt: skip

    def words(self, pattern: str) -> Callable[[QuerySet], str]:
        """A maker of queries in which ``{rare}``, ``{mid}`` ... stand for words of a band."""

        def make(which: QuerySet) -> str:
            used: set[str] = set()

            def word(match: re.Match[str]) -> str:
                left = [w for w in self.bands[match[1]][which] if w not in used]
                used.add(chosen := self.chance.choice(left))
                return chosen

            return re.sub(r"\{(\w+)\}", word, pattern)

        return make

    def pieces(
        self, pattern: str, *, least: int = 1, most: int | None = None
    ) -> Callable[[QuerySet], str]:
        """A maker of queries that are places of stored texts at which a pattern matches.

        So many of the sampled texts hold one, ``least`` to ``most``.
        """
        expression = re.compile(pattern)
        counts = Counter(
            piece for text in self.samples for piece in {m[0] for m in expression.finditer(text)}
        )
        found = sorted(
            piece for piece, n in counts.items() if least <= n and (most is None or n <= most)
        )
        sets = _split(self.chance, found)
        assert len(found) > 1, f"nothing stored matches `{pattern}`"
        return lambda which: self.chance.choice(sets[which])

    def build(
        self, name: str, mode: Literal["text", "exact"], make: Callable[[QuerySet], str]
    ) -> QueryClass:
        """A class; fewer queries where there are not so many different ones."""
        queries: dict[QuerySet, list[str]] = {}
        for which in SETS:
            unique = dict.fromkeys(make(which) for _ in range(8 * self.count))
            queries[which] = list(unique)[: self.count]
        return QueryClass(name, mode, queries)


def _bands(conn: Connection) -> dict[str, list[str]]:
    rows = conn.execute(
        "select e, f from pg_stats s,"
        " unnest(s.most_common_elems::text::text[], s.most_common_elem_freqs) x (e, f)"
        " where s.schemaname = 'recall' and s.tablename = 'message_text' and s.attname = 'tsv'"
        "  and e ~ '^[a-z]{3,}$' and ts_lexize('pg_catalog.english_stem', e) = array[e]"
        " order by e"
    ).fetchall()
    known = set(search_corpus.vocabulary().words)  # the statistics also list stems
    bands = {
        name: [word for word, share in rows if low <= share <= high and word in known]
        for name, (low, high) in _BANDS.items()
    }
    bands["rare"] = _rare_words(conn)
    return bands


def _rare_words(conn: Connection) -> list[str]:
    total = _count(conn, "select count(*) from recall.message_text")
    rows = conn.execute(
        "select word from"
        " ts_stat('select t.tsv from recall.message_text t where mod(t.id, 97) = 5')"
        " where word ~ '^[a-z]{5,}$' and ndoc = 1 order by md5(word) limit 300"
    ).fetchall()
    counting = (
        "select count(*) from recall.message_text t"
        " where t.tsv @@ plainto_tsquery('pg_catalog.simple', %s)"
    )
    low, high = (share * total for share in _RARE_SHARE)
    return [word for (word,) in rows if low <= _count(conn, counting, word) <= high]


def _count(conn: Connection, statement: LiteralString, *values: str) -> int:
    row = conn.execute(statement, values or None).fetchone()
    assert row is not None, "a count gives one row"
    return int(row[0])


def _split(chance: random.Random, items: Sequence[str]) -> dict[QuerySet, list[str]]:
    shuffled = list(items)
    chance.shuffle(shuffled)
    return {"tune": shuffled[::2], "report": shuffled[1::2]}


def _word_classes(maker: _Maker) -> Iterator[QueryClass]:
    patterns = {
        "word rare": "{rare}",
        "word mid 1 %": "{mid}",
        "word high 12 %": "{high}",
        "word very high": "{vhigh}",
        "or2 mid high": "{mid} {high}",
        "or2 common": "{high} {vhigh}",
        "or3 rare mid vhigh": "{rare} {mid} {vhigh}",
        "or4 mid2 high2": "{mid} {mid} {high} {high}",
        "or5 mid high2 vhigh2": "{mid} {high} {high} {vhigh} {vhigh}",
        "or5 common": "{high} {high} {high} {vhigh} {vhigh}",
        "or8 question": "{vhigh} {high} {mid} {vhigh} {rare} {high} {mid} {vhigh}",
        "and2 mid high": '"{mid}" "{high}"',
        "and3 common": '"{high}" "{high}" "{vhigh}"',
        "not mid -vhigh": "{mid} -{vhigh}",
        "not vhigh -mid": "{vhigh} -{mid}",
    }
    for name, pattern in patterns.items():
        yield maker.build(name, "text", maker.words(pattern))
    quoted = maker.pieces(r"(?<= )[a-z]{3,} [a-z]{3,}(?= )")
    yield maker.build("phrase", "text", lambda which: f'"{quoted(which)}"')
    yield maker.build("identifier", "text", maker.pieces(r"\b[a-z]{4,}_[a-z]{4,}\b"))
    yield maker.build("prefix of a hash", "text", maker.pieces(r"(?<=sha=)(?=[a-f]*\d)[0-9a-f]{7}"))


def _string_classes(maker: _Maker) -> Iterator[QueryClass]:
    yield QueryClass("exact named", "exact", dict.fromkeys(SETS, NAMED_STRINGS))
    errors = _split(random.Random("errors"), _ERRORS)
    yield QueryClass("exact error string", "exact", dict(errors))
    pieces = {
        "exact path:line": r"src/[a-z]+/[a-z_]+\.(?:py|ts|rs):\d+",
        "exact rare": r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}",
        "exact inside words": r"(?<=[a-z]{2})[a-z]{5}(?=[a-z]{2})",
    }
    for name, pattern in pieces.items():
        yield maker.build(name, "exact", maker.pieces(pattern))
    word = "(?:" + "|".join(HEAD[:100]) + ")"
    pair, three = rf"\b{word} {word}\b", rf"\b{word} {word} {word}\b"
    yield maker.build("exact common, two words", "exact", maker.pieces(pair, least=_COMMON_SAMPLES))
    yield maker.build("exact rare, two common words", "exact", maker.pieces(pair, most=1))
    yield maker.build("exact rare, three common words", "exact", maker.pieces(three, most=1))
    code = (
        r"(?:def [a-z]{3}|import [a-z]{2}|class [A-Z][a-z]|self\.[a-z]{3}|return [a-z]{2}"
        r"|if [a-z]{3}|INFO \[[a-z]{2}|GET /v\d|in [a-z]{2}|await [a-z]{2}|raise [A-Z][a-z])"
    )
    yield maker.build("exact code", "exact", maker.pieces(code))
    yield maker.build("exact one word", "exact", maker.words(" {vhigh} "))
    made = maker.pieces(r"\b[a-z]{6}")
    yield maker.build(
        "exact no hit", "exact", lambda which: f"the {made(which)}-quux {made(which)}"
    )
    yield maker.build("exact no hit, bare word", "exact", lambda which: made(which)[:5] + "qx")


def _regex_classes() -> Iterator[QueryClass]:
    for name, expressions in _REGEXES.items():
        yield QueryClass(name, "regex", {"tune": expressions[::2], "report": expressions[1::2]})
