"""The server: sockets, threads, the schema cache that is kept fresh, and the admin port."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from tests.double.answer import Answer
from tests.double.app import App
from tests.double.config import Config
from tests.double.database import Connection, Pool
from tests.double.ports import TakenPort
from tests.double.refusal import DatabaseError
from tests.double.request import Request
from tests.double.schema import load_schema
from tests.double.switches import Dropped, Exchange, Switches
from tests.double.wire import Closed, Wire

#: How often a database that is down is tried; the real server waits up to 32 seconds.
_RETRY_SECONDS = 0.2
#: How long requests that run may still take when the server is stopped.
_STOP_SECONDS = 60.0
Handler = Callable[[Request, Callable[[], bytes]], Answer]


class Double:
    """One running server. ``url`` and ``admin_url`` are known from the beginning."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.switches = Switches()
        self._pool = Pool(config.db_uri, config.pool_size, config.pool_acquisition_timeout)
        self._app = App(config, self._pool, self.switches)
        self._keeper = _Keeper(config, self._app)
        self._api = _Port(config.host, config.port, self._answer, config.keep_alive_seconds)
        self._admin = _Port(
            config.admin_host, config.admin_port, self._answer_admin, config.keep_alive_seconds
        )

    @property
    def url(self) -> str:
        """Where requests go."""
        return f"http://127.0.0.1:{self._api.number}"

    @property
    def admin_url(self) -> str:
        """Where ``/live`` and ``/ready`` are."""
        return f"http://127.0.0.1:{self._admin.number}"

    def start(self, *, wait: bool = True) -> Double:
        """Listen; with ``wait`` return when the schema is loaded."""
        self._keeper.start()
        if wait:
            self._keeper.wait_until_ready()
        self._api.open()
        self._admin.open()
        return self

    def stop(self) -> None:
        """Take no more connections, let finish what runs, and close everything."""
        self._api.close()
        if not self._api.join():
            self._pool.close()
            self._api.join()
        self._admin.close()
        self._admin.join()
        self._keeper.stop()
        self._pool.close()
        self._api.give_up()
        self._admin.give_up()

    def reload(self) -> None:
        """Load the schema and the settings of roles again, and return when that is done."""
        self._keeper.reload()

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Nothing listens; connections that were kept alive are closed as well."""
        self._api.close()
        self._api.join()
        try:
            yield
        finally:
            self._api.open()

    def close_idle_connections(self) -> None:
        """What the server does when a connection was silent for ``keep_alive_seconds``."""
        self._api.close_idle()

    def __enter__(self) -> Double:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _answer(self, request: Request, read_body: Callable[[], bytes]) -> Answer:
        seen: list[bytes] = []

        def read() -> bytes:
            if not seen:
                seen.append(read_body())
            return seen[0]

        status: int | None = None
        try:
            answer = self._app.answer(request, read)
            status = answer.status
            return answer
        finally:
            self.switches.exchanges.append(
                Exchange(
                    request.method,
                    request.target,
                    dict(reversed(request.headers)),
                    seen[0] if seen and self.switches.keeps_bodies else b"",
                    status,
                )
            )

    def _answer_admin(self, request: Request, read_body: Callable[[], bytes]) -> Answer:
        read_body()
        path = request.path
        if path == "/live":
            return Answer(200, is_chunked=True)
        if path == "/ready":
            is_ready = self._keeper.is_ready and not self.switches.is_database_down
            return Answer(200 if is_ready else 503, is_chunked=True)
        if path == "/metrics":
            plain = [("Content-Type", "text/plain; charset=utf-8")]
            text = f"# TYPE pgrst_db_pool_max gauge\npgrst_db_pool_max {self._config.pool_size}.0\n"
            return Answer(200, plain, text.encode(), is_chunked=True)
        if path == "/schema_cache":
            return Answer(200, body=b"{}", is_chunked=True)
        return Answer(404, is_chunked=True)


class _Keeper:
    """Keeps the schema cache: loads it, and loads it again when the database says so."""

    def __init__(self, config: Config, app: App) -> None:
        self._config = config
        self._app = app
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="postgrest keeper", daemon=True)
        self._reloads = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether the cache is there and the database is listened to."""
        return self._ready.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._wake.send(b".")
        self._thread.join(_STOP_SECONDS)
        self._wake.close()
        self._woken.close()

    def wait_until_ready(self) -> None:
        """Return when the cache was loaded."""
        assert self._ready.wait(_STOP_SECONDS), "the database cannot be reached"

    def reload(self) -> None:
        """Load the cache now, in the thread of the caller."""
        connection = Connection(self._config.db_uri)
        try:
            self._load(connection)
        finally:
            connection.close()

    def _load(self, connection: Connection) -> None:
        with self._reloads:
            self._app.cache = load_schema(connection, self._config.schemas)

    def _run(self) -> None:
        while not self._stopped.is_set():
            connection: Connection | None = None
            try:
                connection = Connection(self._config.db_uri)
                connection.run("listen pgrst")
                self._load(connection)
                self._ready.set()
                self._listen(connection)
            except DatabaseError:
                self._ready.clear()
            finally:
                if connection is not None:
                    connection.close()
            self._stopped.wait(_RETRY_SECONDS)

    def _listen(self, connection: Connection) -> None:
        while not self._stopped.is_set():
            select.select([connection.socket, self._woken.fileno()], [], [])
            if not self._stopped.is_set() and connection.notified():
                self._load(connection)
            if connection.lost:
                raise DatabaseError(None, "connection lost", lost=True)


