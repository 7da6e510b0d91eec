"""A machine may stand still for seconds: where people wait briefly, tests wait longer.

Each limit is one of the code. A test that is about a limit sets it itself, which wins: this fixture
comes first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from recall_api import forward
from recall_sql import connection

_SECONDS = 60
_LIMITS = (
    "recall.cli.doctor._HEALTH_SECONDS",
    "recall.client._CONNECT_SECONDS",
    "recall_api.app._GRACE_SECONDS",
    "recall_api.app._POOL_SECONDS",
    "recall_api.health._CONNECT_SECONDS",
    "recall_api.health._STATEMENT_SECONDS",
    "recall_api.metrics_store._CONNECT_SECONDS",
    "recall_api.metrics_store._MOST_SECONDS",
    "recall_api.metrics_store._STATEMENT_SECONDS",
    "recall_api.reading._POOL_SECONDS",
    "recall_api.search._GRACE_SECONDS",
    "recall_api.tokens._POOL_SECONDS",
    "recall_ingester.sinks.postgrest_http._CONNECT_SECONDS",
    "recall_sql.embedded._ORPHAN_SECONDS",
)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Longer limits; not by ``monkeypatch``, whose ``undo`` would take them away."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _LIMITS:
            patch.setattr(name, _SECONDS)
        whole = forward._ANSWER_SECONDS
        patch.setattr(forward, "_TIMEOUT", httpx.Timeout(whole, connect=_SECONDS, pool=_SECONDS))
        patch.setitem(connection._TRANSPORT, "connect_timeout", str(_SECONDS))
        # looked at as often as ever, whether a connection that was closed still counts
        patch.setattr("recall_sql.store._CLOSING_SECONDS", 30.0)
        patch.setattr("recall_sql.store._CLOSING_CHECKS", 600)
        yield


@pytest.fixture(autouse=True)
def no_other_home() -> Iterator[None]:
    """Not the home of whoever runs the tests, with its settings and a disk that fills meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", f"{os.devnull}/none")
        yield
