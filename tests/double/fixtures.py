"""The fixture ``postgrest``: the real server where there is one, and else its double."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.double.config import Config
from tests.double.switches import Switches
from tests.double.tokens import sign

if TYPE_CHECKING:
    from tests.double.server import Double

SECRET = "a secret that only the tests know, and of enough bytes"
_START_SECONDS = 60.0


@dataclass
class Served:
    """A running server for one database."""

    url: str
    admin_url: str
    config: Config
    double: Double | None
    _stop: Callable[[], None]
    _reload: Callable[[], None]

    @property
    def switches(self) -> Switches:
        """The faults of the double; a test that needs them skips on the real server."""
        return self.need_double().switches

    def need_double(self) -> Double:
        """The double; a test that needs it skips on the real server."""
        if self.double is None:
            pytest.skip("only the double has switches")
        return self.double

    def token(self, role: str, **claims: Any) -> str:
        """A token that this server accepts."""
        now = int(time.time())
        named = {"aud": self.config.jwt_aud} if self.config.jwt_aud else {}
        given = {"role": role, "iat": now, "exp": now + 3600, **named, **claims}
        return sign(self.config.jwt_secret or "", given)

    def reload(self) -> None:
        """Let it read the schema again; the real server does so a little later."""
        self._reload()

    def stop(self) -> None:
        """End it before the test ends."""
        self._stop()


def real_server() -> str | None:
    """The ``postgrest`` program, if there is one."""
    return os.environ.get("POSTGREST_BIN") or shutil.which("postgrest")


def with_user(url: str, user: str | None) -> str:
    """A database URL as another role."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    return make_conninfo("", **{**conninfo_to_dict(url), **({"user": user} if user else {})})


def start(config: Config, *, wait: bool = True) -> Served:
    """Start the real server or the double; ``wait`` until it is ready."""
    program = real_server()
    if program is None:
        from tests.double.server import Double

        double = Double(config).start(wait=wait)
        return Served(double.url, double.admin_url, config, double, double.stop, double.reload)
    return _start_program(program, config, wait=wait)


@pytest.fixture
def postgrest() -> Iterator[Callable[..., Served]]:
    """Starts servers for databases, and stops them after the test.

    ``postgrest(url, user="recall_authenticator", anon_role="recall_anon", ...)``: further arguments
    are fields of :class:`Config`.
    """
    started: list[Served] = []

    def make(url: str, *, user: str | None = None, wait: bool = True, **settings: Any) -> Served:
        given = {"jwt_secret": SECRET, **settings}
        served = start(Config(db_uri=with_user(url, user), **given), wait=wait)
        started.append(served)
        return served

    yield make
    for served in started:
        served.stop()


def _start_program(program: str, config: Config, *, wait: bool) -> Served:
    config = replace(
        config, port=config.port or _free_port(), admin_port=config.admin_port or _free_port()
    )
    read_end, write_end = os.pipe()
    os.write(write_end, config.text().encode())
    os.close(write_end)
    process = subprocess.Popen(
        [program, f"/dev/fd/{read_end}"],
        pass_fds=[read_end],
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(Path.home())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_end)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def reload() -> None:
        process.send_signal(signal.SIGUSR1)

    admin_url = f"http://127.0.0.1:{config.admin_port}"
    served = Served(f"http://127.0.0.1:{config.port}", admin_url, config, None, stop, reload)
    _wait_until_answers(f"{admin_url}/{'ready' if wait else 'live'}", process)
    return served


def _wait_until_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    pause = 0.05
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(url, timeout=_START_SECONDS):
                return
        except (URLError, OSError):
            # nothing announces that another program listens
            time.sleep(pause)
    pytest.fail("the real server did not start")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
