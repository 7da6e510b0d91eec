"""The whole life of an appliance in one run: `ops/appliance-test`.

Every step is timed. The first one that fails ends the run; what was started is removed in any case.
Exit code 0: everything held. 1: a step failed. 2: an engine or `recall` is missing here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the scripts are no package

from ops.appliance import logs
from ops.appliance.stack import (
    PROJECT,
    Failed,
    Machine,
    Stack,
    check,
    run,
    scratch_folder,
    wait_for,
)

HOST = "laptop-of-the-test"
_SECRETS = (
    "database_password", "authenticator_password", "api_password", "embedder_password",
    "jwt_secret",
)  # fmt: skip
_DROP = """
import os, psycopg
with open(os.environ["RECALL_DATABASE_URL_FILE"]) as file:
    psycopg.connect(file.read()).execute("drop table recall.message")
"""
_COUNTS = """
select json_build_object(
    'messages', (select count(*) from recall.message),
    'sessions', (select count(*) from recall.session),
    'vectors', (select count(*) from recall.passage),
    'original bytes', (select coalesce(sum(byte_length), 0) from recall.raw_segment),
    'hosts', (select count(*) from recall.host),
    'tokens', (select count(*) from recall.token),
    'texts', (select md5(string_agg(m.id::text || m.content, '' order by m.id))
        from recall.message m)
)
"""


@dataclass
class Run:
    """What the steps share. ``older`` is the tree of another version, to upgrade from."""

    stack: Stack
    machine: Machine
    older: Path | None = None
    expected: int = 0
    before: dict[str, Any] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)


def build_images(state: Run) -> str:
    """Images of this tree."""
    state.stack.compose("--profile", "client", "build", "--quiet", seconds=1_800)
    shown = "{{.Repository}} {{.Size}} {{.Tag}}"
    listed = run(["docker", "images", "--format", shown]).stdout.split("\n")
    sizes = sorted(line.rpartition(" ")[0] for line in listed if line.endswith(f" {PROJECT}"))
    return ", ".join(sizes)


def start_from_nothing(state: Run) -> str:
    """No volume, no `.env`; the first start says how a machine joins."""
    state.stack.up()
    told = state.stack.compose("logs", "--no-color", "setup").stdout
    check("docker compose exec api recall token create" in told, f"setup says only: {told}")
    return f"PostgREST: {'its double' if state.stack.uses_double else 'the real one'}"


def older_version(state: Run) -> str:
    """An appliance of the other tree, which a machine has joined and fed."""
    assert state.older
    with state.stack.of_tree(state.older):
        state.stack.compose("build", "--quiet", seconds=1_800)
        state.stack.up()
        join(state)
        stored = ingest_samples(state)
        state.before = json.loads(state.stack.sql(_COUNTS))
    return stored


def upgraded(state: Run) -> str:
    """`docker compose up` of this tree on its volumes; the machine goes on with its token."""
    build_images(state)
    state.stack.up()
    after = json.loads(state.stack.sql(_COUNTS))
    names = ("messages", "sessions", "hosts", "tokens", "texts")
    check(all(after[name] == state.before[name] for name in names), f"{state.before} -> {after}")
    summary = state.machine.ingest()
    check(summary["files_opened"] == 0, f"the machine sent again: {summary}")
    search_words(state)
    search_meaning(state)
    everything_is_well(state)
    secrets_stay_in_files(state)
    return least_rights(state)


def everything_is_well(state: Run) -> str:
    """Each service by its own health check, the one-shots by their exit code, and the API."""
    embedders = 0
    for container in state.stack.containers():
        name, health = container["Service"], container.get("Health", "")
        if name in ("setup", "migrate"):
            check(container["ExitCode"] == 0, f"{name} ended with {container['ExitCode']}")
            continue
        check(container["State"] == "running", f"{name} is {container['State']}")
        check(health == "healthy", f"{name} is {health or 'without a health check'}")
        embedders += name == "embedder"
    status, answer = state.stack.ask("/health")
    check(status == 200, f"/health: {answer}")
    return f"{embedders} embedder{'s' * (embedders > 1)}, API {', '.join(answer['components'])}"


def secrets_stay_in_files(state: Run) -> str:
    """They are neither in a variable, nor in an argument, nor in a log; and what is reached from
    outside has no password of the owner of the database."""
    own = "/run/recall/own"
    state.secrets = [
        state.stack.inside("backup", "cat", f"{own}/{name}").strip() for name in _SECRETS
    ]
    for service in ("api", "embedder"):
        seen = state.stack.inside(service, "find", "/run/recall", "-type", "f")
        held = state.stack.inside(service, "cat", *seen.split())
        check(state.secrets[0] not in held, f"{service} has the password of the owner")
        check(f"recall_{service}:" in held, f"{service} has no role of its own")
    check(all(len(secret) == 64 for secret in state.secrets), "a secret is too short")
    names = [container["Name"] for container in state.stack.containers()]
    inspected = run(["docker", "inspect", *names]).stdout
    logged = state.stack.compose("logs", "--no-color").stdout
    for name, secret in zip(_SECRETS, state.secrets, strict=True):
        check(secret not in inspected, f"{name} is in the description of a container")
        check(secret not in logged, f"{name} is in a log")
    users = state.stack.compose("ps", "--format", "{{.Service}}").stdout.split()
    for service in sorted({*users} - {"postgrest"}):
        check(state.stack.inside(service, "id", "-u").strip() != "0", f"{service} runs as root")
    return f"{len(names)} containers looked at"


def least_rights(state: Run) -> str:
    """API and embedder are connected as roles that own nothing; `recall doctor` is content."""
    found = state.stack.sql(
        "select string_agg(distinct usename, ' ' order by usename) from pg_stat_activity"
        " where application_name similar to 'recall (api|embedder)%'"
    )
    check(found == "recall_api recall_embedder", f"they are connected as {found}")
    for service in ("api", "embedder"):
        done = state.stack.compose("exec", "-T", service, "python", "-c", _DROP, codes=(1,))
        check("must be owner" in done.stderr, f"{service}: {done.stderr}")
    told = state.stack.inside("api", "recall", "doctor")
    check("the API of Recall answers" in told, f"doctor: {told}")
    return found


def only_the_api_is_reached(state: Run) -> str:
    """No other service has a published port, and writing needs a token."""
    for container in state.stack.containers():
        ports = [item for item in container.get("Publishers") or [] if item["PublishedPort"]]
        check(container["Service"] == "api" or not ports, f"{container['Service']}: {ports}")
    status, _ = state.stack.ask("/rest/incoming_session")
    check(status == 401, f"/rest without a token: {status}")
    return "401 without a token"


def join(state: Run) -> str:
    """With the line that the server prints, but for the address, which nothing is published on."""
    line = state.stack.inside("api", "recall", "token", "create", HOST).strip()
    found = re.fullmatch(r"recall join (http://\S+:(\d+)) (\S+)", line.split("\n")[-1])
    check(found, f"it printed: {line}")
    assert found
    check(int(found[2]) == state.stack.port, f"port {found[2]} is not the published one")
    state.machine.recall("join", state.stack.url, found[3])
    again = state.machine.recall("join", state.stack.url, found[3], codes=None)
    check(again.returncode != 0, "the code could be used twice")
    return f"`{found[1]}` was printed"


def ingest_samples(state: Run) -> str:
    """Every line of the two sessions is stored."""
    state.expected = logs.copy_samples(state.machine.logs)
    summary = state.machine.ingest()
    stored = int(state.stack.sql("select count(*) from recall.message"))
    check(stored == state.expected, f"{stored} messages of {state.expected}: {summary}")
    second = state.machine.ingest()
    check(second["files_opened"] == 0, f"a second pass opened files: {second}")
    return f"{stored} messages"


def search_words(state: Run) -> str:
    """By words, and a string as it is; on the machine and over HTTP."""
    hits = search(state, logs.WORDS, mode="text")
    check(any(logs.WORDS_FOUND in hit for hit in hits), f"not among {len(hits)} hits")
    hits = search(state, logs.CANARY, mode="exact")
    check(len(hits) == 1, f"the canary is found {len(hits)} times")
    told = json.loads(
        state.machine.recall("search", "--json", "--mode", "exact", logs.CANARY).stdout
    )
    check(told["hits"], "the machine itself does not find it")
    return "words, exact"


def search_meaning(state: Run) -> str:
    """What the embedder has seen is found by other words."""

    def found() -> bool:
        hits = search(state, logs.MEANING, mode="semantic")
        return any(logs.MEANING_FOUND in hit for hit in hits[:3])

    wait_for("a hit by meaning", 120, found)
    return f"`{logs.MEANING}`"


def scale_embedder(state: Run) -> str:
    """Two of them, both well."""
    state.stack.up("--scale", "embedder=2", "--no-recreate")
    return everything_is_well(state)


def restart_database(state: Run) -> str:
    """In the middle of a pass: the machine goes on by itself, or with its next pass."""
    state.expected += logs.make_many(state.machine.logs)
    count = "select count(*) from recall.message"
    begun = state.machine.begin_ingest()
    try:
        least = state.expected // 20
        wait_for("the pass", 120, lambda: int(state.stack.sql(count)) > least)
        between = int(state.stack.sql(count))
        state.stack.compose("restart", "db")
        check(begun.poll() is None, "the pass had ended before the database was down")
        code = begun.wait(300)
    finally:
        if begun.poll() is None:
            begun.kill()
    wait_for("the database", 60, lambda: stored(state))
    if code:
        state.machine.ingest()
    return f"with {between} of {state.expected} messages stored; the pass ended with {code}"


def stored(state: Run) -> int | None:
    """How many messages there are, once the database answers."""
    try:
        return int(state.stack.sql("select count(*) from recall.message"))
    except Failed:
        return None


def nothing_is_lost(state: Run) -> str:
    """Every message is there once, and of each file the first and last one are found."""
    there = int(state.stack.sql("select count(*) from recall.message"))
    check(there == state.expected, f"{there} messages, not {state.expected}")
    for file in range(logs.FILES):
        for message in (0, logs.MESSAGES - 1):
            text = logs.marker(file, message)
            hits = search(state, text, mode="exact")
            check(len(hits) == 1, f"`{text}` is found {len(hits)} times")
    summary = state.machine.ingest()
    check(summary["files_opened"] == 0, f"a pass afterwards opened files: {summary}")
    wait_for("the health of all", 120, lambda: is_well(state))
    return f"{there} messages, {2 * logs.FILES} searches"


def is_well(state: Run) -> bool:
    """Whether all services are."""
    try:
        return bool(everything_is_well(state))
    except Failed:
        return False


def embed_everything(state: Run) -> str:
    """Before the backup, so that what is compared does not grow."""
    waiting = "select count(*) from recall.embed_queue"
    dirty = "select count(*) from recall.embed_dirty"
    wait_for(
        "the last vector",
        600,
        lambda: state.stack.sql(waiting) == "0" and state.stack.sql(dirty) == "0",
    )
    working = state.stack.sql(
        "select count(*) from recall.worker_heartbeat where component like 'embed%'"
        " and beat_at > now() - interval '3 minutes'"
    )
    check(int(working) >= 2, f"{working} embedders beat")
    told = state.stack.inside("embedder", "recall", "reembed")
    check("already" in told, f"reembed: {told}")
    passages = state.stack.sql("select count(*) from recall.passage")
    return f"{passages} passages by {working}"


def back_up(state: Run) -> str:
    """A backup that is proven by a restore into a scratch database."""
    state.before = json.loads(state.stack.sql(_COUNTS))
    told = state.stack.inside("backup", "recall", "backup", "--verify", "--json")
    answer = json.loads(told)
    check(answer["proof"], "there is no proof")
    return f"{answer['bytes'] / 1e6:.1f} MB, proven"


def destroy(state: Run) -> str:
    """The volume of the database is gone; secrets and backups are not."""
    state.stack.compose("down", "--timeout", "30")
    run(["docker", "volume", "rm", f"{PROJECT}_database"])
    left = run(["docker", "volume", "ls", "--quiet", "--filter", f"name={PROJECT}"]).stdout
    return f"{len(left.split())} other volumes are left"


def restore(state: Run) -> str:
    """The newest backup, into an empty store that this starts; then everything else."""
    command = ("restore-backup", "latest", "--into-empty", "--yes", "--json")
    told = state.stack.compose("run", "--rm", "-T", "backup", "recall", *command).stdout
    answer = json.loads(told[told.index("{") :])
    check(answer["verified_before"], f"it is not the proven one: {answer}")
    state.stack.up()
    logged = state.stack.compose("logs", "--no-color", "setup").stdout
    check("are kept" in logged, f"new secrets were made: {logged}")
    return f"{answer['rows']} rows of {answer['tables']} tables"


def same_as_before(state: Run) -> str:
    """Counts, texts and the canary; the token of the machine still counts."""
    after = json.loads(state.stack.sql(_COUNTS))
    check(after == state.before, f"{after} is not {state.before}")
    search_words(state)
    search_meaning(state)
    summary = state.machine.ingest()
    check(summary["files_opened"] == 0, f"the machine sent again: {summary}")
    everything_is_well(state)
    return ", ".join(f"{count} {name}" for name, count in after.items() if name != "texts")


def join_by_image(state: Run) -> str:
    """A second machine with the same files, from the image of the client; both are kept apart."""
    line = state.stack.inside("api", "recall", "token", "create", "machine-in-a-container").strip()
    code = line.split(" ")[-1]
    client = ("run", "--rm", "-T", "client", "recall")
    state.stack.compose(*client, "join", state.stack.url, code)
    state.stack.compose(*client, "ingest", "--once")
    told = state.stack.sql(
        "select count(*), count(distinct s.host) from recall.message m"
        " join recall.session s using (session_key) where s.path like '%-home-me-ledger%'"
    )
    check(told == "12|2", f"messages and hosts of the session that both have: {told}")
    return "messages|hosts of the session that both have: 12|2"


def revoke(state: Run) -> str:
    """From the next request on, and it says what to do."""
    token = state.machine.token
    status, _ = state.stack.ask("/rest/incoming_session", token, limit="0")
    check(status == 200, f"{status} for a token that counts")
    state.stack.inside("api", "recall", "token", "revoke", HOST)
    status, answer = state.stack.ask("/rest/incoming_session", token, limit="0")
    check(status == 401, f"{status} for a revoked token: {answer}")
    (state.machine.logs / "-home-me-plant" / "late.jsonl").write_text("{}\n")
    done = state.machine.recall(
        "ingest", "--once", "--source", f"claude-code={state.machine.logs}", codes=None
    )
    check(done.returncode == 77, f"exit code {done.returncode}: {done.stderr}")
    check("hint" in done.stderr, f"no hint: {done.stderr}")
    return "401, exit code 77"


def refuse_lost_data(state: Run) -> str:
    """A server whose data is in a volume without a name is refused before anything is stored."""
    state.stack.compose("down", "--timeout", "30")
    state.stack.forget_volume()
    state.stack.compose("up", "--detach", "--wait", "db")
    done = state.stack.compose("run", "--rm", "-T", "--no-deps", "migrate", codes=None)
    check(done.returncode == 69, f"exit code {done.returncode}: {done.stderr}")
    said = [line for line in done.stderr.split("\n") if line.startswith("error:")]
    check(said and "volume without a name" in said[0], f"it said {done.stderr}")
    return said[0].removeprefix("error: ")


STEPS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("build the images", build_images),
    ("up from nothing", start_from_nothing),
    ("all services well", everything_is_well),
    ("secrets only in files", secrets_stay_in_files),
    ("least rights in the database", least_rights),
    ("only the API is reached", only_the_api_is_reached),
    ("join a machine", join),
    ("ingest the samples", ingest_samples),
    ("search by words", search_words),
    ("search by meaning", search_meaning),
    ("embedder scaled to 2", scale_embedder),
    ("database restarted in a pass", restart_database),
    ("nothing lost", nothing_is_lost),
    ("every text embedded", embed_everything),
    ("backup, proven", back_up),
    ("volume destroyed", destroy),
    ("restored", restore),
    ("same as before", same_as_before),
    ("a machine from the image", join_by_image),
    ("revoked token refused", revoke),
    ("data without a volume refused", refuse_lost_data),
)


#: Instead of the others, where there is a version to upgrade from.
UPGRADE: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("the other version", older_version),
    ("upgraded", upgraded),
    ("database restarted in a pass", restart_database),
    ("nothing lost", nothing_is_lost),
    ("embedder scaled to 2", scale_embedder),
    ("every text embedded", embed_everything),
    ("backup, proven", back_up),
)


def search(state: Run, text: str, *, mode: str) -> list[str]:
    """The texts of the hits."""
    status, answer = state.stack.ask("/search", q=text, mode=mode, limit="10")
    check(status == 200, f"/search: {status} {answer}")
    return [str(hit.get("snippet") or hit.get("text") or hit) for hit in answer["hits"]]


def main() -> int:
    """Run the steps, print the table, remove everything."""
    parser = argparse.ArgumentParser(prog="ops/appliance-test", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave what runs after a failure")
    parser.add_argument("--remove-images", action="store_true", help="remove the images as well")
    parser.add_argument(
        "--upgrade-from", type=Path, metavar="FOLDER", help="upgrade from the version there"
    )
    given = parser.parse_args()
    try:
        run(["docker", "info"])
        run(["docker", "compose", "version"])
    except Failed as error:
        sys.stderr.write(f"error: Docker with Compose v2 is needed: {error}\n")
        return 2
    if run([sys.executable, "-P", "-c", "import recall"], codes=None).returncode:
        sys.stderr.write(
            f"error: {sys.executable} has no `recall`\n\nhint: `make up` makes .venv\n"
        )
        return 2
    with scratch_folder() as folder:
        stack = Stack(Path(folder))
        stack.remove()  # what a run that was killed left
        stack.choose_postgrest()
        stack.pass_pip_on()
        machine = Machine(Path(folder) / "machine", sys.executable)
        failed = _run_steps(Run(stack, machine, older=given.upgrade_from))
        if failed and given.keep:
            return 1
        stack.remove()
        if given.remove_images:
            stack.remove_images()
    return 1 if failed else 0


def _run_steps(state: Run) -> bool:
    began = time.monotonic()
    steps = UPGRADE if state.older else STEPS
    _say(f"{'step':<31}{'seconds':>8}  result")
    for name, step in steps:
        started = time.monotonic()
        try:
            told, problem = step(state), None
        except Failed as error:
            told, problem = "", error
        except (ValueError, KeyError, TypeError, OSError) as error:  # an answer of another form
            told, problem = "", Failed(f"{type(error).__name__}: {error}")
        seconds = time.monotonic() - started
        _say(f"{name:<31}{seconds:>8.1f}  {f'FAILED: {problem}' if problem else told}")
        if problem:
            _say(f"\nthe last words of the services:\n{state.stack.tail()}")
            return True
    _say(f"{'all':<31}{time.monotonic() - began:>8.1f}  {len(steps)} steps")
    return False


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
