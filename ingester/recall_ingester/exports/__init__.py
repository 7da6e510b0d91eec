"""Data exports that people download from a client's website.

An export is one file or several: zips, and JSON files that were taken out of one. It is checked as
a whole before anything of it is used, and read in place.
"""

from __future__ import annotations

from recall_ingester.exports.archive import Limits
from recall_ingester.exports.export import (
    Conversation,
    Export,
    ExportMember,
    ExportSource,
    Problem,
)
from recall_ingester.exports.opening import SOURCES, open_export

__all__ = [
    "SOURCES",
    "Conversation",
    "Export",
    "ExportMember",
    "ExportSource",
    "Limits",
    "Problem",
    "open_export",
]
