"""Settings of the ledger, the memories, the original bytes and the declared sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from recall.config import Settings, load_settings, options
from recall.declared import DeclaredSource
from recall.errors import ConfigError

TABLE = """
[[source]]
name = "mine"
paths = "~/.mine/*.jsonl"
text = ["message.parts[*].text", "text"]
"""


def load(home: Path, toml: str = "", **env: str) -> Settings:
    (home / "config.toml").write_text(toml)
    return load_settings({"RECALL_HOME": str(home)} | env)


def refused(home: Path, toml: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(home, toml)
    assert error.value.hint
    return error.value.message


def test_ledger_from_the_environment(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        RECALL_LEDGER_PATH="/data/work.db",
        RECALL_LEDGER_TABLE="sessions",
        RECALL_LEDGER_COLUMNS="summary = did, title=",
    )
    assert settings.ledger_path == Path("/data/work.db")
    assert settings.ledger_table == "sessions"
    assert settings.ledger_columns == ("summary=did", "title=")


def test_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path, RECALL_LEDGER_PATH="")
    assert (settings.ledger_path, settings.ledger_columns) == (None, ())
    assert settings.memory_paths == ()
    assert settings.keep_raw is True
    assert settings.max_document_bytes == 128 << 20
    assert settings.reconcile_every_hours == 24
    assert settings.declared_sources == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("did", "`role=column`"),
        ("cost=usd", "id, session, time, project, title, summary"),
        ("id=", "`id`"),
        ("title=a,title=b", "once"),
    ],
)
def test_columns_that_make_no_sense_are_refused(tmp_path: Path, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match="RECALL_LEDGER_COLUMNS") as error:
        load(tmp_path, RECALL_LEDGER_COLUMNS=value)
    assert said in error.value.message


def test_memory_paths_are_a_list(tmp_path: Path) -> None:
    settings = load(tmp_path, 'memory_paths = ["~/notes", "/data/m.json"]')
    assert settings.memory_paths == (Path.home() / "notes", Path("/data/m.json"))
    assert load(tmp_path, RECALL_MEMORY_PATHS="/a, /b").memory_paths == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_DOCUMENT_BYTES", "1048575"), ("MAX_DOCUMENT_BYTES", "4294967297"),
     ("RECONCILE_EVERY_HOURS", "0"), ("RECONCILE_EVERY_HOURS", "8761"), ("KEEP_RAW", "perhaps")],
)  # fmt: skip
def test_values_out_of_range_are_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load(tmp_path, **{f"RECALL_{name}": value})


def test_declared_source_with_little(tmp_path: Path) -> None:
    (source,) = load(tmp_path, TABLE).declared_sources
    assert source == DeclaredSource(
        "mine", ("~/.mine/*.jsonl",), ("message.parts[*].text", "text")
    )  # fmt: skip


def test_declared_source_with_everything(tmp_path: Path) -> None:
    more = """
session = "meta.id"
role = "from"
time = "at"
project = "cwd"
branch = "git[0].branch"
model = "model"
tool = "tool.name"
title = "title"
kind = "type"
roles = { human = "user" }
kinds = { thought = "thinking" }
default_role = "assistant"
skip = { type = ["ping", "pong"], debug = true }
only = { message.visible = true, "a.b" = 1 }
"""
    (source,) = load(tmp_path, TABLE + more).declared_sources
    assert source.branch == ("git[0].branch",)
    assert source.roles == {"human": "user"}
    assert source.kinds == {"thought": "thinking"}
    assert source.skip == {"type": ("ping", "pong"), "debug": (True,)}
    assert source.only == {"message.visible": (True,), "a.b": (1,)}


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (TABLE + 'colour = "red"', "has the unknown key `colour`"),
        ('[[source]]\nname = "a"\ntext = "t"', "has no `paths`"),
        ('[[source]]\nname = "a"\npaths = []\ntext = "t"', "has no `paths`"),
        ('[[source]]\npaths = "/a"\ntext = "t"', "has no `name`"),
        ('[[source]]\nname = "a"\npaths = "/a"', "has no `text`"),
        (TABLE.replace("mine", "Mine"), "has a `name` that is not made of a-z, 0-9 and -"),
        (TABLE.replace("mine", "my_agent"), "has a `name` that is not made of a-z, 0-9 and -"),
        (TABLE + TABLE, "has the name `mine` of another one"),
        (TABLE.replace('"~/', '"'), "give it from `/` or `~/` on"),
        (TABLE.replace("~/", "~/../"), "without `..`"),
        (TABLE.replace("parts[*]", "parts[x]"), "`a.b[0].c[*]`"),
        (TABLE.replace('"text"]', '"a..b"]'), "`a.b[0].c[*]`"),
        (TABLE + "session = 5", "has a `session` that is neither a text nor a list of texts"),
        (TABLE + 'roles = { human = "person" }', "for `human` none of user, assistant"),
        (TABLE + 'kinds = "text"', "is not a table"),
        (TABLE + 'default_role = "robot"', "is not one of user, assistant, tool, system"),
        (TABLE + "skip = { type = [] }", "has for `type` no text, number or truth value"),
        (TABLE + "only = { type = 2026-03-02 }", "has for `type` no text, number or truth value"),
        ('source = "a"', "is not a list of tables"),
    ],
)
def test_mistakes_in_a_declared_source_are_named(tmp_path: Path, toml: str, said: str) -> None:
    message = refused(tmp_path, toml)
    assert said in message
    assert str(tmp_path / "config.toml") in message


def test_declared_sources_are_no_option(tmp_path: Path) -> None:
    names = {option.name for option in options()}
    assert "declared_sources" not in names
    assert {"ledger_path", "ledger_table", "ledger_columns", "memory_paths", "keep_raw"} <= names
    with pytest.raises(ConfigError, match="unknown setting `RECALL_DECLARED_SOURCES`"):
        load(tmp_path, RECALL_DECLARED_SOURCES="x")
    assert "declared_sources" in refused(tmp_path, "declared_sources = []")
