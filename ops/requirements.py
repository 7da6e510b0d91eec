"""The dependencies of ``pyproject.toml`` as a requirements file, for a layer of an image that does
not change with the code.

python ops/requirements.py [EXTRA ...]
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(project: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """What the distribution with some extras needs; an extra may name others of its own."""
    found = list(project["dependencies"])
    left, done = list(extras), set[str]()
    own = re.compile(re.escape(project["name"]) + r"\[([a-z, -]+)\]")
    while left:
        extra = left.pop(0)
        if extra in done:
            continue
        done.add(extra)
        for item in project["optional-dependencies"][extra]:
            if match := own.fullmatch(item):
                left += [name.strip() for name in match[1].split(",")]
            else:
                found.append(item)
    return sorted(set(found))


if __name__ == "__main__":
    described = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    sys.stdout.write("\n".join(requirements(described, sys.argv[1:])) + "\n")
