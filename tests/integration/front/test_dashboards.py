"""Dashboard and alert rules read what a front has: series, labels, values, checked against a scrape of one."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from horde.oai.cancel import CancelOutcome
from horde.oai.errors import FrontCode
from horde.oai.horde_client import CallOutcome, CallType
from scripts.generate_docs import front_families
from tests.integration.front.test_metrics_endpoint import scrape, scraped_front
from tests.support.promql import readings

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD: dict[str, Any] = orjson.loads((ROOT / "deploy" / "grafana" / "horde_front.json").read_bytes())
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "front_alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
EXPRESSIONS = QUERIES | {rule["alert"]: rule["expr"] for rule in ALERTS}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that every scraped series has."""
VALUES = {
    "horde_code": {str(code) for code in FrontCode},
    "horde_outcome": {*(outcome.value for outcome in CallOutcome), *(outcome.value for outcome in CancelOutcome)},
    "horde_call_type": {kind.value for kind in CallType},
    "horde_estimated_usage": {"true", "false"},
}


def plain(expression: str) -> str:
    """Return a query of the dashboard with Grafana's variables filled in."""
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".*")


def labels_by_series() -> dict[str, set[str]]:
    """Return the labels of each series that a front which has used every instrument shows."""
    return {
        family.name + suffix: {label for sample in family.samples for label in sample.labels} | OF_PROMETHEUS
        for family in front_families()
        for suffix in SUFFIXES[family.type]
    }


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_reads_series_labels_and_values_that_exist(name: str) -> None:
    known = labels_by_series()
    found = readings(plain(EXPRESSIONS[name]))
    assert found
    for reading in found:
        if reading.name.startswith("process_"):
            assert reading.labels <= OF_PROMETHEUS
            continue
        assert reading.labels <= known[reading.name]
        for label, value in reading.values:
            assert label in OF_PROMETHEUS or value in VALUES[label]


async def test_a_scraped_front_has_the_series_that_expressions_read() -> None:
    async with scraped_front() as (session, _, endpoint):
        found = await scrape(session, endpoint)
    scraped = {sample.name for family in found.values() for sample in family.samples}
    read = {reading.name for expression in EXPRESSIONS.values() for reading in readings(plain(expression))}
    # What a front that only delivered has not seen: it is in the table of all instruments, which the test above reads.
    unseen = {"horde_oai_requests_refused_total", "horde_oai_completions_empty_total"}
    assert read - scraped == unseen
    of_the_front = {name for name in scraped if name.startswith("horde_")}
    assert of_the_front <= labels_by_series().keys()


def test_the_dashboard_shows_every_metric_of_the_front() -> None:
    read = {reading.name for expression in QUERIES.values() for reading in readings(plain(expression))}
    missing = [
        family.name
        for family in front_families()
        if not {family.name + suffix for suffix in SUFFIXES[family.type]} & read
    ]
    assert missing == []


def test_panels_have_ids_of_their_own_and_none_covers_another() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & covered
        covered |= cells


def test_every_alert_is_told_to_operators_with_what_to_do() -> None:
    page = (ROOT / "docs" / "how-to" / "run_openai_chat_front.md").read_text()
    section = page.partition("\n## What to alert on\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in {"critical", "warning"}
