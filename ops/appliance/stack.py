"""The containers of the appliance under a project name of their own, and one machine outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "recall-appliance-test"
POSTGREST = "postgrest/postgrest:v16.2"
_PULL_SECONDS = 120
_LOOK_SECONDS = 0.5
#: What pip may be told by whoever builds behind a mirror, as variables and in `pip.conf`.
_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy")
#: Services that are built, and get the configuration of pip for that.
_BUILT = ("api", "embedder", "backup", "client")


class Failed(Exception):
    """A step did not do what it should."""


def check(is_right: object, problem: str) -> None:
    """Raise :class:`Failed` unless something is right."""
    if not is_right:
        raise Failed(problem)


def wait_for(what: str, seconds: float, done: Callable[[], Any]) -> Any:
    """Ask until the answer is true; the answer. Nothing tells when a container has got on."""
    until = time.monotonic() + seconds
    while True:
        if answer := done():
            return answer
        check(time.monotonic() < until, f"{what} did not come within {seconds:g} seconds")
        time.sleep(_LOOK_SECONDS)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = 600,
    codes: Sequence[int] | None = (0,),
) -> subprocess.CompletedProcess[str]:
    """A program to its end; :class:`Failed`, with its last words, for any other exit code."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise Failed(f"`{command[0]}` is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{command[0]}` took over {seconds:g} s: {list(command)[-4:]}") from error
    if codes is not None and done.returncode not in codes:
        last = "\n    ".join((done.stderr + done.stdout).strip().split("\n")[-12:])
        words = " ".join(str(word) for word in command[-6:])
        raise Failed(f"exit code {done.returncode} of `... {words}`\n    {last}")
    return done


class Stack:
    """The project of compose. ``scratch`` holds what is written for this run."""

    def __init__(self, scratch: Path) -> None:
        self.port = _free_port()
        self._scratch = scratch
        self._root = ROOT
        self._files = ["-f", str(ROOT / "compose.yaml")]
        self._files += ["-f", str(ROOT / "ops" / "appliance" / "compose.client.yaml")]
        # Nothing of whoever runs this: the appliance has to come up without any setting.
        self._env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RECALL_", "COMPOSE_"))
        }
        self._env |= {"RECALL_PORT": str(self.port), "RECALL_BIND": "127.0.0.1"}
        self._env |= {"RECALL_IMAGE_TAG": PROJECT}  # those of an appliance that runs here stay
        self.uses_double = False

    @contextmanager
    def of_tree(self, tree: Path) -> Iterator[None]:
        """Within the block, the services are those of another tree, with images of their own."""
        before = self._root, self._files, self._env
        own, other = str(ROOT), str(tree.resolve())
        self._root = tree.resolve()
        self._files = [word.replace(own, other, 1) for word in self._files]
        self._env = {**self._env, "RECALL_IMAGE_TAG": f"{PROJECT}-older"}
        try:
            yield
        finally:
            self._root, self._files, self._env = before

    @property
    def url(self) -> str:
        """The API, as this machine reaches it."""
        return f"http://127.0.0.1:{self.port}"

    def choose_postgrest(self) -> None:
        """The real image where it is or can be pulled, else the double."""
        if run(["docker", "image", "inspect", POSTGREST], codes=None).returncode == 0:
            return
        try:
            run(["docker", "pull", "--quiet", POSTGREST], seconds=_PULL_SECONDS)
        except Failed:
            self.uses_double = True
            self._files += ["-f", str(ROOT / "ops" / "appliance" / "compose.double.yaml")]

    def pass_pip_on(self) -> None:
        """Give the builds what pip has here, as a secret: it reaches no image and no file of the
        project."""
        told = _pip_settings()
        if not told:
            return
        conf = self._scratch / "pip.conf"
        conf.write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in told.items()))
        conf.chmod(0o600)
        names = [*_BUILT, "postgrest"] if self.uses_double else list(_BUILT)
        extra = {
            "services": {name: {"build": {"secrets": ["pip.conf"]}} for name in names},
            "secrets": {"pip.conf": {"file": str(conf)}},
        }
        override = self._scratch / "compose.pip.json"
        override.write_text(json.dumps(extra))
        self._files += ["-f", str(override)]

    def forget_volume(self) -> None:
        """From now on the database has no volume but the nameless one that its image declares."""
        override = self._scratch / "compose.lost.yaml"
        override.write_text(
            "services:\n  db:\n    volumes: !override\n      - secrets-database:/run/recall:ro\n"
        )
        self._files += ["-f", str(override)]

    def compose(
        self, *words: str, seconds: float = 600, codes: Sequence[int] | None = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """`docker compose` for this project, without any `.env`."""
        command = ["docker", "compose", "--project-name", PROJECT, "--env-file", os.devnull]
        command += ["--project-directory", str(self._root), *self._files, *words]
        return run(command, env=self._env, seconds=seconds, codes=codes)

    def up(self, *words: str) -> None:
        """Start what does not run, and wait until everything is well."""
        self.compose("up", "--detach", "--wait", "--wait-timeout", "300", *words)

    def inside(self, service: str, *words: str, seconds: float = 600) -> str:
        """What a command in a running service printed."""
        return self.compose("exec", "-T", service, *words, seconds=seconds).stdout

    def sql(self, statement: str) -> str:
        """One value, as the owner of the database."""
        words = ("psql", "--username=recall", "--no-psqlrc", "-AtX", "-c", statement)
        return self.inside("db", *words).strip()

    def containers(self) -> list[dict[str, Any]]:
        """Every container of the project, also those that ended."""
        told = self.compose("ps", "--all", "--format", "json").stdout.strip()
        if told.startswith("["):
            listed: list[dict[str, Any]] = json.loads(told)
            return listed
        return [json.loads(line) for line in told.split("\n") if line]

    def ask(self, path: str, token: str | None = None, **query: str) -> tuple[int, Any]:
        """A question to the API: status and answer."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        opener = build_opener(ProxyHandler({}))
        opener.addheaders = [("Authorization", f"Bearer {token}")] if token else []
        try:
            with opener.open(url, timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def remove(self) -> None:
        """Everything of the project except the images of this tree."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "20")
        label = f"label=com.docker.compose.project={PROJECT}"
        run(["docker", "image", "prune", "--force", "--filter", label], codes=None)

    def remove_images(self) -> None:
        """What was built for it."""
        told = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.split()
        own = [name for name in told if name.endswith((f":{PROJECT}", f":{PROJECT}-older"))]
        run(["docker", "image", "rm", "--force", *own], codes=None)

    def tail(self, lines: int = 8) -> str:
        """The last words of all services, for whoever looks for the reason of a failure."""
        return self.compose("logs", "--no-color", "--tail", str(lines), codes=None).stdout


class Machine:
    """A machine that feeds the server: an account and a home of its own, outside of containers."""

    def __init__(self, folder: Path, python: str) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self._command = [python, "-P", "-m", "recall"]
        kept = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SSL_CERT_FILE")
        self._env = {name: os.environ[name] for name in kept if name in os.environ}
        self._env |= {"HOME": str(folder), "RECALL_HOME": str(folder / "home"), "NO_COLOR": "1"}
        self.home = folder / "home"

    @property
    def token(self) -> str:
        """The one that joining left."""
        return str(json.loads((self.home / "joined.json").read_text())["token"])

    def recall(
        self, *words: str, codes: Sequence[int] | None = (0,), seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """A command of this machine."""
        return run([*self._command, *words], env=self._env, codes=codes, seconds=seconds)

    def ingest(self) -> dict[str, Any]:
        """One pass over its logs; the summary."""
        summary: dict[str, Any] = json.loads(self.recall(*self._pass()).stdout)
        return summary

    def begin_ingest(self) -> subprocess.Popen[bytes]:
        """A pass that goes on while something else happens."""
        return subprocess.Popen(
            [*self._command, *self._pass()],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _pass(self) -> list[str]:
        return ["ingest", "--once", "--json", "--source", f"claude-code={self.logs}"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _pip_settings() -> dict[str, str]:
    told: dict[str, str] = {}
    listed = run(["python3", "-m", "pip", "config", "list"], codes=None).stdout
    for line in listed.split("\n"):
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in _PIP:
            told[option] = value.strip("'\"")
    for option in _PIP:
        if given := os.environ.get(f"PIP_{option.replace('-', '_').upper()}"):
            told[option] = given
    # What is a folder here is not there in a container.
    kept = {
        option: " ".join(word for word in value.split() if not word.startswith(("/", "file:")))
        for option, value in told.items()
    }
    return {option: value for option, value in kept.items() if value}


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """For everything that is written."""
    return tempfile.TemporaryDirectory(prefix="recall-appliance-")
