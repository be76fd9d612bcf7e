"""Test `gumshoe promote --when`: with real metrics of agent servers, and a fake Kubernetes API."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gumshoe.cluster.canary_plan import WatchPlan
from gumshoe.cluster.canary_watch import CanaryWatch
from gumshoe.cluster.deploy import Deployments, WaitOptions
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.metrics_sources import open_source
from gumshoe.cluster.releases import Releases
from gumshoe.cluster.serving_state import ServingState
from gumshoe.serving.policy_metrics import PolicyMetrics
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes
from tests.cluster.measured_server import MeasuredServer, run_measured_server
from tests.cluster.test_deploy import (  # noqa: F401 - fixtures
    AGENT,
    after_first,
    cluster,
    deployed,
    get_traffic,
    shared,
    store,
)
from tests.conftest import CommandResult
from tests.errors import raises
from tests.http_server import ReceivedRequest, run_faulty_server

Traffic = tuple[str, str | None, float | None]
ON_TRIAL: Traffic = ("r1", "r2", 10)
STOPPED: Traffic = ("r1", None, None)
PROMOTED: Traffic = ("r2", None, None)
POD = f"{AGENT}-0"


@pytest.fixture(scope="module")
def with_canary() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Hold the cluster's objects while r2 is on trial, created once for all tests."""
    return {}


@pytest.fixture
def on_trial(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    deployed: str,  # noqa: F811
    with_canary: dict[tuple[str, str, str], dict[str, Any]],
) -> str:
    """Deploy r2 as a canary of r1 with 10 % of the questions, and return the name of the deployment."""
    if not with_canary:
        done = run("deploy", deployed, "--adapter", "r2", "--canary", "10")
        assert done.status == 0, done.err
        with_canary |= deepcopy(cluster.objects)
    cluster.restore(with_canary)
    return deployed


@pytest.fixture
def server(cluster: FakeKubernetes) -> Iterator[MeasuredServer]:  # noqa: F811
    """Run the agent server in the only pod of the deployment."""
    with run_measured_server() as made:
        cluster.pod_addresses[POD] = made.address
        yield made


def add_pod(cluster: FakeKubernetes, name: str, address: tuple[str, int] | None) -> None:  # noqa: F811
    """Add another pod of the agent server."""
    pod = deepcopy(cluster.objects["pods", "agents", POD])
    pod["metadata"]["name"] = name
    cluster.put(pod)
    cluster.pod_addresses[name] = address


@dataclass
class Timeline:
    """A clock whose pauses take no time. Things happen at their times."""

    now: float = 0.0
    events: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due, self.events = (
            [each for each in self.events if (each[0] <= self.now) == is_due] for is_due in (True, False)
        )
        for _, happen in due:
            happen()


def make_watch(
    timeline: Timeline, *urls: str, when: str | None = None, rollback: str | None = None, seconds: float = 3600
) -> CanaryWatch:
    changes = Deployments(Releases(Cluster.of(None, None)), WaitOptions(60))
    plan = WatchPlan.of(when, rollback, seconds=seconds)
    source = open_source(list(urls), changes.releases.cluster)
    return CanaryWatch(changes, source, plan, lambda: timeline.now, timeline.sleep)


