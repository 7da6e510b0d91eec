"""Passes over files that grow, shrink, move and break, again over HTTP: the same tests hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sources import get_source
from recall_ingester.summary import Summary
from recall_sql.embedded import EmbeddedServer
from tests.db import test_ingest
from tests.db.ingesting import HOST, MAX_LINE_BYTES
from tests.db.over_http import copy_of, empty, join, serve
from tests.db.test_ingest import log as log
from tests.db.test_ingest import root as root
from tests.double.fixtures import Served

#: What is not about the sink that writes straight to a database.
for _name in (
    "test_second_pass_opens_no_file_and_writes_nothing",
    "test_only_new_bytes_are_read",
    "test_torn_last_line_is_held_and_stored_once_it_is_whole",
    "test_whole_record_without_newline_is_stored_and_not_doubled",
    "test_truncated_file_is_read_again_from_zero_and_nothing_is_lost",
    "test_rewritten_message_keeps_its_old_text_out_of_the_way",
    "test_gone_file_is_marked_and_its_rows_stay",
    "test_root_that_cannot_be_looked_at_is_not_empty",
    "test_moved_file_goes_on_under_its_session",
    "test_two_live_files_of_one_id_never_write_over_each_other",
    "test_archived_and_compressed_log_goes_on_under_its_session",
    "test_a_bad_line_costs_one_line",
    "test_whole_record_behind_a_torn_one_is_salvaged",
    "test_bytes_as_clients_really_write_them",
    "test_hostile_line_is_quarantined_and_its_neighbours_are_not",
    "test_line_over_the_limit_is_listed_with_length_and_hash",
    "test_prompt_history_is_kept_apart_and_survives_a_trim",
    "test_copies_in_a_resumed_session_get_one_copy_key",
    "test_same_prompts_in_two_files_that_are_read_at_once",
):
    globals()[_name] = getattr(test_ingest, _name)


@pytest.fixture(scope="module")
def _served(server: EmbeddedServer, template: str) -> Iterator[tuple[str, Served]]:
    with copy_of(server, template) as url, serve(url) as served:
        yield url, served


@pytest.fixture
def database(_served: tuple[str, Served], monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database; passes of these tests reach it over HTTP."""
    url, served = _served
    empty(url)
    member = join(served, url)

    def ingest(
        _url: str,
        folder: Path,
        source: str = "claude-code",
        *,
        max_line_bytes: int = MAX_LINE_BYTES,
        redact: bool = True,
        **more: Any,
    ) -> Summary:
        options = Options(HOST, max_line_bytes, redact, **more)
        return run_pass([(get_source(source), [folder])], member.sink, options)

    monkeypatch.setattr(test_ingest, "ingest", ingest)
    return url
