"""The dashboard and the alert rules ask only for what a real server exposes, in words that Prometheus can read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.admin.scene import SCENE, admin, play
from tests.integration.server.harness import failure

DOCS = Path(__file__).resolve().parents[2] / "docs"
SELECTOR = re.compile(r"\b((?:tidegate|process)_\w+)(?:\{([^}]*)\})?")
FROM_PROMETHEUS = {"instance", "job", "le"}
CODE = re.compile(r"`(tidegate_\w+)`")


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text())
    return board


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            plain = target["expr"].replace("$__rate_interval", "5m").replace('"$instance"', '".*"')
            yield panel["title"], plain.replace('"$route"', '".*"')


async def exposition(tmp_path: Path) -> dict[str, set[str]]:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        await failure(http.served.admit("nobody-knows-it"))
        text = (await http.get("/metrics")).text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
        if not family.samples:
            labels.setdefault(f"{family.name}_total", set())
    return labels


async def test_every_metric_and_label_that_is_asked_for_exists(tmp_path: Path) -> None:
    exposed = await exposition(tmp_path)
    unfinished = {"tidegate_selections_total": {"outcome"}}  # nobody has selected anything in the scene
    asked = 0
    for where, expression in expressions():
        for name, selectors in SELECTOR.findall(expression):
            asked += 1
            assert name in exposed, f"{where}: nothing exposes {name}"
            known = exposed[name] | unfinished.get(name, set()) | FROM_PROMETHEUS
            wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors))
            assert wanted <= known, f"{where}: {name} has no {wanted - known}"
        labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        every = set().union(*(exposed[name] | unfinished.get(name, set()) for name, _ in SELECTOR.findall(expression)))
        assert labels <= every | FROM_PROMETHEUS, f"{where}: groups by {labels - every}"
    assert asked > 40


async def test_every_metric_of_ours_is_on_the_dashboard_or_in_an_alert(tmp_path: Path) -> None:
    asked = {name for _, expression in expressions() for name, _ in SELECTOR.findall(expression)}
    for name in await exposition(tmp_path):
        if name.startswith("tidegate_") and not name.endswith(("_count", "_sum", "_created")):
            assert name in asked, f"nobody looks at {name}"


async def test_every_metric_is_documented_and_no_other(tmp_path: Path) -> None:
    documented = set(CODE.findall((DOCS / "operations.md").read_text()))
    exposed = {re.sub(r"_(bucket|count|sum)$", "", name) for name in await exposition(tmp_path)}
    assert documented == {name for name in exposed if name.startswith("tidegate_")}


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_prometheus_can_read_it(where: str, expression: str) -> None:
    promql_parser.parse(expression)


def test_an_expression_with_a_slip_is_found() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (route (tidegate_decisions_total)")


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    guide = (DOCS / "operations.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        assert f"`{rule['alert']}`" in guide, f"docs/operations.md does not speak of {rule['alert']}"
        expression = rule["expr"]
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            aggregated = re.search(r"\b(?:sum|min|max|count)\b", expression)
            assert not aggregated or label in " ".join(re.findall(r"by \(([^)]*)\)", expression)), (rule, label)


def test_panels_have_places_of_their_own_and_variables_that_exist() -> None:
    board = dashboard()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}
    assert used <= variables
