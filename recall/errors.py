"""The error tree of the whole project.

::

    RecallError                 exit 1
    ├── UsageError              exit 2    the caller asked for something that cannot be
    │   ├── ConfigError                   a setting is wrong
    │   ├── ClaimError                    the name of a host, or an installation, is taken
    │   └── MissingExtraError             an optional part is not installed
    ├── NotFoundError           exit 4    a session or message that is not in the store
    ├── AccessError             exit 77   the server refused the caller
    ├── BusyError               exit 75   another process holds the lock (EX_TEMPFAIL)
    ├── StoreError              exit 69   the database refused or failed (EX_UNAVAILABLE)
    │   ├── StoreUnavailableError         retryable: not reachable, restarting, full
    │   ├── SchemaError                   the schema is newer or damaged
    │   └── DamagedError    exit 65   stored bytes are not what they were (EX_DATAERR)
    ├── ModelError              exit 69   the embedding model cannot be loaded or failed
    ├── TargetError             exit 73   a file cannot be written, or is in the way (EX_CANTCREAT)
    └── SourceError             exit 66   a session log cannot be read (EX_NOINPUT)

``retryable`` says whether the same call can succeed later without anybody changing it. ``hint`` is
what the user should do next; the command prints it after the message.
"""

from __future__ import annotations

from typing import ClassVar


class RecallError(Exception):
    """Something that Recall expected to be able to do did not work."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(RecallError):
    """The caller asked for something that cannot be."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting has an unknown name or a value that does not fit."""


class ClaimError(UsageError):
    """The name of a host belongs to another installation, or the installation has another name."""


class MissingExtraError(UsageError):
    """An optional part of the distribution is needed and not installed."""


class NotFoundError(RecallError):
    """The session or message is not in the store."""

    exit_code = 4


class AccessError(RecallError):
    """The server refused the caller."""

    exit_code = 77


class BusyError(RecallError):
    """Another process holds the lock."""

    exit_code = 75
    retryable = True


class StoreError(RecallError):
    """The database refused a statement or failed."""

    exit_code = 69


class StoreUnavailableError(StoreError):
    """The database cannot be reached now."""

    retryable = True


class SchemaError(StoreError):
    """The schema in the database is not one that this code can use."""


class DamagedError(StoreError):
    """Stored bytes are not what they were."""

    exit_code = 65


class ModelError(RecallError):
    """The embedding model cannot be loaded, or failed on a text."""

    exit_code = 69


class TargetError(RecallError):
    """A file cannot be written, or another one is in its place."""

    exit_code = 73


class SourceError(RecallError):
    """A session log cannot be read."""

    exit_code = 66