class _Port:
    """A listening socket, a thread for it, and a thread for each of its connections."""

    def __init__(self, host: str, number: int, handler: Handler, keep_alive_seconds: float) -> None:
        self._handler = handler
        self._keep_alive_seconds = keep_alive_seconds
        self._host = host
        # held to the end: nobody else is to have it while nothing listens
        self._taken = TakenPort(host, number)
        self.number = self._taken.number
        # bound now; whoever connects before `open` waits
        self._listener = self._bind()
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, Wire] = {}
        self._threads: list[threading.Thread] = []
        self._closing = False

    def open(self) -> None:
        """Accept connections."""
        self._closing = False
        if self._listener.fileno() < 0:
            self._listener = self._bind()
        thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Accept no more, and close the connections on which nothing runs."""
        with self._lock:
            self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_idle()

    def join(self) -> bool:
        """Wait for what still runs; whether it ended in time."""
        with self._lock:
            threads = list(self._threads)
        until = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def give_up(self) -> None:
        """Leave the port to others."""
        self._taken.close()

    def close_idle(self) -> None:
        """Close the connections that wait for a request."""
        with self._lock:
            idle = [client for client, wire in self._clients.items() if wire.is_idle]
        for client in idle:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _bind(self) -> socket.socket:
        return socket.create_server((self._host, self.number), backlog=64, reuse_port=True)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                if self._closing:  # accepted in the moment of closing, and closed by nobody else
                    client.close()
                    return
                self._clients[client] = Wire(client, self._keep_alive_seconds)
                self._threads = [one for one in self._threads if one.is_alive()]
                self._threads.append(thread)
                # under the lock, as a thread that has not begun is not alive
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            wire = self._clients[client]
        try:
            with suppress(Closed, Dropped, OSError):
                while wire.serve_one(self._handler) and not self._closing:
                    pass
        finally:
            with self._lock:
                del self._clients[client]
            client.close()


def serve_forever(config: Config) -> None:
    """Run one server until a signal ends the process."""
    double = Double(config)
    double.switches.keeps_bodies = False
    double.start(wait=False)
    print(f"double of PostgREST 16.2 on {double.url}, admin {double.admin_url}", flush=True)  # noqa: T201
    try:
        threading.Event().wait()
    finally:
        double.stop()
