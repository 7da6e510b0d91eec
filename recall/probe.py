"""``python -m recall.probe URL [COMPONENT ...]``: the health check of a container, without curl.

Exit code 0 if ``/health`` says that the service is well. With components, only what they say
counts: the API reports the machines that feed it as well, and a laptop that sleeps is no reason to
call the API ill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

_SECONDS = 5.0
_MOST_BYTES = 1 << 20


def probe(url: str, components: Sequence[str] = ()) -> str | None:
    """What is wrong, as one line; ``None`` if nothing is."""
    if not url.startswith(("http://", "https://")):
        return f"`{url}` is not an http address"
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=_SECONDS) as answer:
            status, body = answer.status, answer.read(_MOST_BYTES)
    except HTTPError as error:  # 503 has the report all the same
        with error:
            status, body = error.code, error.read(_MOST_BYTES)
    except (URLError, OSError) as error:
        return f"no answer: {error}"
    if not components:
        return None if status == 200 else f"status {status}"
    return _judge(status, body, components)


def _judge(status: int, body: bytes, components: Sequence[str]) -> str | None:
    try:
        report: dict[str, Any] = json.loads(body)["components"]
        wrong = [name for name in components if not report.get(name, {}).get("ok")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"status {status} without a report"
    return f"not well: {', '.join(wrong)}" if wrong else None


if __name__ == "__main__":
    problem = probe(sys.argv[1], sys.argv[2:])
    sys.stdout.write(f"{problem or 'well'}\n")
    sys.exit(0 if problem is None else 1)
