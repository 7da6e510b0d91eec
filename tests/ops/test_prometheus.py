"""Alerts, scrapes and the documentation of the metrics, beside what is really exposed."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recall_api.metrics import Metrics
from tests.ops.exposition import Exposition, Shown

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
#: What Prometheus makes itself.
_ITS_OWN = frozenset({"up"})


def promtool(*arguments: str, folder: Path, text: str = "") -> None:
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=folder,
        input=text,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_yaml(path: Path) -> Any:
    yaml = importlib.import_module("yaml")  # comes with the server part and has no types
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.fixture(scope="session")
def rules(root: Path) -> list[dict[str, Any]]:
    groups = read_yaml(root / "ops/prometheus/alerts.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


# The metrics


@needs_promtool
@pytest.mark.parametrize("process", ["api", "embedder"])
def test_promtool_accepts_the_metrics(exposition: Exposition, process: str, tmp_path: Path) -> None:
    promtool("check", "metrics", folder=tmp_path, text=getattr(exposition, process))


def test_the_api_shows_every_metric_that_it_says_it_has(exposition: Exposition) -> None:
    expected = {
        family.name: Shown(family.kind, family.about, frozenset(family.labels))
        for family in Metrics(list).families()
    }
    assert exposition.metrics(exposition.api) == expected


_ROW = re.compile(r"\| `(recall_[a-z_]+)` \| ([a-z]+) \|([^|]*)\| ([^|]+) \|")


@pytest.mark.parametrize(
    ("process", "heading"), [("api", "Of the API"), ("embedder", "Of an embedder")]
)
def test_the_table_in_the_documentation_is_what_is_exposed(
    exposition: Exposition, root: Path, process: str, heading: str
) -> None:
    text = (root / "docs/operations.md").read_text("utf-8")
    section = text.partition(f"### {heading}\n")[2].partition("\n#")[0]
    documented = {
        name: Shown(kind, about, frozenset(re.findall("`([a-z]+)`", labels)))
        for name, kind, labels, about in _ROW.findall(section)
    }
    assert documented == exposition.metrics(getattr(exposition, process))


# Alerts


@needs_promtool
def test_alerts_fire_when_they_should(root: Path) -> None:
    promtool("test", "rules", "alerts_test.yml", folder=root / "ops/prometheus")


@needs_promtool
def test_the_configuration_is_valid(root: Path) -> None:
    promtool("check", "config", "prometheus.yml", folder=root / "ops/prometheus")


def test_each_alert_is_tested_to_fire_and_not_to_fire(
    root: Path, rules: list[dict[str, Any]]
) -> None:
    fires: Counter[str] = Counter()
    rests: Counter[str] = Counter()
    for case in read_yaml(root / "ops/prometheus/alerts_test.yml")["tests"]:
        for check in case["alert_rule_test"]:
            (fires if check["exp_alerts"] else rests)[check["alertname"]] += 1
    alerts = {rule["alert"] for rule in rules}
    assert set(fires) == set(rests) == alerts


def test_each_alert_has_a_severity_and_a_runbook(root: Path, rules: list[dict[str, Any]]) -> None:
    page = (root / "docs/operations.md").read_text("utf-8")
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert f"\n### {rule['alert']}\n" in page
    headings = re.findall(r"^### (Recall\w+)$", page, re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules]


_METRIC = re.compile(r"\b(recall_[a-z_]+|up)\b")


def test_alerts_ask_only_for_what_is_exposed(
    exposition: Exposition, rules: list[dict[str, Any]]
) -> None:
    asked = {name for rule in rules for name in _METRIC.findall(rule["expr"])}
    assert len(asked) > 15
    assert asked <= exposition.series() | _ITS_OWN