@pytest.mark.ci
def test_a_good_canary_is_promoted_when_enough_is_shown(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 900, failed=9, unanswered=90)
    server.ask("r2", 100, failed=1, unanswered=10)
    timeline = Timeline(events=[(600, lambda: server.ask("r2", 1900, failed=4, unanswered=150))])
    watch = make_watch(timeline, when="success >= baseline - 5% and errors <= baseline + 1%")
    result = watch.run(on_trial)
    assert (result.outcome, get_traffic(cluster)) == ("promoted", PROMOTED)
    assert timeline.now == 600, "100 questions were not enough"
    assert (result.canary_questions, result.baseline_questions) == (2000, 900)
    assert [each.state for each in result.comparisons] == ["shown", "shown"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("measure", "harm"),
    [
        ("success", lambda server: server.ask("r2", 60, unanswered=40)),
        ("success", lambda server: server.ask("r2", 60, cancelled=40)),
        ("errors", lambda server: server.ask("r2", 60, failed=20)),
        ("latency_p95", lambda server: server.ask("r2", 60, seconds=40)),
        ("latency_p95", lambda server: server.ask("r2", 60, cancelled=60, seconds=40)),
        ("corrections", lambda server: server.judge("r2", "corrected", 20)),
    ],
)
def test_a_canary_whose_measures_are_worse_is_rolled_back(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
    measure: str,
    harm: Callable[[MeasuredServer], object],
) -> None:
    server.ask("r1", 500, failed=3, unanswered=20)
    server.judge("r1", "right", 10)
    server.judge("r1", "wrong", 3, first=100)
    server.ask("r2", 20)
    harm(server)
    done = run("promote", on_trial, "--for", "1h", "--json")
    assert (done.status, done.code) == (3, "deploy.canary-rolled-back"), done.err
    assert get_traffic(cluster) == STOPPED
    seen: dict[str, Any] = json.loads(done.out)
    assert (seen["outcome"], seen["canary"], seen["baseline"]) == ("rolled back", "r2", "r1")
    refuted = [each["condition"] for each in seen["comparisons"] if each["state"] == "refuted"]
    assert measure in [each.split()[0] for each in refuted]
    assert f"{measure} " in done.err


@pytest.mark.ci
def test_without_enough_evidence_nothing_is_changed(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 90)
    timeline = Timeline()
    result = make_watch(timeline, seconds=300).run(on_trial)
    assert (result.outcome, timeline.now, get_traffic(cluster)) == ("undecided", 300, ON_TRIAL)
    assert "r1 has 90 of at least 100" in result.reason
    done = run("promote", on_trial, "--for", "1s", "--min-episodes", "90", "--every", "1s")
    assert (done.status, done.code) == (75, "deploy.canary-undecided")
    assert "r2 has 0 of at least 90" in done.err
    server.is_available = False
    result = make_watch(timeline, seconds=1).run(on_trial)
    assert "1 of 1 servers" in result.reason


@pytest.mark.ci
def test_several_servers_and_restarts_are_added_up(on_trial: str, cluster: FakeKubernetes) -> None:  # noqa: F811
    with ExitStack() as stack:
        first, second, restarted, old = (stack.enter_context(run_measured_server(s)) for s in (0.1, 0.1, 0.1, 0.5))
        cluster.pod_addresses[POD] = first.address
        add_pod(cluster, "second", second.address)
        add_pod(cluster, "unreachable", None)
        add_pod(cluster, "old", old.address)
        first.ask("r1", 100, failed=1)
        first.ask("r2", 10)
        second.ask("r2", 7)
        old.ask("r2", 1000, failed=1000)  # of another share: the policies had other questions then
        restarted.ask("r2", 5)
        timeline = Timeline(events=[(60, lambda: cluster.pod_addresses.update({POD: restarted.address}))])
        result = make_watch(timeline, seconds=120).run(on_trial)
        assert (result.canary_questions, result.baseline_questions) == (22, 100)


@pytest.mark.ci
def test_one_caller_cannot_decide(on_trial: str, server: MeasuredServer) -> None:
    server.ask("r1", 1000)
    server.ask("r2", 100)
    server.judge("r1", "right", 50)
    server.judge("r2", "right", 30, first=100)
    watch = make_watch(Timeline(), when="never", rollback="corrections > 0.1%", seconds=1)
    server.judge("r2", "wrong", 2)  # as many as one caller can give
    assert watch.run(on_trial).outcome == "undecided"
    server.judge("r2", "wrong", 3, first=2)
    assert watch.run(on_trial).outcome == "rolled back"


@pytest.mark.ci
def test_another_command_s_change_is_not_undone(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 100)
    timeline = Timeline(events=[(60, lambda: run("promote", on_trial))])
    with raises("deploy.canary-changed", "r2"):
        make_watch(timeline).run(on_trial)
    assert get_traffic(cluster) == PROMOTED
    again = run("promote", on_trial, "--when", "errors <= 1%")
    assert (again.status, again.code) == (2, "deploy.no-canary")


