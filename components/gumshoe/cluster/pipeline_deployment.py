"""Deploy what a pipeline has published, from a step inside the cluster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import Field, field_validator

from gumshoe.artifacts.canary_decision import has_canary_decision
from gumshoe.artifacts.store import Store
from gumshoe.cluster.canary_plan import CONFIDENCE, MIN_EPISODES, WatchPlan
from gumshoe.cluster.deploy import Deployments, WaitOptions
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.published_adapter import KIND, find_adapter
from gumshoe.cluster.readiness import DeploymentFailedError, DeploymentNotReadyError
from gumshoe.cluster.releases import Releases, StoredRelease, check_name
from gumshoe.cluster.serving_state import ServingState, Values, describe_release, merge_values
from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, validate_model

DEPLOY_MODES = ("none", "canary", "full")
"""How a pipeline deploys what it published: not at all, as a canary beside the adapter in service, or instead of it."""
PIPELINE_SECONDS = 3600.0
"""Timeout of a deployment by a pipeline."""


class DeployTarget(ParameterModel):
    """The deployment that a pipeline changes."""

    name: str = "gumshoe"
    """Helm release. It is created if it does not exist."""
    namespace: str = ""
    """Kubernetes namespace; empty for the namespace of the pipeline's pod."""
    percent: float = Field(10, ge=0, le=100)
    """Percentage of the questions for a canary."""
    values: Values = Field(default_factory=dict)
    """Chart values that override those of the release."""
    force: bool = False
    """Overwrite changes of other programs, e.g. `kubectl set image`, instead of failing."""
    promote_when: str = ""
    """Watch the canary, and promote it when this is shown, e.g. `corrections <= baseline`. `default` for the default of
    `gumshoe promote`; empty to not watch it, unless there is `rollback_when`."""
    rollback_when: str = ""
    """Watch the canary, and roll it back when this is shown. Empty for the opposite of `promote_when`."""
    watch_hours: float = Field(2, gt=0, le=24)
    """Watch at most this long."""
    min_episodes: int = Field(MIN_EPISODES, ge=1)
    """Questions that each adapter must have had before a promotion."""
    confidence: float = Field(CONFIDENCE, ge=0.5, lt=1)
    """Confidence of each decision."""
    metrics: tuple[str, ...] = ()
    """Prometheus servers, or the /metrics of agent servers. Empty for the pods, through the Kubernetes API."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _convert_list(cls, metrics: Any) -> Any:
        return tuple(metrics) if isinstance(metrics, list) else metrics

    @property
    def watch_plan(self) -> WatchPlan | None:
        """How to watch the canary; None to not watch it.

        Raises:
            UsageError: if a condition is invalid.
        """
        if not (self.promote_when or self.rollback_when):
            return None
        wanted = None if self.promote_when in ("", "default") else self.promote_when
        return WatchPlan.of(
            wanted,
            self.rollback_when or None,
            seconds=3600 * self.watch_hours,
            min_episodes=self.min_episodes,
            confidence=self.confidence,
        )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        check_name(name)
        return name

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "DeployTarget":
        """Parse the pipeline parameter `deployment`.

        Raises:
            UsageError: if it has an unknown key, or an invalid value.
        """
        return validate_model(cls, parameters, "deploy.invalid-target", "invalid deployment")


def deploy_published(published: str, store: str, mode: str, target: DeployTarget, agent: str = "") -> str:
    """Deploy a published adapter from a pipeline step inside the cluster, and return what is in service.

    A deployment that is not ready within an hour is rolled back. The first adapter of a deployment serves all
    questions, even in mode `canary`. A canary that was stopped, or that a watch has decided about, gets no questions
    again. `agent` answers, which the adapter was trained with; if empty, Gumshoe's own loop.

    Raises:
        UsageError: if the adapter cannot be deployed this way.
        GumshoeError: if the deployment fails.
    """
    if mode == "none":
        return ""
    releases = Releases(Cluster.of(target.namespace or None, None))
    changes = Deployments(releases, WaitOptions(PIPELINE_SECONDS, rollback_on_failure=True), target.force)
    adapter = find_adapter(store, published.removeprefix(f"{KIND}/"))
    stored = releases.find(target.name)
    is_canary = mode == "canary" and stored is not None and ServingState.of(stored.values).adapter != adapter.version
    if is_canary and stored and _is_settled(changes, stored, adapter.version, store):
        return f"{target.name}: {describe_release(ServingState.of(stored.values))}"
    given = _serve_agent(agent, stored.values if stored else {}, target.values, is_canary=is_canary)
    with fail_after_rollback():
        changes.deploy(target.name, adapter, given, target.percent if is_canary else None)
    return f"{target.name}: {describe_release(ServingState.of(releases.get(target.name).values))}"


def _is_settled(changes: Deployments, stored: StoredRelease, version: str, store: str) -> bool:
    """Return True if a canary was on trial before, and is no more. The same run may be submitted again."""
    if ServingState.of(stored.values).canary == version:
        return changes.was_stopped(stored, version)
    return has_canary_decision(Store(store), version)


@contextmanager
def fail_after_rollback() -> Iterator[None]:
    """Make a rollback a lasting failure. Otherwise the step would be repeated, and its pod killed during the change.

    Raises:
        DeploymentFailedError: if the deployment was rolled back because it was not ready in time.
    """
    try:
        yield
    except DeploymentNotReadyError as error:
        if error.code != "deploy.rolled-back":
            raise
        raise DeploymentFailedError("deploy.rolled-back", error.message) from None


def _serve_agent(agent: str, before: Values, given: Values, *, is_canary: bool) -> Values:
    """Return `given` with the agent that an adapter was trained with. `before` are the values of the release.

    Raises:
        UsageError: if an adapter in service beside a canary has another agent: both have the same agent server.
    """
    named, was = _find_agent(given), _find_agent(before)
    wanted = named or agent or None
    if is_canary and was != wanted:
        raise UsageError(
            "deploy.canary-of-other-agent",
            f"the adapter in service answers with the agent {was or 'none'}, and the canary was trained with "
            f"{wanted or 'none'}, but both have the same agent server; deploy it without --canary (`deploy: full`)",
        )
    if named or was == wanted:
        return given
    if isinstance(was, dict):  # merging would mix both
        raise UsageError(
            "deploy.other-agent",
            f"the deployment has the agent {was}, and the adapter was trained with {wanted or 'none'}; set "
            "agent.settings.model.agent of the deployment to a text, or remove it",
        )
    return merge_values(given, {"agent": {"settings": {"model": {"agent": wanted}}}})


def _find_agent(values: Values) -> Any:
    """Return the agent in the values of a chart; None without one."""
    found: Any = values
    for name in ("agent", "settings", "model", "agent"):
        found = (found or {}).get(name)
    return found or None
