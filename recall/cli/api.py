"""``recall api``: the HTTP API, in this process."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from recall import log
from recall.cli.address import bind, parse_listen
from recall.cli.extras import need_server
from recall.config import load_settings

#: Requests above this number get 503 at once instead of waiting for a database connection.
_CONCURRENT_REQUESTS = 64
_KEEP_ALIVE_SECONDS = 5
_SHUTDOWN_SECONDS = 5
_HEADER_BYTES = 16_384


def api() -> None:
    """Serve the HTTP API.

    `recall up` runs this for you; alone it needs a database (`RECALL_DATABASE_URL`) or opens the
    embedded one.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    need_server()
    import uvicorn

    from recall_api.app import create_app
    from recall_api.protocol import PunctualProtocol
    from recall_sql.store import open_store

    # Our own socket, because uvicorn reports a taken port only in its log.
    # A database of its own may be down when the API starts; the API waits for it and says so.
    listener = bind(parse_listen(settings.listen))
    migrate = settings.database_url is None
    with listener, open_store(settings, migrate=migrate) as database_url:
        config = uvicorn.Config(
            create_app(settings, database_url),
            http=PunctualProtocol,  # h11: httptools has no limit on the size of headers
            ws="none",
            log_config=None,
            access_log=False,  # its lines hold queries
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONCURRENT_REQUESTS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=_HEADER_BYTES,
        )
        # uvicorn ends in order and then sends itself the signal again; by default that would end
        # the process before the block does, and leave the embedded database running.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        uvicorn.Server(config).run(sockets=[listener])


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)
