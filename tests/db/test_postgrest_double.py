"""The double of PostgREST answers as the real server did when it was recorded.

Where there is a ``postgrest`` program the same tests run on it, so the recording and the rules are
held to the real server as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.double.fixtures import Served
from tests.double.recorded import Recorded, load
from tests.double.reenact_wire import ENACTED, unanswered
from tests.double.rules import BATCH, database_for_rules, serve_rules
from tests.double.stage import Stage
from tests.double.tokens import sign

if TYPE_CHECKING:
    from recall_sql.embedded import EmbeddedServer

#: What else happened between the recorded requests, by the request that came after it.
_MEANWHILE = {
    "write_valid_writer": "delete from api.messages where ordinal >= 100",
    "merge_without_update_grant": "revoke update on api.sessions from ingest_writer",
    "merge_without_select_grant": "grant update on api.sessions to ingest_writer;"
    " revoke select on api.sessions from ingest_writer",
    "no_schema_usage": "grant select on api.sessions to ingest_writer;"
    " revoke usage on schema api from ingest_writer",
    "rls_denied_insert": "grant usage on schema api to ingest_writer;"
    " alter table api.sessions enable row level security",
    "filter_eq_select_order_limit": "alter table api.sessions disable row level security;"
    " insert into api.sessions (session_key, source, started_at, title)"
    " select 'r' || lpad(n::text, 3, '0'), case n % 2 when 0 then 'codex' else 'claude' end,"
    " timestamptz '2026-01-01T00:00Z' + n * interval '1 hour', 'title ' || n"
    " from generate_series(1, 120) n",
}
_NO_ORDER = frozenset({"body"})
#: Of these, parts are not compared.
_IGNORED = {
    # a limit without an order: which rows come is up to the state of the pages
    **dict.fromkeys(
        (
            "read_no_jwt_anon", "basic_auth_header", "lowercase_bearer", "count_exact",
            "next_request_after_terminate", "new_column_read_before_reload",
            "dropped_column_select_star_before_reload", "after_connlimit_lifted",
        ),
        _NO_ORDER,
    ),
    # an estimate
    **dict.fromkeys(
        ("prefer_count_planned", "prefer_count_estimated"), frozenset({"body", "Content-Range"})
    ),
    # numbers of processes and transactions, and the address of the database
    **dict.fromkeys(
        (
            "deadlock_opposite_order", "down_write_1", "down_write_after_3s", "down_read",
            "down_write_after_7s", "down_after_immediate_write", "connlimit_slow_2_of_4",
            "connlimit_slow_3_of_4",
        ),
        frozenset({"details"}),
    ),
    # documents that nothing of ours reads
    **dict.fromkeys(
        ("get_root_openapi_anon", "get_root_openapi_writer", "admin_schema_cache",
         "admin_metrics"),
        frozenset({"body"}),
    ),
}  # fmt: skip
_NOT_REPLAYED = {
    "embed_messages": "resource embedding is not part of the double",
    "idle_20s_then_reuse": "takes 20 seconds; a shorter limit has a test of its own",
    "idle_28s_then_reuse": "takes 28 seconds",
    "idle_33s_then_reuse": "takes 33 seconds",
    "idle_45s_then_reuse": "takes 45 seconds",
    "recovery_after_46s_startup_outage": "the pauses between attempts of the real server",
}


@pytest.fixture(scope="module")
def recording() -> list[Recorded]:
    file = Path(__file__).resolve().parents[2].parent / "shared/design/postgrest_contract.json"
    if not file.is_file():
        pytest.skip("the recorded exchanges are not here")
    return load(file)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("contract"), _IGNORED)
    stage.prepare()
    yield stage
    stage.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recorded_exchanges_come_out_the_same(stage: Stage, recording: list[Recorded]) -> None:
    by_group: dict[str, dict[str, Recorded]] = {}
    for one in recording:
        by_group.setdefault(one.group, {})[one.name] = one
    enacted = set()
    for one in recording:
        if one.name in _NOT_REPLAYED or one.group in enacted:
            continue
        if one.group in ENACTED:
            enacted.add(one.group)
            ENACTED[one.group](stage, by_group[one.group])
        elif one.has_answer:
            stage.sql(_MEANWHILE.get(one.name, "select"))
            stage.play(one)
    unanswered(stage, {one.name: one for one in recording})

    assert {name: told for name, told in stage.found.items() if told} == {}
    assert stage.found.keys() | _NOT_REPLAYED.keys() == {one.name for one in recording}
    assert len(stage.found) == 360


@dataclass(frozen=True)
class Rule:
    """A request, and what PostgREST answers to it. ``code`` is that of the error, if it is one."""

    name: str
    method: str
    path: str
    status: int
    code: str | None = None
    body: Any = None
    prefer: str = "resolution=merge-duplicates,return=minimal"
    who: str | None = "writer"
    headers: tuple[tuple[str, str], ...] = ()
    #: Headers of the answer, and its body where it is one to look at.
    told: tuple[tuple[str, str], ...] = ()
    answer: Any = None


COLUMNS = "/incoming?columns=batch,n,content"


def _row(n: int, **values: Any) -> dict[str, Any]:
    return {"batch": BATCH, "n": n, "content": "text", **values}


def _failing(code: str, status: int, *told: tuple[str, str]) -> Rule:
    return Rule(f"sqlstate {code}", "POST", "/rpc/fail", status, code, {"code": code}, told=told)


RETRY = ("Retry-After", "0")
CHALLENGE = ("WWW-Authenticate", "Bearer")
MERGED = ("Preference-Applied", "resolution=merge-duplicates, return=minimal")
RULES = [
    Rule("new rows", "POST", COLUMNS, 201, body=[_row(1), _row(2)], told=(MERGED,)),
    Rule("only known rows", "POST", COLUMNS, 200, body=[_row(0)], told=(MERGED,)),
    Rule("known and new rows", "POST", COLUMNS, 201, body=[_row(0), _row(3)]),
    Rule("a view of a view has the key", "POST", "/outgoing?columns=batch,n,content", 200,
         body=[_row(0)]),
    Rule("the key can be named", "POST", f"{COLUMNS}&on_conflict=host,batch,n", 200,
         body=[_row(0)]),
    Rule("a key that is none", "POST", f"{COLUMNS}&on_conflict=n", 400, "42P10", [_row(0)]),
    Rule("no resolution", "POST", COLUMNS, 409, "23505", [_row(0)], prefer="return=minimal"),
    Rule("known rows ignored", "POST", COLUMNS, 201, body=[_row(0)],
         prefer="resolution=ignore-duplicates"),
    Rule("a row twice", "POST", COLUMNS, 500, "21000", [_row(9), _row(9)]),
    Rule("how many rows", "POST", COLUMNS, 200, body=[_row(0)],
         prefer="resolution=merge-duplicates,count=exact", told=(("Content-Range", "*/1"),)),
    Rule("the rows", "POST", f"{COLUMNS}&select=n,host", 200, body=[_row(0)],
         prefer="resolution=merge-duplicates,return=representation",
         answer=[{"n": 0, "host": "laptop"}]),
    Rule("a key that is missing", "POST", COLUMNS, 400, "23502", [{"batch": BATCH, "n": 4}]),
    Rule("a key that nobody named", "POST", COLUMNS, 200, body=[_row(0, other=1)]),
    Rule("objects with other keys", "POST", "/incoming", 400, "PGRST102",
         [_row(5), {"batch": BATCH, "n": 6}]),
    Rule("an unknown column", "POST", "/incoming?columns=n,nope", 400, "PGRST204", [_row(0)]),
    Rule("an unknown key", "POST", "/incoming", 400, "PGRST204", [_row(0, nope=1)]),
    Rule("a check that fails", "POST", "/incoming?columns=batch,n,content,level", 400, "23514",
         [_row(5, level=-1)]),
    Rule("no uuid", "POST", COLUMNS, 400, "22P02", [_row(5, batch="x")]),
    Rule("no time", "POST", "/incoming?columns=batch,n,content,at", 400, "22007",
         [_row(5, at="soon")]),
    Rule("too large a number", "POST", COLUMNS, 400, "22003", [_row(1 << 40)]),
    Rule("bytes in hex", "POST", "/incoming?columns=batch,n,content,hash&select=hash", 200,
         body=[_row(0, hash="\\x00ff")],
         prefer="resolution=merge-duplicates,return=representation",
         answer=[{"hash": "\\x00ff"}]),
    Rule("a NUL", "POST", COLUMNS, 400, "22P05", [_row(5, content="a\0b")]),
    Rule("half a pair", "POST", COLUMNS, 400, "22P02",
         b'[{"batch":null,"n":1,"content":"\\ud83d"}]'),
    Rule("half a pair without columns", "POST", "/incoming", 400, "PGRST102",
         b'[{"n":1,"content":"\\ud83d"}]'),
    Rule("half a body", "POST", COLUMNS, 400, "22P02", b'[{"n":1'),
    Rule("half a body without columns", "POST", "/incoming", 400, "PGRST102", b'[{"n":1'),
    Rule("a scalar writes nothing", "POST", "/incoming", 200, body=b'"abc"'),
    Rule("a scalar with columns", "POST", COLUMNS, 400, "22023", b'"abc"'),
    Rule("no rows", "POST", COLUMNS, 200, body=[]),
    Rule("a compressed body", "POST", "/incoming", 400, "PGRST102", b"\x1f\x8b\x08\x00",
         headers=(("Content-Encoding", "gzip"),)),
    Rule("another media type", "POST", COLUMNS, 400, "PGRST102", [_row(0)],
         headers=(("Content-Type", "text/plain"),)),
    Rule("an unknown table", "POST", "/nope", 404, "PGRST205", []),
    Rule("an unknown function", "POST", "/rpc/nope", 404, "PGRST202", {}),
    Rule("an unknown argument", "POST", "/rpc/fail", 404, "PGRST202", {"nope": 1}),
    Rule("an unknown schema", "POST", COLUMNS, 406, "PGRST106", [_row(0)],
         headers=(("Content-Profile", "store"),)),
    Rule("an unknown method", "TRACE", "/incoming", 405, "PGRST117"),
    Rule("no token", "POST", COLUMNS, 401, "42501", [_row(0)], who=None, told=(CHALLENGE,)),
    Rule("a token without the right", "POST", COLUMNS, 403, "42501", [_row(0)], who="reader"),
    Rule("a row of another host", "POST", "/incoming?columns=host,batch,n,content", 403, "42501",
         [_row(5, host="desktop")]),
    Rule("an expired token", "POST", COLUMNS, 401, "PGRST303", [_row(0)], who="expired"),
    Rule("a token for others", "POST", COLUMNS, 401, "PGRST303", [_row(0)], who="elsewhere"),
    Rule("a forged token", "POST", COLUMNS, 401, "PGRST301", [_row(0)], who="forged"),
    Rule("no token at all", "POST", COLUMNS, 401, "PGRST301", [_row(0)], who="garbage"),
    Rule("a revoked token", "GET", "/incoming?limit=0", 401, "PT401", who="revoked",
         told=(CHALLENGE,)),
    Rule("a probe", "GET", "/incoming?limit=0", 200, answer=[]),
    Rule("a probe without a body", "HEAD", "/incoming?limit=0", 200),
    Rule("a probe without a token", "GET", "/incoming?limit=0", 401, "42501", who=None),
    Rule("a call", "POST", "/rpc/store_batch", 200,
         body={"batch": BATCH, "body": {"content": "c"}},
         answer={"stored": "c", "host": "laptop"}),
    Rule("a write by GET", "GET", f"/rpc/store_batch?batch={BATCH}&body={{}}", 405, "25006"),
    Rule("a list", "POST", "/rpc/names", 200, body={"wanted": ["a", "b"]}, answer=["a", "b"]),
    Rule("nothing to tell", "POST", "/rpc/forget", 204, body={}),
    _failing("PT409", 409), _failing("42501", 403), _failing("40P01", 500),
    _failing("40001", 500), _failing("55P03", 500), _failing("57014", 500),
    _failing("54000", 500), _failing("XX000", 500), _failing("P0001", 400),
    _failing("53100", 503, RETRY), _failing("53300", 503, RETRY), _failing("57P01", 503, RETRY),
    _failing("08006", 503, RETRY),
]  # fmt: skip


@pytest.fixture(scope="module")
def rules_server(server: EmbeddedServer) -> Iterator[Served]:
    with database_for_rules(server) as url:
        served = serve_rules(url)
        yield served
        served.stop()


def _headers(served: Served, who: str | None) -> dict[str, str]:
    good = {"host": "laptop"}
    tokens: dict[str, Callable[[], str]] = {
        "writer": lambda: served.token("double_writer", **good),
        "reader": lambda: served.token("double_reader", **good),
        "expired": lambda: served.token("double_writer", exp=int(time.time()) - 60),
        "elsewhere": lambda: served.token("double_writer", aud="elsewhere"),
        "revoked": lambda: served.token("double_writer", jti="revoked"),
        "forged": lambda: sign("not the secret of the server", {"role": "double_writer"}),
        "garbage": lambda: "abc",
    }
    return {"Authorization": f"Bearer {tokens[who]()}"} if who else {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_the_sink_relies_on(rule: Rule, rules_server: Served) -> None:
    headers = _headers(rules_server, rule.who) | {"Prefer": rule.prefer}
    if rule.body is not None:
        headers["Content-Type"] = "application/json"
    body = rule.body if isinstance(rule.body, bytes) else json.dumps(rule.body).encode()
    answer = httpx.request(
        rule.method,
        rules_server.url + rule.path,
        headers=headers | dict(rule.headers),
        content=None if rule.body is None else body,
        trust_env=False,
        timeout=60,
    )

    assert answer.status_code == rule.status, answer.text
    assert answer.headers.get("proxy-status") == (
        f"PostgREST; error={rule.code}" if rule.code else None
    )
    if rule.code:
        assert answer.json().keys() == {"code", "details", "hint", "message"}
        assert answer.json()["code"] == rule.code
    elif rule.answer is not None:
        assert answer.json() == rule.answer
    for name, value in rule.told:
        assert answer.headers[name] == value
