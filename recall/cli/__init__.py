"""The ``recall`` command. Each subcommand stands in the module of its name."""

from __future__ import annotations

import errno
import sys

import typer

from recall import __version__, log
from recall.cli import (
    api,
    backup,
    db,
    doctor,
    down,
    embedder,
    evaluate,
    import_files,
    ingest,
    join,
    notes,
    purge,
    reembed,
    reparse,
    restore,
    restore_backup,
    search,
    service,
    sessions,
    show,
    sources,
    status,
    token,
    up,
    verify,
)
from recall.cli.output import print_error
from recall.errors import RecallError, TargetError

app = typer.Typer(
    name="recall",
    help="Search the session logs of every coding agent on all your machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("down")(down.down)
app.command("search", cls=search.SearchCommand)(search.search)
app.command("ledger", cls=search.SearchCommand)(notes.ledger)
app.command("memories", cls=search.SearchCommand)(notes.memories)
app.command("sessions")(sessions.sessions)
app.command("show")(show.show)
app.command("status")(status.status)
app.command("ingest")(ingest.ingest)
app.command("sources")(sources.sources)
app.command("import")(import_files.import_files)
app.command("purge")(purge.purge)
app.command("restore")(restore.restore)
app.command("verify")(verify.verify)
app.command("backup")(backup.backup)
app.command("restore-backup")(restore_backup.restore_backup)
app.command("reparse")(reparse.reparse)
app.command("eval")(evaluate.evaluate)
app.command("reembed")(reembed.reembed)
app.command("doctor")(doctor.doctor)
app.command("api")(api.api)
app.command("embedder")(embedder.embedder)
app.command("join")(join.join)
app.command("leave")(join.leave)
app.add_typer(token.app, name="token")
app.add_typer(service.app, name="service")
app.add_typer(db.app, name="db")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recall {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Search the session logs of every coding agent on all your machines."""


#: What a place has against being written to. Any other error of the system is one of this program.
_PLACES = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO,
     errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)  # fmt: skip


def main() -> None:
    """Run the command; an expected error becomes one line, a hint and its exit code."""
    log.configure("warning")
    try:
        app(prog_name="recall")
    except RecallError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in _PLACES:
            raise
        where = f"`{error.filename}` cannot be used" if error.filename else "a file cannot be used"
        print_error(
            TargetError(
                f"{where}: {error.strerror}",
                hint="may this account write there, and is there room? RECALL_HOME names the home",
            )
        )
        sys.exit(TargetError.exit_code)
