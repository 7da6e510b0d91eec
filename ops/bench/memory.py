"""Peak memory of the command that reads inputs of a size nobody wants in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.bench import big_inputs, corpus, measure

#: The default of ``max_document_bytes``.
_DOCUMENT_BYTES = 134_217_728


@dataclass(frozen=True, slots=True)
class Big:
    """One input: where it lies below the home, and what makes it. A zip is imported."""

    name: str
    place: str
    build: Callable[[Path], None]


_SESSION = f".claude/projects/-p/{corpus.new_id('big', 1)}.jsonl"
_CHAT = ".gemini/tmp/project/chats/session-big.json"
_OPENCODE = ".local/share/opencode/opencode.db"
INPUTS = (
    Big("JSONL, 300 MB", _SESSION, lambda path: big_inputs.build_lines(path, size=300_000_000)),
    Big("JSONL, 2 GB", _SESSION, lambda path: big_inputs.build_lines(path, size=2_000_000_000)),
    Big(
        "JSONL, one line of 100 MB",
        _SESSION,
        lambda path: big_inputs.build_long_line(path, size=100_000_000),
    ),
    Big(
        "document of 128 MiB, nine tenths images",
        _CHAT,
        lambda path: big_inputs.build_document(path, size=_DOCUMENT_BYTES, images=True),
    ),
    Big(
        "document of 128 MiB, text",
        _CHAT,
        lambda path: big_inputs.build_document(path, size=_DOCUMENT_BYTES, images=False),
    ),
    Big(
        "document of 128 MiB and a byte",
        _CHAT,
        lambda path: big_inputs.build_document(path, size=_DOCUMENT_BYTES + 1, images=True),
    ),
    Big(
        "opencode, a session of 60 MB and 2,000 small ones",
        _OPENCODE,
        lambda path: big_inputs.build_opencode(path, large_bytes=60_000_000, small=2_000),
    ),
    Big(
        "ChatGPT zip, one line of 2 GB",
        "export.zip",
        lambda path: big_inputs.build_chatgpt_zip(path, size=2_000_000_000),
    ),
)


def peaks(
    folder: Path, env: Mapping[str, str], say: Callable[[str], None], wanted: str = ""
) -> list[dict[str, Any]]:
    """The cost of reading each input whose name contains ``wanted``, each in a new store."""
    rows = []
    for big in INPUTS:
        if wanted not in big.name:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            home = Path(inner) / "home"
            path = home / big.place
            say(f"making: {big.name}")
            big.build(path)
            say(f"reading: {big.name}")
            arguments = ["ingest", "--once"]
            if path.suffix == ".zip":
                arguments = ["import", str(path)]
            own = {"HOME": str(home), "RECALL_HOME": str(Path(inner) / "store")}
            cost = measure.run_recall([*arguments, "--json"], {**env, **own})
            rows.append({"name": big.name, "file_bytes": path.stat().st_size} | asdict(cost))
    return rows


def report(rows: list[dict[str, Any]]) -> list[str]:
    """A table of the peaks."""
    lines = ["", "| input | file | peak memory of the command | time |", "|---|---|---|---|"]
    lines += [
        f"| {row['name']} | {row['file_bytes'] / 1e6:,.0f} MB | {row['peak_bytes'] / 1e6:.0f} MB"
        f" | {row['wall_seconds']:.1f} s |"
        for row in rows
    ]
    return lines