@pytest.mark.ci
def test_a_watch_survives_failures_of_the_metrics_and_of_the_cluster(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 100)

    def fail() -> None:
        cluster.pod_addresses[POD] = None
        cluster.faults.append("503")

    def recover() -> None:
        cluster.pod_addresses[POD] = server.address
        server.ask("r2", 100, failed=100)

    result = make_watch(Timeline(events=[(60, fail), (500, recover)])).run(on_trial)
    assert result.outcome == "rolled back"


@pytest.mark.ci
def test_a_stopped_canary_gets_no_questions_again_if_the_pods_are_not_ready(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
) -> None:
    cluster.settle = Controllers(cluster, broken="agent").settle
    changes = Deployments(Releases(Cluster.of(None, None)), WaitOptions(0.5, rollback_on_failure=True))
    with raises("deploy.not-ready"):
        changes.stop_canary(on_trial, ServingState("r1", "r2", 10))
    assert get_traffic(cluster) == STOPPED
    with raises("deploy.not-ready"):
        changes.rollback(on_trial, None)
    assert get_traffic(cluster) == ("r1", None, None), "a stopped canary is not loaded again"


@pytest.mark.ci
def test_a_canary_counts_as_rolled_back_if_the_pods_are_not_ready_in_time(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 100)
    server.ask("r2", 100, failed=100)
    cluster.settle = Controllers(cluster, broken="agent").settle
    watch = make_watch(Timeline())
    watch.changes = replace(watch.changes, waiting=WaitOptions(0.5, rollback_on_failure=True))
    result = watch.run(on_trial)
    assert (result.outcome, get_traffic(cluster)) == ("rolled back", STOPPED)
    assert f"{AGENT}: 0 of 2 pods are ready" in result.text


@pytest.mark.ci
def test_a_watch_ends_if_the_metrics_stay_unreachable(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 100)
    timeline = Timeline(events=[(60, lambda: cluster.pod_addresses.update({POD: None}))])
    with raises("deploy.metrics-unreachable", POD, "8001"):
        make_watch(timeline).run(on_trial)
    assert 600 < timeline.now < 800
    assert get_traffic(cluster) == ON_TRIAL


@pytest.mark.ci
def test_a_watch_waits_for_metrics_that_are_unreachable_at_its_start(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 200)
    for recovers in (300, 700):
        cluster.pod_addresses[POD] = None
        timeline = Timeline(events=[(recovers, lambda: cluster.pod_addresses.update({POD: server.address}))])
        if recovers == 300:
            assert make_watch(timeline, seconds=1).run(on_trial).baseline_questions == 200
            continue
        with raises("deploy.metrics-unreachable", POD, "nothing was changed"):
            make_watch(timeline, seconds=1).run(on_trial)
        assert 600 < timeline.now < 700


@pytest.mark.ci
def test_an_address_that_cannot_be_reached_names_the_network_policy(on_trial: str) -> None:
    with raises("deploy.metrics-unreachable", "gumshoe-steps"):
        make_watch(Timeline(), "http://127.0.0.1:9", seconds=1).run(on_trial)


def test_missing_permissions_are_reported_before_the_watch(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
) -> None:
    server.ask("r1", 100)
    for refused in (("get", "pods/portforward"), ("patch", "configmaps")):
        cluster.refused = refused
        done = run("promote", on_trial, "--when", "errors <= 1%")
        assert (done.status, done.code) == (1, "cluster.access-denied"), done.err
        assert refused[1] in done.err


@pytest.mark.ci
def test_corrections_need_servers_that_take_feedback(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
) -> None:
    with run_measured_server(feedback=False) as server:
        cluster.pod_addresses[POD] = server.address
        done = run("promote", on_trial, "--when", "corrections <= baseline")
        assert (done.status, done.code) == (2, "deploy.no-feedback")
        server.ask("r1", 3000)
        server.ask("r2", 3000)
        assert run("promote", on_trial, "--for", "1h").status == 0, "the default leaves corrections out"
        assert get_traffic(cluster) == PROMOTED


