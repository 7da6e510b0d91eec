"""Writes docs/reference from the code, so that it cannot drift from it.

python ops/docs.py            write the pages
python ops/docs.py --check    change nothing; exit code 1 if a page is not up to date
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
_MADE = "<!-- Made by `make docs` from the code; do not edit. -->\n"
_HELP_OPTIONS = frozenset({"-h", "--help"})


def cli_page() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from recall.cli import app

    lines = ["# Commands", "", _MADE]
    for path, command in _commands("recall", get_command(app)):
        lines += _command_section(path, command)
    lines += ["## Exit codes", "", *_exit_codes()]
    return "\n".join(lines) + "\n"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", child)


def _command_section(path: str, command: Any) -> list[str]:
    children = getattr(command, "commands", {})
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if not _HELP_OPTIONS & set(item.opts)]
    options = [item for item in options if item.param_type_name == "option"]
    usage = [path, *(_argument_usage(item) for item in arguments)]
    usage += ["[OPTIONS]"] if options else []
    usage += ["COMMAND"] if children else []
    lines = [f"{'#' * min(2 + path.count(' ') // 2, 3)} `{path}`", "", "```"]
    lines += [" ".join(usage), "```", "", _paragraphs(command.help), ""]
    if arguments or options:
        lines += ["| | |", "|---|---|"]
        lines += [f"| {_argument_usage(item)} | {_cell(_help(item))} |" for item in arguments]
        lines += [f"| {_option_usage(item)} | {_cell(_help(item))} |" for item in options]
        lines.append("")
    return lines


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _argument_usage(item: Any) -> str:
    name = item.metavar or item.name.upper()
    name = f"{name}..." if item.nargs == -1 and not name.endswith("...") else name
    return name if item.required or name.startswith("[") else f"[{name}]"


def _option_usage(item: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*item.opts, *item.secondary_opts))
    if item.is_flag:
        return names
    # Not the name of its type: how that reads differs between versions of Typer.
    return f"{names} {item.metavar or item.opts[0].lstrip('-').replace('-', '_').upper()}"


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


def _help(item: Any) -> str:
    text = " ".join((item.help or "").split())
    default = item.default
    if getattr(item, "is_flag", False) or callable(default) or default == "":
        return text
    if isinstance(default, str | int | float) or hasattr(default, "value"):
        text += f" Default: `{_text(default)}`."
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _exit_codes() -> list[str]:
    from recall import errors

    codes: dict[int, list[str]] = defaultdict(list)
    codes[1].append("Nothing was found, or a check failed.")
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.RecallError):
            codes[kind.exit_code].append((kind.__doc__ or "").split("\n", 1)[0])
    lines = ["| code | meaning |", "|---|---|", "| 0 | Done. |"]
    return lines + [f"| {code} | {' '.join(codes[code])} |" for code in sorted(codes)]


def settings_page() -> str:
    """Every setting with its variable, its default and what it is for."""
    from recall.config import options

    lines = ["# Settings", "", _MADE, _SETTINGS_INTRODUCTION]
    lines += ["| `config.toml` | environment | default | |", "|---|---|---|---|"]
    for option in options():
        in_file = "" if option.name == "home" else f"`{option.name}`"
        variable = f"`{option.env}`" + (f", `{option.env}_FILE`" if option.secret else "")
        about = _cell(option.about) + (" Secret." if option.secret else "")
        default = _HOME_DEFAULT if option.name == "home" else _default(option.default)
        lines.append(f"| {in_file} | {variable} | {default} | {about} |")
    return "\n".join(lines) + "\n"


_SETTINGS_INTRODUCTION = """\
The environment wins over `config.toml` in Recall's home, and that over the default. An unknown
name is an error in both. A secret can also stand in a file that `<VARIABLE>_FILE` names. Lists are
separated by commas in the environment and are TOML arrays in the file.

Where a client keeps its logs is the client's own setting, which Recall follows; see
[sources](../sources.md). There also stands what a `[[source]]` table of `config.toml` holds.
"""

_HOME_DEFAULT = "`recall` in the user data directory, such as `~/.local/share/recall`"


def _default(value: object) -> str:
    if value is None or value == ():
        return "" if value is None else "empty"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def sources_page() -> str:
    """What each source reads and leaves out, as it says so itself."""
    from recall_ingester.exports import SOURCES
    from recall_ingester.sources import all_sources
    from recall_ingester.survey import checkpoint_kinds

    lines = ["# Sources in full", "", _MADE, _SOURCES_INTRODUCTION]
    lines += ["| checkpoint | |", "|---|---|"]
    lines += [f"| `{kind}` | {_cell(what)} |" for kind, what in checkpoint_kinds().items()]
    # An export says the same of itself as a source, by another protocol.
    known: list[Any] = [*sorted(all_sources().values(), key=lambda found: found.name), *SOURCES]
    for source in known:
        lines += ["", f"## `{source.name}`", "", f"{source.title}.", ""]
        lines += ["| file | is read as | checkpoint |", "|---|---|---|"]
        lines += [
            f"| {_patterns(item.pattern)} | {_cell(item.what)} | `{item.shape}` |"
            for item in source.reads
        ]
        if source.leaves_out:
            lines += ["", "| not stored as text | why |", "|---|---|"]
            lines += [
                f"| {_patterns(item.where)} | {_cell(item.why)} |" for item in source.leaves_out
            ]
    return "\n".join(lines) + "\n"


_SOURCES_INTRODUCTION = """\
`recall sources NAME` prints the same, with where it looked on this machine.
[Sources](../sources.md) says it in words.

A pattern with a slash or a file's suffix names files. Any other is a path of JSON keys in a
record: `*` is anything inside one key, `**` any number of keys, and `key=value` holds only where
the record has that value. What is left out as text is in the [original bytes](../restore.md) of
files that are read.
"""


def _patterns(where: str) -> str:
    return ", ".join(f"`{_cell(part)}`" for part in where.split(", "))


def metrics_page() -> str:
    """Every metric that ``/metrics`` can show."""
    from recall_api.metrics import Metrics

    lines = ["# Metrics", "", _MADE]
    lines += [
        "`GET /metrics` answers in the text format of Prometheus. No label ever holds content.",
        "[Operations](../operations.md) says what to look at, and has those of the embedder too.",
        "",
        "| metric | type | labels | |",
        "|---|---|---|---|",
    ]
    for family in Metrics(list).families():
        named = ", ".join(f"`{label}`" for label in family.labels)
        about = _cell(family.about)
        lines.append(f"| `{family.name}` | {family.kind} | {named} | {about} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "sources.md": sources_page,
}


def stale_pages() -> list[str]:
    """The pages that differ from what the code says."""
    stale = []
    for name, make in PAGES.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text("utf-8") != make():
            stale.append(name)
    return stale


def main() -> int:
    """Write the pages, or only compare them."""
    if sys.argv[1:] == ["--check"]:
        stale = stale_pages()
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is not up to date\n")
        if stale:
            sys.stderr.write("\nhint: run `make docs`\n")
        return 1 if stale else 0
    if sys.argv[1:]:
        sys.stderr.write(f"{__doc__}")
        return 2
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
