"""Since when the server of this home cannot be reached; passes are short-lived, so a file tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from recall.errors import StoreUnavailableError
from recall.timestamps import parse_timestamp


class Outage:
    """The file of a home that is there while its server is not."""

    def __init__(self, home: Path) -> None:
        self._path = home / "run" / "unreachable-since"

    def since(self) -> datetime | None:
        """When the first of the failures without a success between them was."""
        try:
            return parse_timestamp(self._path.read_text("ascii").strip())
        except (OSError, ValueError):
            return None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Run a pass; if the server cannot be reached, the error says since when that is so."""
        try:
            yield
        except StoreUnavailableError as error:
            since = self.since() or self._begin()
            raise StoreUnavailableError(
                f"{error.message}, since {since:%Y-%m-%d %H:%M} UTC", hint=error.hint
            ) from error
        self.end()

    def _begin(self) -> datetime:
        now = datetime.now(UTC)
        with suppress(OSError):  # the line is worth less than the pass
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.write_text(now.isoformat(timespec="seconds"), "ascii")
        return now

    def end(self) -> None:
        """The server answered."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
