"""The server that a home has joined, and which settings it fills."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from recall.config import Settings, load_settings
from recall.errors import ConfigError
from recall.joined import (
    Joined,
    forget_joined,
    joined_path,
    next_install_id,
    read_joined,
    write_joined,
)

JOINED = Joined("https://recall.example", "laptop", "joined-token")


@pytest.fixture
def joined_home(home: Path) -> Path:
    write_joined(home, JOINED)
    return home


def load(home: Path, **env: str) -> Settings:
    return load_settings({"RECALL_HOME": str(home)} | env)


def server_of(settings: Settings) -> tuple[str | None, str | None]:
    return settings.url, settings.token


def test_it_is_kept_for_its_owner_alone(joined_home: Path) -> None:
    assert read_joined(joined_home) == JOINED
    assert stat.S_IMODE(joined_path(joined_home).stat().st_mode) == 0o600
    assert [path.name for path in joined_home.iterdir()] == ["joined.json"]


def test_it_is_forgotten(joined_home: Path) -> None:
    assert forget_joined(joined_home)
    assert read_joined(joined_home) is None
    assert not forget_joined(joined_home)


def test_a_joined_home_asks_its_server(joined_home: Path) -> None:
    assert server_of(load(joined_home)) == (JOINED.url, JOINED.token)


def test_a_home_without_server_asks_none(home: Path) -> None:
    assert server_of(load(home)) == (None, None)


def test_a_token_of_ones_own_wins(joined_home: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("own\n")
    settings = load(joined_home, RECALL_TOKEN_FILE=str(tmp_path / "token"))
    assert server_of(settings) == (JOINED.url, "own")


@pytest.mark.parametrize("url", ["https://other.example", "http://recall.example", ""])
def test_another_server_never_gets_the_token(url: str, joined_home: Path) -> None:
    assert server_of(load(joined_home, RECALL_URL=url)) == (url or None, None)
    (joined_home / "config.toml").write_text(f'url = "{url}"\n')
    assert server_of(load(joined_home)) == (url or None, None)


def test_the_same_server_by_another_name_of_its_root_gets_it(joined_home: Path) -> None:
    assert server_of(load(joined_home, RECALL_URL=f"{JOINED.url}/")) == (JOINED.url, JOINED.token)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": "x", "host": "y", "token": ""}'])
def test_a_damaged_file_is_told_and_not_read_as_none(text: str, joined_home: Path) -> None:
    joined_path(joined_home).write_text(text)
    with pytest.raises(ConfigError) as error:
        load(joined_home)
    assert "recall leave" in str(error.value.hint)


def test_the_token_is_not_shown(joined_home: Path) -> None:
    assert "joined-token" not in repr(read_joined(joined_home))


def test_the_id_to_join_with_stays_until_the_home_has_joined(home: Path) -> None:
    first = next_install_id(home)
    assert next_install_id(home) == first
    write_joined(home, JOINED)
    assert [path.name for path in home.iterdir()] == ["joined.json"]
    (home / "joining.json").write_text(json.dumps({"install_id": "no uuid"}))
    assert next_install_id(home) not in {first, "no uuid"}
