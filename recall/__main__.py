"""``python -m recall`` is the ``recall`` command."""

from __future__ import annotations

from recall.cli import main

main()
