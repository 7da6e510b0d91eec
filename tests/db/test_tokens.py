"""Joining a server, and what the token of a host may do: over HTTP, with real homes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import psycopg
import pytest
import zstandard

from recall.config import Settings, load_settings
from recall_api import tokens
from recall_api.app import create_app
from recall_api.join import MOST_FAILURES, create_code, hash_code, new_code
from recall_api.tokens import Claims, sign
from recall_sql.connection import connect
from tests.db.ingesting import ingest
from tests.db.serving import Store, running, serving

SECRET = "a secret of the tests that is long enough"
SETTINGS = Settings(jwt_secret=SECRET, trusted_proxies=("127.0.0.1",))
OUTSIDE = {"x-forwarded-for": "203.0.113.9"}

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database, SETTINGS) as client:
        yield client


def run(home: Path, *arguments: str, **env: str) -> Done:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    return subprocess.run(
        [sys.executable, "-m", "recall", *arguments],
        env=kept | {"RECALL_HOME": str(home), "NO_COLOR": "1"} | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def operator(tmp_path: Path, database: str, api: httpx.Client) -> Callable[..., Done]:
    """The command as the person at the server runs it."""

    def command(*arguments: str) -> Done:
        return run(
            tmp_path / "server",
            *arguments,
            RECALL_DATABASE_URL=database,
            RECALL_JWT_SECRET=SECRET,
            RECALL_PUBLIC_URL=str(api.base_url).rstrip("/"),
        )

    return command


def code_for(database: str, host: str, *, replaces: bool = False) -> str:
    with connect(database) as connection:
        return create_code(connection, host, replaces=replaces, minutes=15)[0]


def join(api: httpx.Client, code: str, install_id: str, host: str | None = None) -> httpx.Response:
    return api.post("/join", json={"code": code, "install_id": install_id, "host": host})


def token_of(api: httpx.Client, database: str, host: str, install_id: str | None = None) -> str:
    answer = join(api, code_for(database, host), install_id or str(uuid.uuid4()))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["token"])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def rows(database: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connect(database) as connection:
        return connection.execute(statement, values).fetchall()


def execute(database: str, statement: str, *values: Any) -> None:
    with connect(database) as connection:
        connection.execute(statement, values)


def test_two_machines_join_by_the_line_that_the_server_prints(
    tmp_path: Path, database: str, api: httpx.Client, operator: Callable[..., Done]
) -> None:
    Store(database).add_session("0b7f2c9e", ["hello"])
    for name in ("laptop", "desktop"):
        home = tmp_path / name
        line = operator("token", "create", name).stdout
        assert line.startswith(f"recall join {str(api.base_url).rstrip('/')} ")
        done = run(home, *line.split()[1:])
        assert done.returncode == 0, done.stderr
        assert f"as `{name}`" in done.stdout
        assert "recall service install" in done.stderr
        assert "recall ingest" in done.stderr
        settings = load_settings({"RECALL_HOME": str(home)})
        assert settings.url == str(api.base_url).rstrip("/")
        assert settings.token
        claims = jwt.decode(settings.token, SECRET, algorithms=["HS256"], audience="recall")
        identity = json.loads((home / "identity.json").read_text())
        assert (claims["host"], claims["install_id"]) == (name, identity["install_id"])
        assert identity["host"] == name
        assert claims["role"] == "recall_writer"
        assert stat.S_IMODE((home / "joined.json").stat().st_mode) == 0o600
        assert not (home / "joining.json").exists()
        assert settings.token not in done.stdout + done.stderr
        assert run(home, "search", "hello", "--json").returncode == 0
    (home / "joined.json").chmod(0o644)
    checks = json.loads(run(home, "doctor", "--json").stdout)["checks"]
    found = [check for check in checks if check["name"] == "joined"]
    assert [check["status"] for check in found] == ["ok", "warn"]
    assert "as `desktop`" in found[0]["detail"]
    assert "chmod 600" in found[1]["hint"]
    assert rows(database, "select host from recall.token order by host") == [
        ("desktop",), ("laptop",),
    ]  # fmt: skip


def test_a_code_is_used_once(database: str, api: httpx.Client) -> None:
    code, install_id = code_for(database, "laptop"), str(uuid.uuid4())
    assert join(api, code, install_id).status_code == 200
    again = join(api, code, install_id)
    assert again.status_code == 403
    assert "used before" in again.json()["detail"]
    assert again.json()["hint"]


def test_of_many_that_use_a_code_at_once_one_joins(database: str, api: httpx.Client) -> None:
    code = code_for(database, "laptop")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: join(api, code, str(uuid.uuid4())), range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 403, 403, 403, 403, 403]
    assert rows(database, "select count(*) from recall.token") == [(1,)]


def test_a_code_can_be_typed_carelessly_and_is_stored_only_as_a_hash(
    database: str, api: httpx.Client
) -> None:
    code = code_for(database, "laptop")
    assert rows(database, "select code_hash from recall.join_code") == [(hash_code(code),)]
    stored = rows(database, "select j::text from recall.join_code j")[0][0]
    assert code not in stored
    assert code.replace("-", "") not in stored
    typed = f" {code.lower().replace('-', '').replace('0', 'o').replace('1', 'l')} "
    assert join(api, typed, str(uuid.uuid4())).status_code == 200


def test_codes_have_enough_random_bits() -> None:
    codes = {new_code() for _ in range(200)}
    assert len(codes) == 200
    letters = {letter for code in codes for letter in code} - {"-"}
    assert len(letters) == 32
    assert {len(code.replace("-", "")) for code in codes} == {25}  # 25 x 5 bits


def test_an_old_code_is_refused(database: str, api: httpx.Client) -> None:
    code = code_for(database, "laptop")
    execute(database, "update recall.join_code set expires_at = now() - interval '1 s'")
    assert join(api, code, str(uuid.uuid4())).status_code == 403


def test_guessing_ends_after_some_attempts(database: str, api: httpx.Client) -> None:
    for _ in range(MOST_FAILURES):
        assert join(api, new_code(), str(uuid.uuid4())).status_code == 403
    code = code_for(database, "laptop")
    refused = join(api, code, str(uuid.uuid4()))
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 60
    assert refused.json()["hint"]
    other = {"code": code, "install_id": str(uuid.uuid4())}
    assert api.post("/join", json=other, headers=OUTSIDE).status_code == 200


def test_a_name_of_another_installation_is_refused_and_the_code_stays(
    database: str, api: httpx.Client
) -> None:
    token_of(api, database, "laptop")
    code = code_for(database, "laptop")
    refused = join(api, code, str(uuid.uuid4()))
    assert refused.status_code == 409
    assert "recall token create laptop --replace" in refused.json()["hint"]
    assert rows(
        database, "select used_at from recall.join_code where code_hash = %s", hash_code(code)
    ) == [(None,)]


def test_a_host_moves_to_a_new_machine_and_the_old_one_is_shut_out(
    database: str, api: httpx.Client
) -> None:
    old = token_of(api, database, "laptop")
    new_id = str(uuid.uuid4())
    answer = join(api, code_for(database, "laptop", replaces=True), new_id)
    assert answer.status_code == 200
    new = answer.json()["token"]
    assert rows(database, "select install_id::text from recall.host") == [(new_id,)]
    assert api.get("/sessions", headers=bearer(new) | OUTSIDE).status_code == 200
    refused = api.get("/sessions", headers=bearer(old) | OUTSIDE)
    assert refused.status_code == 401
    assert "recall token create" in refused.json()["hint"]


def test_a_machine_that_joins_again_has_one_token_that_counts(
    database: str, api: httpx.Client
) -> None:
    install_id = str(uuid.uuid4())
    first = token_of(api, database, "laptop", install_id)
    second = token_of(api, database, "laptop", install_id)
    assert api.get("/sessions", headers=bearer(first)).status_code == 401
    assert api.get("/sessions", headers=bearer(second)).status_code == 200


def test_one_installation_has_one_name(database: str, api: httpx.Client) -> None:
    install_id = str(uuid.uuid4())
    token_of(api, database, "laptop", install_id)
    refused = join(api, code_for(database, "desktop"), install_id)
    assert refused.status_code == 409
    assert "`laptop`" in refused.json()["detail"]
    assert rows(database, "select host from recall.host") == [("laptop",)]


def test_a_home_with_another_name_is_refused_before_the_code_is_used(
    tmp_path: Path, database: str, api: httpx.Client
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    identity = {"host": "desktop", "install_id": str(uuid.uuid4())}
    (home / "identity.json").write_text(json.dumps(identity))
    code = code_for(database, "laptop")
    done = run(home, "join", str(api.base_url), code)
    assert done.returncode == 2
    assert "this installation is `desktop`" in done.stderr
    assert "recall token create desktop" in done.stderr
    assert not (home / "joined.json").exists()
    assert json.loads((home / "identity.json").read_text()) == identity
    assert rows(database, "select used_at from recall.join_code") == [(None,)]


def test_a_lost_answer_is_made_good_by_a_new_code(
    tmp_path: Path, database: str, api: httpx.Client
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    install_id = str(uuid.uuid4())
    (home / "joining.json").write_text(json.dumps({"install_id": install_id}))
    token_of(api, database, "laptop", install_id)  # whose answer never arrived
    done = run(home, "join", str(api.base_url), code_for(database, "laptop"))
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "identity.json").read_text())["install_id"] == install_id


def test_a_machine_feeds_one_server_until_it_leaves(
    tmp_path: Path, database: str, api: httpx.Client
) -> None:
    home, url = tmp_path / "home", str(api.base_url).rstrip("/")
    assert run(home, "join", url, code_for(database, "laptop")).returncode == 0
    refused = run(home, "join", "http://127.0.0.1:9", "CODE")
    assert refused.returncode == 2
    assert "recall leave" in refused.stderr
    assert run(home, "join", f"{url}/", code_for(database, "laptop")).returncode == 0
    left = run(home, "leave")
    assert left.returncode == 0
    assert "recall token revoke laptop" in left.stderr
    assert load_settings({"RECALL_HOME": str(home)}).url is None
    assert "feeds no server" in run(home, "leave").stdout


def test_joining_a_server_that_is_away_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "join", "http://127.0.0.1:9", "CODE")
    assert done.returncode == 69
    assert "is the address right" in done.stderr
    assert "Traceback" not in done.stderr


NO_JOIN = [
    b"", b"{}", b"[]", b"nonsense", b'{"code": "x"}', b'{"code": "", "install_id": "x"}',
    b'{"code": 1, "install_id": "00000000-0000-4000-8000-000000000000"}',
    b'{"code": "x", "install_id": "00000000-0000-4000-8000-000000000000", "more": 1}',
]  # fmt: skip


def test_what_is_no_request_to_join_is_refused(
    api: httpx.Client, subtests: pytest.Subtests
) -> None:
    for body in NO_JOIN:
        with subtests.test(str(body)):
            answer = api.post("/join", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert answer.json()["type"] == "urn:recall:problem:usage"


def test_a_form_of_a_web_page_is_no_request_to_join(database: str, api: httpx.Client) -> None:
    body = json.dumps({"code": code_for(database, "x"), "install_id": str(uuid.uuid4())})
    answer = api.post("/join", content=body, headers={"content-type": "text/plain"})
    assert answer.status_code == 400


def test_a_revoked_token_stops_at_the_next_request(
    database: str, api: httpx.Client, operator: Callable[..., Done]
) -> None:
    token = token_of(api, database, "laptop")
    other = token_of(api, database, "desktop")
    for given in (token, other):
        assert api.get("/sessions", headers=bearer(given) | OUTSIDE).status_code == 200
        assert api.post("/rest/incoming_key", headers=bearer(given)).status_code == 404
    assert operator("token", "revoke", "laptop").returncode == 0
    for answer in (
        api.get("/sessions", headers=bearer(token) | OUTSIDE),
        api.get("/sessions", headers=bearer(token)),
        api.post("/rest/incoming_key", headers=bearer(token)),
        api.get("/rest/incoming_session", headers=bearer(token)),
    ):
        assert answer.status_code == 401
        assert answer.json()["detail"] == "this token was revoked"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert api.get("/sessions", headers=bearer(other) | OUTSIDE).status_code == 200


def test_tokens_are_listed_and_revoked(
    database: str, api: httpx.Client, operator: Callable[..., Done]
) -> None:
    token_of(api, database, "laptop")
    code_for(database, "desktop")
    listed = json.loads(operator("token", "list", "--json").stdout)
    assert [(row["host"], row["counts"]) for row in listed["tokens"]] == [("laptop", True)]
    assert [row["host"] for row in listed["codes"]] == ["desktop"]
    shown = operator("token", "list").stdout
    assert "laptop" in shown
    assert "code until" in shown
    assert operator("token", "revoke", listed["tokens"][0]["jti"]).returncode == 0
    assert operator("token", "revoke", "desktop").returncode == 0
    nothing = operator("token", "revoke", "laptop")
    assert nothing.returncode == 4
    assert "recall token list" in nothing.stderr
    assert "revoked" in operator("token", "list").stdout


def test_creating_a_code_says_what_has_to_be_known(
    tmp_path: Path, database: str, api: httpx.Client, operator: Callable[..., Done]
) -> None:
    token_of(api, database, "laptop")
    assert "--replace" in operator("token", "create", "laptop").stderr
    assert "can write no more" in operator("token", "create", "laptop", "--replace").stderr
    wrong = operator("token", "create", "My Laptop")
    assert wrong.returncode == 2
    assert "my-laptop" in wrong.stderr
    bare = run(tmp_path / "s", "token", "create", "new", RECALL_DATABASE_URL=database)
    assert "RECALL_JWT_SECRET_FILE" in bare.stderr
    assert "RECALL_LISTEN=0.0.0.0:7717" in bare.stderr
    assert bare.stdout.startswith("recall join http://")


def payload_of(token: str) -> dict[str, Any]:
    payload: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return payload


def forged(**changes: Any) -> str:
    payload = payload_of(sign(SECRET, Claims(str(uuid.uuid4()), "laptop", str(uuid.uuid4()))))
    payload = {name: value for name, value in (payload | changes).items() if value is not None}
    return jwt.encode(payload, SECRET, algorithm="HS256")


FORGED = {
    "nonsense": "nonsense",
    "three parts": "a.b.c",
    "of a host that never joined": forged(),
    "expired": forged(exp=1),
    "for ever": forged(exp=None),
    "without an id": forged(jti=None),
    "with an id that is none": forged(jti="no uuid"),
    "for another service": forged(aud="other"),
    "for any service": forged(aud=None),
    "of a reader": forged(role="recall_anon"),
    "of the owner": forged(role="postgres"),
    "of no host": forged(host=None),
    "of no installation": forged(install_id=None),
    "of another server": jwt.encode(payload_of(forged()), "x" * 32, algorithm="HS256"),
    "by another algorithm": jwt.encode(payload_of(forged()), SECRET * 2, algorithm="HS512"),
    "not signed": jwt.encode(payload_of(forged()), "", algorithm="none"),
}


def test_a_token_that_this_server_did_not_give_is_refused(
    database: str, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    for name, token in FORGED.items():
        with subtests.test(name):
            for headers in (bearer(token), bearer(token) | OUTSIDE):
                assert api.get("/sessions", headers=headers).status_code == 401
            assert api.post("/rest/incoming_key", headers=bearer(token)).status_code == 401
    good = token_of(api, database, "laptop")
    assert api.get("/sessions", headers=bearer(good) | OUTSIDE).status_code == 200


def test_a_token_with_the_id_of_another_host_is_refused(database: str, api: httpx.Client) -> None:
    token = token_of(api, database, "laptop")
    claims = jwt.decode(token, SECRET, algorithms=["HS256"], audience="recall")
    token_of(api, database, "desktop")
    stolen = jwt.encode(claims | {"host": "desktop"}, SECRET, algorithm="HS256")
    assert api.get("/sessions", headers=bearer(stolen)).status_code == 401


def test_using_a_token_is_noted_at_most_once_a_minute(database: str, api: httpx.Client) -> None:
    token = token_of(api, database, "laptop")
    seen = "select last_seen_at from recall.token"
    assert rows(database, seen) == [(None,)]
    api.get("/sessions", headers=bearer(token))
    first = rows(database, seen)
    assert first != [(None,)]
    api.get("/sessions", headers=bearer(token))
    assert rows(database, seen) == first
    execute(database, "update recall.token set last_seen_at = now() - interval '61 s'")
    api.get("/sessions", headers=bearer(token))
    assert rows(database, seen) > first


def test_without_a_secret_nothing_that_needs_a_token_works_and_the_rest_does(
    database: str,
) -> None:
    with serving(database, Settings(trusted_proxies=("127.0.0.1",))) as api:
        code = code_for(database, "laptop")
        for answer in (
            join(api, code, str(uuid.uuid4())),
            api.get("/sessions", headers=bearer("x") | OUTSIDE),
            api.post("/rest/incoming_key", headers=bearer("x")),
        ):
            assert answer.status_code == 503
            assert answer.json()["type"] == "urn:recall:problem:not-set-up"
            assert "RECALL_JWT_SECRET_FILE" in answer.json()["hint"]
        assert api.get("/sessions", headers=bearer("x")).status_code == 200
    assert rows(database, "select used_at from recall.join_code") == [(None,)]


def test_while_the_database_is_away_a_token_is_neither_good_nor_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_POOL_SECONDS", 0.2)
    url = f"postgresql:///recall?host={tmp_path}"
    token = sign(SECRET, Claims(str(uuid.uuid4()), "laptop", str(uuid.uuid4())))
    with running(create_app(SETTINGS, url)) as api:
        answer = api.get("/status", headers=bearer(token) | OUTSIDE)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        health = api.get("/health", headers=bearer(token))
        assert "components" in health.json()


@pytest.fixture
def as_host(database: str) -> Callable[..., None]:
    """Calls the check of PostgREST with the claims of a token."""

    def check(claims: dict[str, Any], role: str = "recall_writer") -> None:
        with connect(database) as connection:
            connection.execute(f"set local role {role}")
            connection.execute(
                "select set_config('request.jwt.claims', %s, true)", [json.dumps(claims)]
            )
            connection.execute("select api.check_request()")

    return check


def test_postgrest_refuses_the_same_tokens(
    database: str, api: httpx.Client, as_host: Callable[..., None]
) -> None:
    token = token_of(api, database, "laptop")
    claims = jwt.decode(token, SECRET, algorithms=["HS256"], audience="recall")
    as_host(claims)
    as_host({}, "recall_anon")
    bad = [
        {"role": "recall_writer"},
        claims | {"jti": str(uuid.uuid4())},
        claims | {"jti": "no uuid"},
        claims | {"host": "desktop"},
        claims | {"install_id": str(uuid.uuid4())},
        {name: value for name, value in claims.items() if name != "host"},
    ]
    execute(database, "update recall.token set revoked_at = now()")
    for wrong in [*bad, claims]:
        with pytest.raises(psycopg.Error) as refused:
            as_host(wrong)
        assert refused.value.sqlstate == "PT401"
        assert "recall token create" in (refused.value.diag.message_hint or "")


def test_the_check_of_postgrest_writes_nothing_where_it_must_not_and_waits_for_nobody(
    database: str, api: httpx.Client
) -> None:
    token = token_of(api, database, "laptop")
    claims = json.dumps(jwt.decode(token, SECRET, algorithms=["HS256"], audience="recall"))
    setting = "select set_config('request.jwt.claims', %s, true)"
    with connect(database) as connection:
        connection.execute("set transaction read only")
        connection.execute(setting, [claims])
        connection.execute("select api.check_request()")
    assert rows(database, "select last_seen_at from recall.token") == [(None,)]
    with connect(database) as holder, connect(database, lock_timeout_seconds=1) as other:
        holder.execute("select from recall.token for update")
        other.execute(setting, [claims])
        other.execute("select api.check_request()")


def test_no_function_of_the_exposed_schema_can_be_called_by_everybody(database: str) -> None:
    assert rows(
        database, "select count(*) > 5 from pg_proc where pronamespace = 'api'::regnamespace"
    )[0][0]
    everybody = rows(
        database,
        """
        select p.oid::regprocedure::text
        from pg_proc p
        cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'api'::regnamespace and a.grantee = 0
        """,
    )
    assert everybody == []


@pytest.mark.parametrize("role", ["recall_anon", "recall_writer"])
def test_the_roles_of_postgrest_see_no_tokens_states_and_original_bytes(
    role: str, database: str
) -> None:
    tables = [
        "token", "join_code", "host", "raw_blob", "raw_segment", "ingest_state", "quarantine",
    ]  # fmt: skip
    seen = rows(
        database,
        "select t.name from unnest(%s::text[]) t (name)"
        " where has_table_privilege(%s, 'recall.' || t.name, 'select, insert, update, delete')",
        tables,
        role,
    )
    assert seen == []


def test_the_roles_of_postgrest_are_bounded_in_time(database: str) -> None:
    found = dict(
        rows(database, "select rolname, rolconfig from pg_roles where rolname like 'recall\\_%%'")
    )
    assert "statement_timeout=15s" in found["recall_anon"]
    assert "statement_timeout=60s" in found["recall_writer"]
    for name in ("recall_anon", "recall_writer"):
        assert "lock_timeout=5s" in found[name]
        assert "idle_in_transaction_session_timeout=15s" in found[name]


SECRET_OF_A_LOG = "ghp_" + "Zq7Rt2Kx9Lm4Np8Vw3Yb6Cd1Fg5Hj0Sa2Ue3"
BROKEN_LINE = "canaryofabrokenline"


def test_no_open_route_gives_out_original_bytes(tmp_path: Path, database: str) -> None:
    log = tmp_path / "root" / "projects" / "p" / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    log.parent.mkdir(parents=True)
    message = {"role": "user", "content": f"the key is {SECRET_OF_A_LOG} indeed"}
    line = {"type": "user", "uuid": "u-1", "timestamp": "2026-05-01T10:00:00Z", "message": message}
    log.write_text(json.dumps(line) + "\n{" + BROKEN_LINE + "\n")
    ingest(database, tmp_path / "root")
    kept = rows(database, "select data, codec from recall.raw_blob")
    packed = b"".join(bytes(data) for data, _ in kept)
    unpacked = zstandard.ZstdDecompressor().decompress(packed) if kept[0][1] == "zstd" else packed
    assert SECRET_OF_A_LOG.encode() in unpacked
    with serving(database, SETTINGS) as api:
        hit = api.get("/search", params={"q": "indeed"}).json()["hits"][0]
        key = hit["session_key"]
        paths = set(api.get("/openapi.json").json()["paths"]) - {"/join"}
        answers = {
            path: api.get(
                path.replace("{key}", key).replace("{message_id}", hit["id"]),
                params={
                    "/search": {"q": "key", "mode": "exact"},
                    "/status": {"problems": "100"},
                }.get(path),
            )
            for path in paths
        }
    assert {path for path, answer in answers.items() if answer.status_code != 200} <= {"/health"}
    assert "[redacted:" in answers["/messages/{message_id}"].text
    assert answers["/status"].json()["problems"]["quarantined_spans"]
    for answer in answers.values():
        assert SECRET_OF_A_LOG not in answer.text
        assert BROKEN_LINE not in answer.text


def test_no_token_and_no_code_reaches_a_log(
    database: str, api: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    code = code_for(database, "laptop")
    token = join(api, code, str(uuid.uuid4())).json()["token"]
    api.get("/sessions", headers=bearer(token) | OUTSIDE)
    api.get("/sessions", headers=bearer(f"{token}x") | OUTSIDE)
    api.post("/rest/incoming_key", headers=bearer(token), content=b"canaryofabody")
    join(api, code, str(uuid.uuid4()))
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    told = "".join(str(vars(record)) for record in own)
    for canary in (token, token.split(".")[2], code, "canaryofabody", SECRET):
        assert canary not in told
