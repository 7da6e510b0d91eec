"""What a service manager is given, so that it reads the session logs every few minutes.

The files of this folder are templates. The same text stands in ``ops/``, to be read before it is
installed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, every how many minutes, and the home that it works for.

    ``home`` is ``None`` for the usual one. A token is in no plan: the pass finds it in the home.
    """

    command: tuple[str, ...]
    minutes: int
    home: str | None = None

    def __post_init__(self) -> None:
        if not (0 < self.minutes < 60 or (self.minutes % 60 == 0 and 60 <= self.minutes <= 1440)):
            raise ValueError("must be 1 to 59 minutes, or whole hours up to 1440 minutes")
        for text in (*self.command, self.home or ""):
            if re.search(r"[\x00-\x1f\x7f]", text):
                raise ValueError("cannot work with a path that has a control character")

    @property
    def every(self) -> str:
        """The interval in words."""
        hours, minutes = divmod(self.minutes, 60)
        count, unit = (hours, "hour") if hours else (minutes, "minute")
        return unit if count == 1 else f"{count} {unit}s"


def systemd_service(plan: Plan) -> str:
    """``recall-ingest.service``."""
    environment = f"Environment={_systemd_word(f'RECALL_HOME={plan.home}')}" if plan.home else None
    command = " ".join(_systemd_word(word).replace("$", "$$") for word in plan.command)
    return _filled("recall-ingest.service", COMMAND=command, ENVIRONMENT=environment)


def systemd_timer(plan: Plan) -> str:
    """``recall-ingest.timer``."""
    return _filled("recall-ingest.timer", EVERY=plan.every, CALENDAR=_calendar(plan.minutes))


def launchd_plist(plan: Plan, log: str) -> str:
    """``recall.ingest.plist``."""
    command = "\n".join(f"\t\t<string>{escape(word)}</string>" for word in plan.command)
    environment = (
        "\t<key>EnvironmentVariables</key>\n\t<dict>\n\t\t<key>RECALL_HOME</key>\n"
        f"\t\t<string>{escape(plan.home)}</string>\n\t</dict>"
        if plan.home
        else None
    )
    return _filled(
        "recall.ingest.plist",
        COMMAND=command,
        ENVIRONMENT=environment,
        SECONDS=str(plan.minutes * 60),
        LOG=escape(log),
    )


def windows_task(plan: Plan) -> str:
    """``recall-ingest.xml``. It has no XML declaration, so that it is right in UTF-16 as well.

    A task has the environment of its account and nothing else, so it has no home.
    """
    hours, minutes = divmod(plan.minutes, 60)
    return _filled(
        "recall-ingest.xml",
        INTERVAL=f"PT{hours}H" if hours else f"PT{minutes}M",
        PROGRAM=escape(plan.command[0]),
        ARGUMENTS=escape(subprocess.list2cmdline(plan.command[1:])),
    )


def crontab_line(plan: Plan) -> str:
    """The same for a machine without a service manager of the user."""
    hours, minutes = divmod(plan.minutes, 60)
    when = f"*/{minutes} * * * *" if minutes else f"0 */{hours} * * *" if hours < 24 else "@daily"
    home = f"RECALL_HOME={shlex.quote(plan.home)} " if plan.home else ""
    # a bare % is a line end for cron
    command = f"{home}{shlex.join(plan.command)} >/dev/null".replace("%", "\\%")
    return f"{when} {command}"


def _filled(name: str, **values: str | None) -> str:
    """A template with its ``@NAMES@`` filled; a line whose value is ``None`` is left out."""
    lines = []
    for line in (resources.files(__name__) / name).read_text("utf-8").split("\n"):
        found = re.findall(r"@([A-Z]+)@", line)
        if all(values[key] is not None for key in found):
            lines.append(re.sub(r"@([A-Z]+)@", lambda match: values[match[1]] or "", line))
    return "\n".join(lines)


def _systemd_word(text: str) -> str:
    """One word of a unit file. ``%`` begins a specifier; quotes are needed for a space only."""
    word = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return word if re.fullmatch(r"[A-Za-z0-9@%+=:,./_$-]+", word) else f'"{word}"'


def _calendar(minutes: int) -> str:
    if minutes < 60:
        return f"*:0/{minutes}"
    return f"0/{minutes // 60}:00" if minutes < 1440 else "00:00"


def argument_list(python: str, windows: bool = False) -> Sequence[str]:
    """The command of one pass. ``-P`` keeps the folder in which it starts out of the module path;
    on Windows the program without a window is taken."""
    if windows:
        python = re.sub(r"(?i)python\.exe$", "pythonw.exe", python)
    return (python, "-P", "-m", "recall", "ingest", "--once")