def test_metrics_come_from_addresses_and_from_prometheus(on_trial: str, server: MeasuredServer) -> None:
    server.ask("r1", 200)
    server.ask("r2", 20)
    queries: list[str] = []

    def answer(request: ReceivedRequest, _: str) -> tuple[int, str, bytes]:
        """Answer an instant query as Prometheus does. https://prometheus.io/docs/prometheus/latest/querying/api/"""
        queries.append(request.query["query"])
        labels = {"instance": "10.0.0.7:8001", "pod": POD}
        samples = [each for family in server.metrics.registry.collect() for each in family.samples]
        found = [
            {"metric": {"__name__": each.name} | dict(each.labels) | labels, "value": [0, str(each.value)]}
            for each in samples
        ]
        body = {"status": "success", "data": {"resultType": "vector", "result": found}}
        return 200, "application/json", json.dumps(body).encode()

    with run_faulty_server(deque(), answer) as prometheus:
        for urls in ([server.url], [prometheus], [prometheus, f"{prometheus}/"]):
            result = make_watch(Timeline(), *urls, seconds=1).run(on_trial)
            assert (result.canary_questions, result.baseline_questions) == (20, 200), urls
    assert f'namespace="agents",service="{AGENT}"' in queries[0]


def test_servers_that_are_still_starting_are_left_out(on_trial: str, server: MeasuredServer) -> None:
    server.ask("r1", 200)
    registry = CollectorRegistry()
    PolicyMetrics(registry)  # without policies, as before a server has opened them

    def list_samples(registry: CollectorRegistry, pod: str) -> list[dict[str, Any]]:
        labels = {"instance": f"{pod}:8001", "pod": pod}
        samples = [each for family in registry.collect() for each in family.samples]
        return [
            {"metric": {"__name__": each.name, **each.labels, **labels}, "value": [0, str(each.value)]}
            for each in samples
        ]

    pods = {"new": registry}

    def answer(request: ReceivedRequest, _: str) -> tuple[int, str, bytes]:
        if request.path == "/metrics":
            return 200, "text/plain", generate_latest(registry)
        result = [sample for pod, each in pods.items() for sample in list_samples(each, pod)]
        return 200, "application/json", json.dumps({"data": {"result": result}}).encode()

    with run_faulty_server(deque(), answer) as url:
        for urls in ([url], [f"{url}/metrics"]):
            with raises("deploy.metrics-unreachable", "gumshoe_policy_share"):
                make_watch(Timeline(), *urls, seconds=1).run(on_trial)
        pods["old"] = server.metrics.registry
        for urls in ([url], [f"{url}/metrics", server.url], [server.url, f"{url}/metrics"]):
            assert make_watch(Timeline(), *urls, seconds=1).run(on_trial).baseline_questions == 200, urls


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        (["--when", "success => 1"], "deploy.invalid-condition", "'=>'"),
        (["--when", "never", "--rollback-when", "never"], "deploy.nothing-to-watch-for", "never"),
        (["--confidence", "95"], "deploy.invalid-confidence", "95"),
        (["--for", "2"], "deploy.invalid-duration", "--for"),
        (["--every", "0s"], "deploy.invalid-duration", "--every"),
        (["--metrics", "prometheus:9090"], "deploy.invalid-metrics-url", "prometheus:9090"),
    ],
)
def test_wrong_options_are_refused(
    run: Callable[..., CommandResult], options: list[str], code: str, value: str
) -> None:
    done = run("promote", "mail", *options)
    assert (done.status, done.code) == (2, code), done.err
    assert value in done.err


def test_other_metrics_are_refused(on_trial: str) -> None:
    answers = [b"<html>", b"up 1\n", b'{"status": "success"}']

    def answer(_: ReceivedRequest, __: str) -> tuple[int, str, bytes]:
        return 200, "text/plain", answers[0]

    with run_faulty_server(deque(), answer) as url:
        for code, address in (
            ("deploy.measures-missing", f"{url}/metrics"),
            ("deploy.measures-missing", f"{url}/metrics"),
            ("deploy.not-prometheus", url),
        ):
            with raises(code):
                make_watch(Timeline(), address).run(on_trial)
            answers.pop(0)


def test_an_interruption_changes_nothing(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,
    server: MeasuredServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.ask("r1", 100)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CanaryWatch, "_pause", interrupt)
    done = run("promote", on_trial, "--when", "errors <= 1%")
    assert (done.status, get_traffic(cluster)) == (130, ON_TRIAL)
    assert "nothing was changed" in done.err
