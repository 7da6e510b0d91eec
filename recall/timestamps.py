"""Timestamps as clients write them, always with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Epoch numbers from here on are milliseconds; below, seconds (1e11 s would be the year 5138).
_MILLISECONDS_FROM = 1e11
_MICROSECONDS_FROM = 1e14
_MINUTE = timedelta(minutes=1)
#: PostgreSQL reads offsets up to 15:59; the widest real one is 14:00.
_ODD_OFFSET = timedelta(hours=15)


def parse_timestamp(value: object) -> datetime | None:
    """A time with zone from ISO-8601 text or an epoch in s, ms or µs; ``None`` for anything else.

    A text without a zone is taken as UTC, which is what the clients that omit it mean.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return _from_epoch(value)
    if not isinstance(value, str) or not value:
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return _from_epoch(value)
    moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    try:
        in_utc = moment.astimezone(UTC)
    except OverflowError:  # the first or last hours of all years, with an offset
        return None
    offset = moment.utcoffset() or timedelta()
    return in_utc if abs(offset) >= _ODD_OFFSET or offset % _MINUTE else moment


def _from_epoch(value: float | str) -> datetime | None:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if abs(number) >= _MICROSECONDS_FROM:
        number /= 1e6
    elif abs(number) >= _MILLISECONDS_FROM:
        number /= 1e3
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return None
