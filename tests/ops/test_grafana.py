"""The dashboard: its structure, and every query of it against what is really exposed."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ops.exposition import Exposition

_WIDTH = 24
#: What Prometheus makes itself.
_ITS_OWN = frozenset({"ALERTS"})


@pytest.fixture(scope="session")
def dashboard(root: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(
        (root / "ops/grafana/dashboards/recall.json").read_text("utf-8")
    )
    return read


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_panels_have_ids_titles_and_queries_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        assert panel["title"]
        assert panel["type"] in {"row", "stat", "timeseries", "table"}
        assert (panel["type"] == "row") == ("targets" not in panel)
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= _WIDTH
        for cell in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, (panel["title"], taken[cell])
            taken[cell] = panel["title"]
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)
    rows = {y for _, y in taken}
    assert len(taken) == _WIDTH * len(rows), "there is a hole"


def test_the_first_row_is_a_set_of_traffic_lights(dashboard: dict[str, Any]) -> None:
    title, *lights = dashboard["panels"][:9]
    assert title["title"] == "Is everything arriving, is search fast, will the disk last?"
    assert {light["type"] for light in lights} == {"stat"}
    assert {light["gridPos"]["y"] for light in lights} == {1}
    for light in lights:
        defaults = light["fieldConfig"]["defaults"]
        steps = defaults["thresholds"]["steps"]
        assert defaults["color"]["mode"] == "thresholds"
        assert light["options"]["colorMode"] == "background"
        assert steps[0]["value"] is None
        levels = [step["value"] for step in steps[1:]]
        assert levels == sorted(levels)
        assert {"green", "red"} <= {step["color"] for step in steps}
        assert light["description"]


def test_every_query_asks_for_what_is_exposed(
    dashboard: dict[str, Any], exposition: Exposition
) -> None:
    known = exposition.series() | _ITS_OWN
    asked = set()
    for title, expression in queries(dashboard):
        names = set(re.findall(r"\b(recall_[a-z_]+|[a-z]+_db_[a-z_]+|ALERTS)\b", expression))
        assert names, title
        assert names <= known, title
        asked |= names
    assert len(asked) > 25


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_every_query_is_valid(dashboard: dict[str, Any], tmp_path: Path) -> None:
    rules = [
        {"record": f"query_{number}", "expr": expression}
        for number, (_, expression) in enumerate(queries(dashboard))
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_finds_its_data_source(root: Path, dashboard: dict[str, Any]) -> None:
    yaml = importlib.import_module("yaml")  # comes with the server part and has no types
    provisioning = root / "ops/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text("utf-8"))[
        "datasources"
    ]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    used = {
        json.dumps(item["datasource"])
        for panel in dashboard["panels"]
        for item in (panel, *panel.get("targets", ()))
        if panel["type"] != "row"
    }
    assert used == {json.dumps({"type": "prometheus", "uid": source["uid"]})}
    (provider,) = yaml.safe_load((provisioning / "dashboards/recall.yml").read_text("utf-8"))[
        "providers"
    ]
    assert provider["type"] == "file"
    assert provider["options"]["path"]
