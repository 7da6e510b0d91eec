"""``/health`` and ``/metrics`` of one embedder, for a container check and for Prometheus."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from recall_embedder.health import Health

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_SECONDS = 5


@contextmanager
def serve_health(health: Health, listener: socket.socket | None) -> Iterator[None]:
    """Answer on a bound socket for the length of the block; without one, nobody asks."""
    if listener is None:
        yield
        return
    server = _Server(health, listener)
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, health: Health, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.health = health
        self.registry = CollectorRegistry()
        self.registry.register(HealthCollector(health))
        self.server_activate()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS
    server_version = "recall"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == "/health":
            report = self.server.health.report()
            status = HTTPStatus.OK if report["ok"] else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, "application/json", json.dumps(report).encode())
        elif self.path == "/metrics":
            self._answer(HTTPStatus.OK, _METRICS_TYPE, generate_latest(self.server.registry))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a check every few seconds is no news."""

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class HealthCollector(Collector):
    """The counters of one embedder, for Prometheus."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families are the same as collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything as it is now."""
        health = self._health
        yield CounterMetricFamily(
            "recall_embedder_passages_embedded", "Passages stored with a vector.",
            value=health.embedded_total,
        )  # fmt: skip
        yield CounterMetricFamily(
            "recall_embedder_passages_failed", "Passages that have failed for good.",
            value=health.failed_total,
        )  # fmt: skip
        batches = CounterMetricFamily(
            "recall_embedder_batches", "Batches given to the model.", labels=("outcome",)
        )
        for outcome in ("done", "failed"):
            batches.add_metric((outcome,), health.batches[outcome])
        yield batches
        seconds = CounterMetricFamily(
            "recall_embedder_stage_seconds", "Seconds of all threads by stage.", labels=("stage",)
        )
        for stage in ("claim", "cut", "model", "store"):
            seconds.add_metric((stage,), health.seconds[stage])
        yield seconds
        queue = GaugeMetricFamily(
            "recall_embedder_queue_passages", "Passages that wait.", labels=("generation",)
        )
        for generation, waiting in dict(health.queue).items():
            queue.add_metric((generation,), waiting)
        yield queue
        yield GaugeMetricFamily(
            "recall_embedder_beat_age_seconds", "Time since the most silent thread spoke.",
            value=health.beat_age(),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "recall_embedder_up",
            "Whether this embedder is well.",
            value=float(not health.reasons()),
        )
        model = GaugeMetricFamily("recall_embedder_model", "The model in use.", labels=("model",))
        if health.model:
            model.add_metric((health.model,), 1)
        yield model
