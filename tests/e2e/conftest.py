"""What runs in the process of a test has as much time as the tests of the database have."""

from __future__ import annotations

from tests.db.conftest import patience as patience
