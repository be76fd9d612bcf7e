"""Watch the canary that a pipeline deployed, and decide about it."""

from dataclasses import asdict
from datetime import UTC, datetime

from gumshoe.artifacts.canary_decision import IN_SERVICE, ROLLED_BACK, has_canary_decision, record_canary_decision
from gumshoe.artifacts.store import Store
from gumshoe.cluster.canary_watch import CanaryWatch
from gumshoe.cluster.deploy import CanaryChangedError, Deployments, WaitOptions
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.metrics_sources import open_source
from gumshoe.cluster.pipeline_deployment import PIPELINE_SECONDS, DeployTarget, fail_after_rollback
from gumshoe.cluster.published_adapter import KIND
from gumshoe.cluster.releases import Releases, StoredRelease
from gumshoe.cluster.serving_state import ServingState, describe_release


def watch_published(published: str, store: str, mode: str, target: DeployTarget) -> str:
    """Watch the canary of a pipeline until it is decided or the time is over, and return what happened.

    The time begins with the last change of the deployment, so that another attempt of the step continues the watch.
    Nothing is watched unless the target has a condition and the mode is `canary`.

    Raises:
        UsageError: if the deployment cannot be watched.
        UnavailableError: if the cluster or the metrics cannot be reached.
        GumshoeError: if the promotion or the rollback fails.
    """
    plan = target.watch_plan
    if mode != "canary" or plan is None:
        return ""
    version = published.removeprefix(f"{KIND}/")
    releases = Releases(Cluster.of(target.namespace or None, None))
    changes = Deployments(releases, WaitOptions(PIPELINE_SECONDS, rollback_on_failure=True), target.force)
    stored = releases.get(target.name)
    if settled := _find_settled(stored, version):
        serving = ServingState.of(stored.values)
        was_no_canary = serving.adapter == version and not has_canary_decision(Store(store), version)
        outcome = IN_SERVICE if was_no_canary else ROLLED_BACK if serving.canary == version else "settled"
        return record_canary_decision(settled, {"outcome": outcome}, version, store)
    watch = CanaryWatch(changes, open_source(list(target.metrics), releases.cluster), plan.since(_age(stored)))
    try:
        with fail_after_rollback():
            result = watch.run(target.name)
    except CanaryChangedError as error:
        return record_canary_decision(error.message, {"outcome": "changed"}, version, store)
    return record_canary_decision(result.text, asdict(result), version, store)


def _find_settled(stored: StoredRelease, version: str) -> str:
    """Return what was already decided about an adapter; empty if it is a canary with questions."""
    serving = ServingState.of(stored.values)
    if serving.canary == version and serving.percent:
        return ""
    if serving.canary == version:
        return f"{version} was rolled back before: {describe_release(serving)}"
    if serving.adapter == version:
        return f"{version} is no canary but in service: {describe_release(serving)}"
    return f"{version} was replaced by another command: {describe_release(serving)}"


def _age(stored: StoredRelease) -> float:
    """Return the seconds since the last change of a release."""
    return max(0.0, (datetime.now(UTC) - stored.release.updated).total_seconds())
