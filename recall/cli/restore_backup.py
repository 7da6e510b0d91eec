"""``recall restore-backup``: prove a backup, or put it in the place of the database."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from recall import log
from recall.cli.backup import backup_folder, prove_and_record, refuse_remote
from recall.cli.backup_proof import print_proof
from recall.cli.extras import need_server
from recall.cli.ingest import progress_bar
from recall.cli.output import note, print_json, screen
from recall.config import Settings, load_settings
from recall.errors import TargetError, UsageError

if TYPE_CHECKING:
    from recall_sql.backup_databases import Target
    from recall_sql.backup_manifest import Backup
    from recall_sql.backup_restore import Strength

_LONGEST_NAME = 63


def restore_backup(
    name: str = typer.Argument(
        "latest", metavar="FILE", help="The dump, by its name or path, or `latest`."
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Restore into a scratch database, compare everything, and search."
    ),
    into_empty: bool = typer.Option(
        False, "--into-empty", help="Restore into the database of the settings, which is empty."
    ),
    replace: bool = typer.Option(
        False, "--replace", help="Restore in its place; what was there is kept under another name."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    scratch: Path | None = typer.Option(
        None, "--scratch", metavar="FOLDER", help="Where the scratch database of --verify stands."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Prove that a backup can be restored, or restore it.

    A restore fills a new database, compares every row, brings the schema to this version, and only
    then takes the place of the configured one. Exit code 65: the backup is damaged. 69: the server
    cannot take it, or it is of a newer Recall. 73: the database is not empty, or the disk has no
    room. 75: the database is in use.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    if sum([verify, into_empty, replace]) != 1:
        raise UsageError(
            "say what for: --verify, --into-empty or --replace",
            hint="--verify changes nothing; see docs/backup.md for the others",
        )
    refuse_remote(settings)
    need_server()
    from recall_sql.backup_manifest import find_backup

    backup = find_backup(backup_folder(settings), name)
    if verify:
        proof = prove_and_record(settings, backup, scratch)
        if as_json:
            print_json(proof.as_json())
        else:
            screen.print(f"`{backup.dump}` is good ({proof.seconds:.1f} s)", markup=False)
            print_proof(proof)
        return
    result = _restore(settings, backup, replace=replace, ask=not yes)
    if as_json:
        print_json(result)
        return
    screen.print(
        f"`{backup.dump}` restored: {result['rows']:,} rows of {result['tables']} tables"
        f" in {result['seconds']:.1f} s",
        markup=False,
    )
    _print_notes(result)


def _restore(settings: Settings, backup: Backup, *, replace: bool, ask: bool) -> dict[str, Any]:
    from recall_sql.backup import record
    from recall_sql.backup_databases import find_target
    from recall_sql.backup_manifest import check_whole
    from recall_sql.backup_restore import check_server, strength
    from recall_sql.backup_scratch import own_strength, require_room, restore_lock
    from recall_sql.migrate import latest_version, refuse_newer
    from recall_sql.store import open_store

    started, manifest = time.monotonic(), backup.manifest
    refuse_newer(manifest.schema_version, "backup")
    with restore_lock(settings.home):
        with progress_bar("checking the file") as advance:
            check_whole(backup, advance)
        if settings.database_url is None:
            require_room(settings.home, manifest)
        with open_store(settings, migrate=False) as url:
            target = find_target(url)
            check_server(url, manifest)
            keep_as = _refuse_or_keep(target, replace=replace, ask=ask)
            power = own_strength() if settings.database_url is None else strength(None)
            _fill_and_swap(target, backup, power, keep_as)
            record(url, backup)
    return {
        "file": str(backup.dump),
        "tables": len(manifest.tables),
        "rows": manifest.rows,
        "schema_version": latest_version(),
        "schema_version_before": manifest.schema_version,
        "kept_as": keep_as,
        "vectors": manifest.vectors,
        "verified_before": manifest.verified_at is not None,
        "identity": _give_identity(settings, backup),
        "seconds": round(time.monotonic() - started, 1),
    }


def _refuse_or_keep(target: Target, *, replace: bool, ask: bool) -> str | None:
    """The name under which the database of now is kept, ``None`` for an empty one. Raises while it
    is in use, and for one that is not empty without a word that it may be replaced."""
    from recall_sql.backup_databases import require_unused, why_in_use

    reason = why_in_use(target.url) if target.exists else None
    if reason is None:
        require_unused(target)
        return None
    if not replace:
        raise TargetError(
            f"the database `{target.name}` is not empty: {reason}",
            hint="`--replace` restores all the same, and keeps it under another name",
        )
    require_unused(target)
    suffix = f"_before_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    keep_as = target.name[: _LONGEST_NAME - len(suffix)] + suffix
    if ask:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here", hint="add --yes")
        question = f"replace the database `{target.name}`? it is kept as `{keep_as}`"
        typer.confirm(question, abort=True, err=True)
    return keep_as


def _fill_and_swap(target: Target, backup: Backup, power: Strength, keep_as: str | None) -> None:
    from recall_sql.backup_databases import scratch_database, take_place
    from recall_sql.backup_restore import compare, fill, mark_vectors_missing
    from recall_sql.migrate import migrate

    with scratch_database(target.url, "restore") as scratch:
        with progress_bar("restoring") as advance:
            fill(scratch.url, backup, power, advance)
        compare(scratch.url, backup.manifest)
        migrate(scratch.url)
        mark_vectors_missing(scratch.url, backup.manifest)
        take_place(target, scratch, keep_as=keep_as)


def _give_identity(settings: Settings, backup: Backup) -> str | None:
    """Let a new home go on under the name of the old one, whose rows the store has; the name if it
    was given now. With a database of its own, a home is not what was backed up."""
    identity, path = backup.manifest.identity, settings.home / "identity.json"
    if settings.database_url is not None or identity is None or path.exists():
        return None
    with tempfile.NamedTemporaryFile("w", dir=settings.home, delete=False) as file:
        json.dump({"host": identity["host"], "install_id": identity["install_id"]}, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
    return identity["host"]


def _print_notes(result: dict[str, Any]) -> None:
    if result["schema_version"] != result["schema_version_before"]:
        note(
            f"schema brought from version {result['schema_version_before']} to"
            f" {result['schema_version']}"
        )
    if result["kept_as"]:
        note(
            f"the database of before is kept as `{result['kept_as']}`; once you do not need it:"
            f" recall db psql -- -c 'drop database \"{result['kept_as']}\"'"
        )
    if result["identity"]:
        note(f"this home goes on as host `{result['identity']}`")
    if not result["vectors"]:
        note("the vectors are made again by the embedder; until then search is by words")
    note("tokens that were revoked after this backup are valid again: `recall token list`")
