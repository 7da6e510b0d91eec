"""The ingester's memory does not follow the size of what it reads, with original bytes kept.

A document is parsed as a whole and is the exception; its size has a limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench import big_inputs
from tests.db.ingesting import rows

LIMIT_MB = 300
SESSION = "11111111-2222-4333-8444-555555555555.jsonl"
MAX_DOCUMENT_BYTES = 134_217_728

CHILD = """
import json, re, sys
from pathlib import Path
from tests.db.ingesting import ingest
summary = ingest(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
status = Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak, too
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024
print(json.dumps({"peak_mb": peak, **summary.as_json()}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def record(text: str) -> bytes:
    body = {"type": "user", "message": {"role": "user", "content": text}}
    return json.dumps(body).encode() + b"\n"


def ingest_in_a_process(url: str, folder: Path, source: str = "claude-code") -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, str(folder), source],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        cwd=Path(__file__).resolve().parents[2],
    )
    result: dict[str, int] = json.loads(done.stdout)
    return result


def kept_bytes(url: str) -> int:
    return int(rows(url, "select sum(byte_length) from recall.raw_segment")[0][0])


def test_line_of_100_mb_costs_one_line_and_bounded_memory(database: str, tmp_path: Path) -> None:
    path = tmp_path / SESSION
    big_inputs.build_long_line(path, size=100_100_000)
    result = ingest_in_a_process(database, tmp_path)
    assert (result["stored"], result["quarantined"]) == (2, 1)
    assert rows(database, "select byte_length > 100000000 from recall.quarantine") == [(True,)]
    assert kept_bytes(database) == path.stat().st_size
    assert result["peak_mb"] < LIMIT_MB


def test_file_of_300_mb_is_kept_in_bounded_memory(database: str, tmp_path: Path) -> None:
    path = tmp_path / SESSION
    big_inputs.build_lines(path, size=300_000_000)
    result = ingest_in_a_process(database, tmp_path)
    assert result["stored"] == path.read_bytes().count(b"\n")
    assert kept_bytes(database) == path.stat().st_size
    assert result["peak_mb"] < LIMIT_MB


def test_long_file_of_big_records_stays_bounded(database: str, tmp_path: Path) -> None:
    big = record("word " * 600_000)  # 3 MB, as a line with an image or a whole file has
    with (tmp_path / SESSION).open("wb") as file:
        for _ in range(20):
            file.write(big)
            file.write(record("small " * 50) * 100)
    result = ingest_in_a_process(database, tmp_path)
    assert result["stored"] == 20 * 101
    assert result["peak_mb"] < LIMIT_MB


def test_line_just_under_the_limit_is_stored_in_bounded_memory(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / SESSION).write_bytes(record(("ab cD1 " * 20 + "w" * 200 + " ") * 97_000))
    result = ingest_in_a_process(database, tmp_path)
    assert result["stored"] == 1
    assert result["peak_mb"] < LIMIT_MB


@pytest.mark.parametrize(
    ("size", "limit_mb"),
    [
        pytest.param(MAX_DOCUMENT_BYTES // 2, LIMIT_MB, id="64 MiB"),
        # The bytes, the JSON library's copy of them, and the texts that it makes of them.
        pytest.param(MAX_DOCUMENT_BYTES, 3 * 128 + 130, id="128 MiB"),
    ],
)
def test_document_costs_three_times_its_size(
    database: str, tmp_path: Path, size: int, limit_mb: int
) -> None:
    path = tmp_path / "chats" / "session-big.json"
    big_inputs.build_document(path, size=size, images=True)
    result = ingest_in_a_process(database, tmp_path, "gemini-cli")
    assert (result["quarantined"], result["sessions"]) == (0, 1)
    assert kept_bytes(database) == size
    assert result["peak_mb"] < limit_mb


def test_document_above_the_limit_is_kept_and_not_parsed(database: str, tmp_path: Path) -> None:
    path = tmp_path / "chats" / "session-big.json"
    big_inputs.build_document(path, size=MAX_DOCUMENT_BYTES + 1, images=True)
    result = ingest_in_a_process(database, tmp_path, "gemini-cli")
    assert (result["quarantined"], result["stored"]) == (1, 0)
    assert kept_bytes(database) == MAX_DOCUMENT_BYTES + 1
    assert result["peak_mb"] < LIMIT_MB


def test_database_with_one_large_session_stays_bounded(database: str, tmp_path: Path) -> None:
    big_inputs.build_opencode(tmp_path / "opencode.db", large_bytes=60_000_000, small=2_000)
    result = ingest_in_a_process(database, tmp_path, "opencode")
    assert (result["sessions"], result["quarantined"]) == (2_001, 0)
    assert kept_bytes(database) > 60_000_000
    assert result["peak_mb"] < LIMIT_MB
