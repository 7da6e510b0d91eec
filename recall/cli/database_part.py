"""The embedded database as a part that the supervisor keeps running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recall import processes
from recall.supervisor import Child

if TYPE_CHECKING:
    from recall_sql.embedded import EmbeddedServer


class DatabasePart:
    """Starts the server; one that runs already (its `recall up` was killed) is used as it is."""

    name = "database"

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def start(self) -> Child:
        """Start the server and wait until it accepts connections."""
        self._server.start()
        return RunningServer(self._server)


class RunningServer:
    """One run of the server, watched by its process: a connection each time would cost a fork."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.pid = server.process_id()
        self._token = processes.identify(self.pid) if self.pid else None

    def poll(self) -> int | None:
        """The server is no child of ours, so its exit code is not known: 1 stands for gone."""
        if self.pid and self._token and processes.is_same(self.pid, self._token):
            return None
        return 1

    def terminate(self) -> None:
        """The owner stops the server after everything that uses it."""

    def kill(self) -> None:
        """See :meth:`terminate`."""
