"""Ports that no other program gets, whoever asks for a free one meanwhile."""

from __future__ import annotations

import socket
from types import TracebackType


class TakenPort:
    """A port of this machine that is taken and on which nobody listens, until it is closed.

    A server that sets ``SO_REUSEADDR`` or ``SO_REUSEPORT`` can listen on it, as often as it likes.
    The system gives it to nobody else, also while no server listens: whoever connects then is
    refused for certain. (``SO_REUSEADDR`` alone is enough on Linux only.)
    """

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
            self._socket.bind((host, number))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.number}"

    def close(self) -> None:
        """Give it up."""
        self._socket.close()

    def __enter__(self) -> TakenPort:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
