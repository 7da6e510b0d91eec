"""Which servers are refused, and how PostgREST gets to log in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from recall.cli import app
from recall.errors import ConfigError, SchemaError, StoreError
from recall_sql import server_check
from recall_sql.authenticator import NAME, let_in
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.server_check import find_problems, judge_mounts, judge_pgvector, require_safe

DATA = "/var/lib/postgresql/18/docker"
HASH = "0123456789abcdef" * 4
ROOT_LINE = "1 0 0:1 / / ro,relatime - overlay overlay rw,lowerdir=/a\n"


def mount(place: str, root: str, kind: str = "ext4") -> str:
    return f"2 1 8:1 {root} {place} rw,relatime shared:1 - {kind} /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("mounts", "problem"),
    [
        (mount("/var/lib/postgresql", "/var/lib/docker/volumes/recall_database/_data"), None),
        (mount("/var/lib/postgresql", "/srv/my\\040data"), None),
        (mount("/var/lib/postgresql", f"/var/lib/docker/volumes/{HASH}/_data"), "without a name"),
        (mount("/var/lib/postgresql", f"/volumes/{HASH}/_data"), "without a name"),
        # the volume is where images before 18 had their data
        (
            mount("/var/lib/postgresql", f"/var/lib/docker/volumes/{HASH}/_data")
            + mount("/var/lib/postgresql/data", "/var/lib/docker/volumes/recall_database/_data"),
            "without a name",
        ),
        ("", "in the container itself"),
        (mount("/var/lib/postgresqlx", "/x"), "in the container itself"),
        (mount("/var/lib/postgresql", "/", "tmpfs"), "in memory"),
        # the last one of two at the same place is on top
        (
            mount("/var/lib/postgresql", f"/v/volumes/{HASH}/_data")
            + mount("/var/lib/postgresql", "/v/volumes/recall_database/_data"),
            None,
        ),
    ],
)
def test_data_that_goes_with_its_container_is_refused(mounts: str, problem: str | None) -> None:
    found = judge_mounts(DATA, ROOT_LINE + mounts)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert problem in found.message
        assert "/var/lib/postgresql" in found.hint


def test_a_server_outside_of_containers_is_not_refused() -> None:
    assert judge_mounts("/home/me/pg", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n") is None
    assert judge_mounts("/home/me/pg", "nonsense\n") is None


@pytest.mark.parametrize(
    ("version", "is_right"),
    [
        ("0.8.4", True),
        ("0.9", True),
        ("1.0.0", True),
        ("0.8.3", False),
        ("0.8", False),
        (None, False),
    ],
)
def test_an_old_pgvector_is_refused(version: str | None, is_right: bool) -> None:
    assert (judge_pgvector(version) is None) is is_right


def test_the_server_of_the_wheel_is_trusted(
    home: Path, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", empty_database)
    with connect(empty_database) as connection:
        found = [problem.part for problem in find_problems(connection)]
    # where the tests themselves run in a container, the data is in it
    assert set(found) <= {"volume"}
    monkeypatch.setattr(server_check, "judge_mounts", lambda *_: None)
    done = CliRunner().invoke(app, ["db", "check"])
    assert done.exit_code == 0, done.output


def test_a_server_without_checksums_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recall_sql import embedded

    kept = tuple(word for word in embedded._INITDB if word != "--data-checksums")
    monkeypatch.setattr(embedded, "_INITDB", (*kept, "--no-data-checksums"))
    monkeypatch.setattr(server_check, "judge_mounts", lambda *_: None)
    server = EmbeddedServer(tmp_path / "home", extra_settings={"fsync": "off"})
    server.start()
    try:
        with pytest.raises(StoreError, match="no checksums") as caught:
            require_safe(server.url)
    finally:
        server.stop("immediate")
    assert "pg_checksums --enable" in (caught.value.hint or "")


def test_a_role_that_may_not_look_is_told_nothing(
    empty_database: str, roles: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    roles("recall_test_plain")
    monkeypatch.setattr(server_check, "judge_mounts", lambda *_: pytest.fail("it looked"))
    with connect(make_conninfo(empty_database, user="recall_test_plain")) as connection:
        assert not list(find_problems(connection))


@pytest.fixture
def roles(server: EmbeddedServer) -> Iterator[Callable[[str], None]]:
    """Makes roles that can log in, and drops them."""
    made: list[str] = []

    def make(name: str) -> None:
        execute(server, f"create role {name} login")
        made.append(name)

    yield make
    for name in made:
        execute(server, f"drop role {name}")


def execute(server: EmbeddedServer, statement: str) -> None:
    with connect(server.url_for("postgres"), autocommit=True) as connection:
        connection.execute(statement.encode())


def test_postgrest_gets_a_verifier_and_no_rights_of_its_own(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("pa'ss word\n")
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    for _ in range(2):
        done = CliRunner().invoke(app, ["db", "authenticator", "--password-file", str(file)])
        assert done.exit_code == 0, done.output
    with connect(database) as connection:
        row = connection.execute(
            "select rolcanlogin, rolinherit, rolsuper, rolpassword from pg_authid"
            " where rolname = %s",
            (NAME,),
        ).fetchone()
        assert row
        assert row[:3] == (True, False, False)
        assert row[3].startswith("SCRAM-SHA-256$")
        memberships = connection.execute(
            "select r.rolname, m.inherit_option, m.set_option from pg_auth_members m"
            " join pg_roles r on r.oid = m.roleid join pg_roles u on u.oid = m.member"
            " where u.rolname = %s order by 1",
            (NAME,),
        ).fetchall()
    assert memberships == [("recall_anon", False, True), ("recall_writer", False, True)]
    with psycopg.connect(make_conninfo(database, user=NAME), autocommit=True) as plain:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            plain.execute("select from recall.message")
        plain.execute("set role recall_anon")


def test_postgrest_is_told_to_read_the_schema_again(database: str) -> None:
    with connect(database, autocommit=True) as listening:
        listening.execute("listen pgrst")
        let_in(database, "a password")
        listening.execute("select 1")
        heard = [notice.payload for notice in listening.notifies(timeout=60, stop_after=1)]
    assert heard == ["reload schema"]


def test_a_password_file_that_says_nothing_is_refused(
    home: Path, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    file = tmp_path / "password"
    for content in (None, " \n"):
        if content is not None:
            file.write_text(content)
        done = CliRunner().invoke(app, ["db", "authenticator", "--password-file", str(file)])
        assert isinstance(done.exception, ConfigError)


def test_without_the_roles_of_the_migrations_it_is_said(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recall_sql import authenticator

    monkeypatch.setattr(authenticator, "_BECOMES", ("recall_test_missing",))
    with pytest.raises(SchemaError, match="recall_test_missing"):
        let_in(database, "a password")
