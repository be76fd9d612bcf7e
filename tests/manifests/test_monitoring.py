"""Test alerts, dashboard and PodMonitors: they use existing metrics, have runbooks, and fire correctly."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import find_free_port, skip_missing
from tests.manifests.kustomize import MANIFESTS, of_kind, overlay, selects
from tests.manifests.test_manifests import runtime_pod

HERE = MANIFESTS / "components" / "monitoring"
OTHERS = {"up", "kube_pod_status_phase", "kueue_pending_workloads"}
"""Metrics of Prometheus, kube-state-metrics, and Kueue (https://kueue.sigs.k8s.io/docs/reference/metrics/)."""
LOADER = {f"gumshoe_adapter_loader_{each}" for each in ("ready", "loads_total", "load_seconds", "failures_total")}


def rules() -> dict[str, Any]:
    groups = of_kind(overlay("prod"), "PrometheusRule")["gumshoe-training"]["spec"]["groups"]
    return {each["alert"]: each for group in groups for each in group["rules"]}


@pytest.fixture
def promtool(tmp_path: Path) -> str:
    """Write the alerts to `rules.yaml`, and return the path of promtool."""
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump(of_kind(overlay("prod"), "PrometheusRule")["gumshoe-training"]["spec"])
    )
    return shutil.which("promtool") or skip_missing("promtool (of the Debian package prometheus)")


def test_alerts_are_valid_and_have_runbooks(promtool: str, tmp_path: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    headings = {each.lower() for each in re.findall(r"^## (\w+)", (HERE / "RUNBOOKS.md").read_text(), re.M)}
    assert {each["annotations"]["runbook_url"].rpartition("#")[2] for each in rules().values()} == headings
    assert {name.lower() for name in rules()} == headings
    (place,) = {each["annotations"]["runbook_url"].partition("#")[0] for each in rules().values()}
    assert place.endswith("/manifests/components/monitoring/RUNBOOKS.md")


def test_alerts_and_dashboard_use_exported_metrics() -> None:
    from gumshoe.training.metrics_exporter import MetricsExporter
    from tests.training.test_metrics_exporter import scrape
    from tests.training.test_records import evaluation, step

    board = json.loads((HERE / "dashboard.json").read_text())
    assert (
        json.loads(of_kind(overlay("prod"), "ConfigMap")["gumshoe-training-dashboard"]["data"]["gumshoe-training.json"])
        == board
    )
    queries = [each["expr"] for each in rules().values()]
    queries += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in board["templating"]["list"]]
    text = re.sub(r'"[^"]*"|\{\{|by \([^)]*\)', "", " ".join(queries))
    named = set(re.findall(r"\b(?:gumshoe_|vllm:|kube_|kueue_|up\b)\w*", text))
    with MetricsExporter(find_free_port(), 3, [step(1), evaluation(1)]) as exporter:
        trainer = {name.partition(":")[0] for name in scrape(exporter.port)}
    assert {each for each in named if each.startswith("gumshoe_")} <= trainer | LOADER
    assert {each for each in named if not each.startswith(("gumshoe_", "vllm:"))} <= OTHERS
    where = find_spec("vllm")
    if where is None or where.origin is None:
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    loggers = (Path(str(where.origin)).parent / "v1" / "metrics" / "loggers.py").read_text()
    assert all(f'"{each.removesuffix("_total")}"' in loggers for each in named if each.startswith("vllm:"))


