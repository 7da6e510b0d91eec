"""The ingester's memory does not follow the size of what it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.db.ingesting import rows

LIMIT_MB = 300
SESSION = "11111111-2222-4333-8444-555555555555.jsonl"

CHILD = """
import json, re, sys
from pathlib import Path
from tests.db.ingesting import ingest
summary = ingest(sys.argv[1], Path(sys.argv[2]))
status = Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak, too
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024
print(json.dumps({"peak_mb": peak, **summary.as_json()}))
"""


def record(text: str) -> bytes:
    body = {"type": "user", "message": {"role": "user", "content": text}}
    return json.dumps(body).encode() + b"\n"


def ingest_in_a_process(url: str, folder: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        cwd=Path(__file__).resolve().parents[2],
    )
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_line_of_100_mb_costs_one_line_and_bounded_memory(database: str, tmp_path: Path) -> None:
    with (tmp_path / SESSION).open("wb") as file:
        file.write(record("before"))
        file.write(record("x" * 100_000_000))
        file.write(record("after"))
    result = ingest_in_a_process(database, tmp_path)
    assert (result["stored"], result["quarantined"]) == (2, 1)
    assert rows(database, "select byte_length > 100000000 from recall.quarantine") == [(True,)]
    assert result["peak_mb"] < LIMIT_MB


@pytest.mark.slow
def test_long_file_of_big_records_stays_bounded(database: str, tmp_path: Path) -> None:
    big = record("word " * 600_000)  # 3 MB, as a line with an image or a whole file has
    with (tmp_path / SESSION).open("wb") as file:
        for _ in range(20):
            file.write(big)
            file.write(record("small " * 50) * 100)
    result = ingest_in_a_process(database, tmp_path)
    assert result["stored"] == 20 * 101
    assert result["peak_mb"] < LIMIT_MB


@pytest.mark.slow
def test_line_just_under_the_limit_is_stored_in_bounded_memory(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / SESSION).write_bytes(record(("ab cD1 " * 20 + "w" * 200 + " ") * 97_000))
    result = ingest_in_a_process(database, tmp_path)
    assert result["stored"] == 1
    assert result["peak_mb"] < LIMIT_MB
