"""Test the pipeline step that watches a canary, and what the notification says about it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.artifacts.canary_decision import has_canary_decision
from gumshoe.artifacts.store import Store
from gumshoe.cluster import canary_step
from gumshoe.cluster.canary_step import watch_published
from gumshoe.cluster.notify import Outcome
from gumshoe.cluster.pipeline_deployment import DeployTarget, deploy_published
from tests.cluster.fake_kubernetes import Controllers, FakeKubernetes
from tests.cluster.measured_server import MeasuredServer
from tests.cluster.test_canary_watch import (  # noqa: F401 - fixtures
    ON_TRIAL,
    PROMOTED,
    STOPPED,
    on_trial,
    server,
    with_canary,
)
from tests.cluster.test_deploy import (  # noqa: F401 - fixtures
    after_first,
    cluster,
    deployed,
    get_traffic,
    list_loaded,
    shared,
    store,
)
from tests.conftest import CommandResult
from tests.errors import raises


def watch(store: Store, mode: str = "canary", **target: object) -> str:  # noqa: F811
    """Run the step for r2, and return what it says."""
    return watch_published("adapters/r2", store.uri, mode, DeployTarget.of({"name": "mail", **target}))


@pytest.fixture
def asked(server: MeasuredServer) -> MeasuredServer:  # noqa: F811
    server.ask("r1", 2000, failed=10)
    return server


@pytest.mark.ci
def test_the_step_promotes_and_a_second_attempt_changes_nothing(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    asked: MeasuredServer,
) -> None:
    assert on_trial == "mail"
    asked.ask("r2", 2000, failed=5)
    text = watch(store, promote_when="errors <= baseline")
    assert get_traffic(cluster) == PROMOTED
    assert "r2 is promoted" in text
    assert text in Outcome.of("r2", store.uri, "SUCCEEDED", "").text
    again = watch(store, promote_when="errors <= baseline")
    assert "r2 is no canary but in service" in again
    assert has_canary_decision(store, "r2")
    assert get_traffic(cluster) == PROMOTED


@pytest.mark.ci
def test_the_step_rolls_back_and_the_run_does_not_fail(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    asked: MeasuredServer,
) -> None:
    assert on_trial == "mail"
    asked.ask("r2", 100, failed=30)
    text = watch(store, promote_when="default")
    assert get_traffic(cluster) == STOPPED
    for part in ("r2 is rolled back", "errors > baseline", "30.0% (30 of 100)"):
        assert part in text
    assert "rolled back before" in watch(store, promote_when="default")
    assert get_traffic(cluster) == STOPPED
    assert store.manifest("runs/r2/canary/latest").settings["outcome"] == "rolled back"


@pytest.mark.ci
def test_a_run_that_is_submitted_again_does_not_start_a_canary_again_that_was_rolled_back(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    asked: MeasuredServer,
) -> None:
    asked.ask("r2", 100, failed=30)
    watch(store, promote_when="default")
    target = DeployTarget.of({"name": on_trial})
    stopped = deploy_published("adapters/r2", store.uri, "canary", target)
    assert (stopped, get_traffic(cluster)) == ("mail: r1 takes 100 %, r2 is loaded", STOPPED)
    assert run("rollback", on_trial).status == 0
    removed = deploy_published("adapters/r2", store.uri, "canary", target)
    assert (removed, list_loaded(cluster)) == ("mail: r1 takes 100 %", ["r1"])
    assert deploy_published("adapters/r2", store.uri, "full", target) == "mail: r2 takes 100 %, r1 is loaded"


@pytest.mark.ci
def test_an_adapter_in_service_that_was_no_canary_may_become_one_later(
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    tmp_path: Path,
) -> None:
    deploy_published("adapters/r2", store.uri, "full", DeployTarget.of({"name": on_trial}))
    decisions = Store(str(tmp_path))
    assert "r2 is no canary but in service" in watch(decisions, promote_when="default")
    assert not has_canary_decision(decisions, "r2")


@pytest.mark.ci
def test_a_promotion_that_was_rolled_back_is_not_repeated(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    asked: MeasuredServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert on_trial == "mail"
    asked.ask("r2", 2000, failed=5)
    monkeypatch.setattr(canary_step, "PIPELINE_SECONDS", 0.5)
    cluster.settle = Controllers(cluster, broken="agent").settle
    with raises("deploy.rolled-back") as caught:
        watch(store, promote_when="errors <= baseline")
    assert caught.value.exit_status == 1
    assert get_traffic(cluster) == ON_TRIAL


def test_the_time_of_a_watch_begins_with_the_deployment(
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
    asked: MeasuredServer,
) -> None:
    assert (on_trial, asked.is_available) == ("mail", True)
    text = watch(store, rollback_when="errors > 50%", watch_hours=1e-6)
    assert "r2 has 0 of at least 100 questions" in text
    assert get_traffic(cluster) == ON_TRIAL


@pytest.mark.ci
def test_only_a_canary_with_a_condition_is_watched(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,  # noqa: F811
    on_trial: str,  # noqa: F811
    store: Store,  # noqa: F811
) -> None:
    before = len(cluster.requests)
    assert watch(store) == ""
    assert watch(store, "none", promote_when="errors <= 1%") == ""
    assert len(cluster.requests) == before, "the cluster is not asked"
    run("rollback", on_trial)
    run("rollback", on_trial)
    assert "r2 was replaced" in watch(store, promote_when="errors <= 1%")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"promote_when": "error <= 1%"}, "deploy.invalid-condition"),
        ({"promote_when": "never", "rollback_when": "never"}, "deploy.nothing-to-watch-for"),
        ({"watch_hours": 48}, "deploy.invalid-target"),
        ({"confidence": 1}, "deploy.invalid-target"),
        ({"min_episodes": 0}, "deploy.invalid-target"),
    ],
)
def test_wrong_targets_are_refused(target: dict[str, object], code: str) -> None:
    with raises(code):
        assert DeployTarget.of(target).watch_plan