def test_panels_do_not_overlap() -> None:
    panels = json.loads((HERE / "dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for place in (each["gridPos"] for each in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24, "Grafana has 24 columns"
    assert len({each["id"] for each in panels}) == len(panels)


def test_prometheus_scrapes_only_the_first_trainer() -> None:
    objects = overlay("prod")
    pod = runtime_pod(objects)
    first = {**pod["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": "0"}
    monitor = of_kind(objects, "PodMonitor")["gumshoe-trainer"]["spec"]
    assert selects(monitor["selector"], first)
    assert not selects(monitor["selector"], {**first, "batch.kubernetes.io/job-completion-index": "1"})
    ports = {each["name"] for container in pod["spec"]["containers"] for each in container["ports"]}
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} <= ports
    policy = of_kind(objects, "NetworkPolicy")["gumshoe-prometheus"]["spec"]
    assert selects(policy["podSelector"], first)
    scraped = {
        each["port"] for each in of_kind(objects, "PodMonitor").values() for each in each["spec"]["podMetricsEndpoints"]
    }
    assert {each["port"] for each in policy["ingress"][0]["ports"]} == scraped


TRAINER = 'job="gumshoe/gumshoe-trainer",namespace="gumshoe",pod="node-0",training="t1"'
ROLLOUT = 'job="gumshoe/gumshoe-rollout",namespace="gumshoe",pod="rollout-0",training="t1"'


ALERTS: list[tuple[str, dict[str, str], dict[str, str], str]] = [
    ("GumshoeTrainerSilent", {f"up{{{TRAINER}}}": "0x240"}, {f"up{{{TRAINER}}}": "1x240"}, TRAINER),
    (
        "GumshoeNoStep",
        {f"gumshoe_training_progress_timestamp_seconds{{{TRAINER}}}": "60x240"},
        {f"gumshoe_training_progress_timestamp_seconds{{{TRAINER}}}": "0+60x240"},
        TRAINER,
    ),
    (
        "GumshoeGroupsDropped",
        {f"gumshoe_training_drop_rate{{{TRAINER}}}": "0.2x240"},
        {f"gumshoe_training_drop_rate{{{TRAINER}}}": "0.05x240"},
        TRAINER,
    ),
    (
        "GumshoeNothingToLearn",
        {f"gumshoe_training_skipped{{{TRAINER}}}": "1x240"},
        {f"gumshoe_training_skipped{{{TRAINER}}}": "0x240"},
        TRAINER,
    ),
    (
        "GumshoePolicyStale",
        {f"gumshoe_training_importance_ratio{{{TRAINER}}}": "0.7x240"},
        {f"gumshoe_training_importance_ratio{{{TRAINER}}}": "0.98x240"},
        TRAINER,
    ),
    (
        "GumshoePolicyStale",
        {f"gumshoe_training_groups_refused{{{TRAINER}}}": "1x240"},
        {f"gumshoe_training_groups_refused{{{TRAINER}}}": "0x240"},
        TRAINER,
    ),
    (
        "GumshoePolicyFar",
        {f"gumshoe_training_kl{{{TRAINER}}}": "0.8x240"},
        {f"gumshoe_training_kl{{{TRAINER}}}": "0.02x240"},
        TRAINER,
    ),
    (
        "GumshoeAdapterNotLoaded",
        {
            f'gumshoe_adapter_loader_ready{{container="loader",{ROLLOUT}}}': "0x240",
            f'up{{container="server",{ROLLOUT}}}': "1x240",
        },
        {  # a server that is still loading its model
            f'gumshoe_adapter_loader_ready{{container="loader",{ROLLOUT}}}': "0x240",
            f'up{{container="server",{ROLLOUT}}}': "0x240",
        },
        f'container="loader",{ROLLOUT}',
    ),
    (
        "GumshoeAdapterDamaged",
        {f'gumshoe_adapter_loader_failures_total{{kind="corrupt",{ROLLOUT}}}': "0+1x240"},
        {f'gumshoe_adapter_loader_failures_total{{kind="store",{ROLLOUT}}}': "0+1x240"},
        f'kind="corrupt",{ROLLOUT}',
    ),
    (
        "GumshoeAdapterForeign",
        {f'gumshoe_adapter_loader_failures_total{{kind="foreign",{ROLLOUT}}}': "0+1x240"},
        {f'gumshoe_adapter_loader_failures_total{{kind="refused",{ROLLOUT}}}': "0+1x240"},
        f'kind="foreign",{ROLLOUT}',
    ),
    (
        "GumshoeRolloutCacheFull",
        {
            f"vllm:kv_cache_usage_perc{{{ROLLOUT}}}": "0.99x240",
            f"vllm:num_preemptions_total{{{ROLLOUT}}}": "0+5x240",
        },
        {  # full, but without preemptions
            f"vllm:kv_cache_usage_perc{{{ROLLOUT}}}": "0.99x240",
            f"vllm:num_preemptions_total{{{ROLLOUT}}}": "5x240",
        },
        ROLLOUT,
    ),
    (
        "GumshoePodPending",
        {'kube_pod_status_phase{namespace="gumshoe",phase="Pending",pod="node-0"}': "1x240"},
        {'kube_pod_status_phase{namespace="gumshoe",phase="Running",pod="node-0"}': "1x240"},
        'namespace="gumshoe",phase="Pending",pod="node-0"',
    ),
    (
        "GumshoeJobQueued",
        {'kueue_pending_workloads{cluster_queue="gumshoe",status="active"}': "2x240"},
        {'kueue_pending_workloads{cluster_queue="other",status="active"}': "2x240"},
        'cluster_queue="gumshoe",status="active"',
    ),
]


def test_every_alert_is_tested() -> None:
    assert {alert for alert, *_ in ALERTS} == rules().keys()


@pytest.mark.ci
@pytest.mark.parametrize(("alert", "series", "quiet", "labels"), ALERTS)
def test_alerts_fire_only_when_they_should(
    promtool: str, tmp_path: Path, alert: str, series: dict[str, str], quiet: dict[str, str], labels: str
) -> None:
    rule = rules()[alert]
    found = {**dict(re.findall(r'(\w+)="([^"]*)"', labels)), **rule["labels"]}
    notes = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda each: found.get(each[1], ""), text)
        for name, text in rule["annotations"].items()
    }
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in given.items()],
            "alert_rule_test": [
                {
                    "eval_time": "200m",
                    "alertname": alert,
                    "exp_alerts": [{"exp_labels": found, "exp_annotations": notes}] if given is series else [],
                }
            ],
        }
        for given in (series, quiet)
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "tests.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
