"""Dashboard and documentation name metrics that the running server really has."""

import json
import re

import httpx
import pytest

from server_process import ROOT

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "and", "or", "unless"}


def expressions(node):
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"]
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def parts_of(expression):
    """(metric names, label names) of a PromQL expression."""
    labels = set()
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression):
        labels |= set(NAME.findall(group))
    for group in re.findall(r"\{([^}]*)\}", expression):
        labels |= set(re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", group))
    bare = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    names = {found[0] for found in re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()(?![a-zA-Z0-9_:])", bare)}
    return names - KEYWORDS, labels


@pytest.fixture(scope="module")
def metrics(server, client, model):
    """(names that can be asked for, name -> label names) after some requests."""
    client.completions.create(model=model, prompt="a b c", max_tokens=3)
    names, labels = set(), {}
    for line in httpx.get(server.url + "/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        elif not line.startswith("#"):
            name = NAME.match(line)[0]
            labels.setdefault(name, set()).update(re.findall(r'([a-zA-Z_]\w*)="', line))
    return names, labels


DASHBOARDS = ["grafana_dashboard", "cluster_dashboard"]


def dashboard(name):
    return json.loads((ROOT / "deploy" / "monitoring" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_asks_for_metrics_that_exist(metrics, name):
    """Those of HAProxy: tests/deploy."""
    names, labels = metrics
    asked = [expression for expression in expressions(dashboard(name)) if "haproxy_" not in expression]
    assert len(asked) > 12
    if not any(metric.startswith("droidspeak_link_") for metric in names):  # a build without tiers that have links
        asked = [expression for expression in asked if "droidspeak_link_" not in expression]
    for expression in asked:
        used, grouped = parts_of(expression)
        assert used and used <= names, f"{expression}: no such metric {used - names}"
        for metric in used & set(labels):  # metrics without samples yet show no labels; Prometheus adds the instance
            assert grouped <= labels[metric] | {"le", "instance"}, f"{expression}: {metric} has labels {labels[metric]}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_panels_are_complete(name):
    panels = [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"] and panel["targets"] and panel["gridPos"]


def test_documented_metrics_exist(metrics):
    names, _ = metrics
    section = (ROOT / "docs" / "http_api.md").read_text().split("## Metrics")[1]
    documented = {name.split("{")[0] for name in re.findall(r"`((?:vllm:|droidspeak_)[^`*]+)`", section)}
    assert len(documented) > 20
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} | names
    assert documented <= bases, documented - bases


def test_vllms_metrics_say_model_and_engine(metrics):
    _, labels = metrics
    known = {name: found for name, found in labels.items() if name.startswith("vllm:")}
    assert len(known) > 10 and all({"model_name", "engine"} <= found for found in known.values()), known
