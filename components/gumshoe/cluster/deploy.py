"""Deploy published adapters: replace the adapter in service, run a canary beside it, and roll back.

Invariants, as long as base model and `serving.mode` stay the same, and vLLM is not external: an adapter is loaded
beside the one in service before it receives questions, so no episode finds a server without its adapter; the old
adapter serves until then. When two adapters swap roles, vLLM keeps running and only the agent server restarts.
"""

import shlex
from dataclasses import dataclass

from gumshoe.cluster.deployment_record import record_adapters
from gumshoe.cluster.helm import Release
from gumshoe.cluster.published_adapter import (
    PublishedAdapter,
    find_limit_differences,
    find_training_differences,
    merge_adapter_values,
)
from gumshoe.cluster.readiness import DeploymentFailedError, DeploymentNotReadyError, wait_until_ready
from gumshoe.cluster.releases import Releases, StoredRelease
from gumshoe.cluster.serving_state import (
    ServingState,
    Values,
    add_idle_canary,
    describe_release,
    get_section,
    merge_values,
    promote_canary,
    select_name_and_uri,
    serve_section,
)
from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import err


class CanaryChangedError(RefusedError):
    """Report that another command changed the canary of a deployment."""


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """Options for waiting until a deployment is ready."""

    seconds: float
    """Timeout of each step of a change."""
    until_all_ready: bool = True
    """Wait for the last step too. Loading an adapter before it receives questions is always waited for."""
    rollback_on_failure: bool = False
    """Roll back if the deployment is not ready in time."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Change what is in service. Each method waits until its change is ready, and raises like `wait_until_ready`.

    All methods can be called again after an interruption.
    """

    releases: Releases
    waiting: WaitOptions
    is_forced: bool = False
    """Overwrite fields of the release's objects that another program changed."""

    def deploy(
        self,
        name: str,
        adapter: PublishedAdapter | None,
        given: Values,
        percent: float | None,
        *,
        create_namespace: bool = False,
    ) -> Release:
        """Serve an adapter for all questions, or as a canary for `percent` of them. None keeps the release's adapters.

        `given` overrides values of the release.

        Raises:
            UsageError: if the adapter cannot be served this way; nothing was changed.
            GumshoeError: if the cluster or Helm rejects the change.
            DeploymentNotReadyError: if the deployment is not ready in time.
            DeploymentFailedError: if it can never become ready.
        """
        stored = self.releases.find(name)
        values = self.plan_values(name, stored, adapter, given, percent)
        back = self._find_revision_before(stored, adapter.version if adapter else None) if stored else None
        if adapter and stored:  # without an adapter, those of the release stay, and the store may be unknown
            self._record_adapters(name, stored.values, values)
        is_external = self._find_model(values)[0] == "external"
        if stored and not is_external and not self.has_same_model(stored, values):
            err.print(
                "[bold yellow]warning:[/] the base model or serving.mode changes: questions fail until the new model "
                "has started",
                soft_wrap=True,
            )
        elif (
            adapter
            and stored
            and not is_external  # those servers load adapters without the chart
            and ServingState.of(stored.values).adapter != adapter.version
        ):
            idle = add_idle_canary(stored.values, values, adapter.version, adapter.uri)
            self._preload(stored, idle, adapter.version, back)
        self._apply(
            name,
            self.releases.find(name),
            values,
            describe_release(ServingState.of(values)),
            create_namespace=create_namespace,
        )
        if adapter and not stored:  # the namespace may not have existed before
            self._record_adapters(name, values)
        return self._finish(name, back)

    def plan_values(
        self,
        name: str,
        stored: StoredRelease | None,
        adapter: PublishedAdapter | None,
        given: Values,
        percent: float | None,
    ) -> Values:
        """Return the chart values that `deploy` would apply, after the chart has accepted them.

        Raises:
            UsageError: if a canary has no adapter beside it, its adapter is already in service, or both were trained in
                different environments or with different chat settings.
            UsageError: if the chart rejects the values; the message names the key.
        """
        was = ServingState.of(stored.values) if stored else ServingState("")
        if percent is not None and stored is None:
            raise UsageError(
                "deploy.canary-without-deployment",
                f"a canary needs an adapter in service beside it, but deployment {name} does not exist; deploy without "
                "--canary first",
            )
        if percent is not None and adapter is None:
            raise UsageError(
                "deploy.canary-without-adapter", f"no adapter is named for the canary of {name}; add --adapter VERSION"
            )
        if stored is None and adapter is None:
            raise UsageError(
                "deploy.first-without-adapter",
                f"deployment {name} does not exist yet; name its adapter, e.g. --adapter latest",
            )
        if percent is not None and adapter and was.adapter == adapter.version:
            raise UsageError(
                "deploy.canary-already-in-service",
                f"{adapter.version} is already in service in {name}; name another adapter for the canary",
            )
        before = stored.values if stored else {}
        if adapter is None:
            values = merge_values(before, given)
        else:
            values = merge_adapter_values(adapter, before, given, self.releases.defaults)
            own = {"name": adapter.version, "uri": adapter.uri}
            if percent is not None:
                if stored and not self.has_same_model(stored, values):
                    raise UsageError(
                        "deploy.canary-of-other-base-model",
                        f"the canary {adapter.version} needs the base model and serving.mode of {was.adapter}, which "
                        "is in service; deploy it without --canary",
                    )
                served = str(get_section(before, "adapter").get("uri") or "")
                if differing := find_training_differences(served, adapter.uri):
                    raise UsageError(
                        "deploy.canary-trained-differently",
                        f"the canary {adapter.version} and {was.adapter}, which is in service, were trained with "
                        f"different settings, but one agent server has them once: {', '.join(differing)}; deploy it "
                        "without --canary (in a pipeline, `deploy: full`)",
                    )
                if limits := find_limit_differences(served, adapter.uri):
                    err.print(
                        f"[bold yellow]warning:[/] {was.adapter} and its canary {adapter.version} were trained with "
                        f"different limits, {', '.join(limits)}: both are served with the former, unless "
                        "agent.settings.model sets others",
                        soft_wrap=True,
                    )
                values |= {"canary": {**own, "percent": percent}, "previous": {}}
            elif was.adapter != adapter.version:
                stays = stored and self._find_model(values)[0] != "external" and self.has_same_model(stored, values)
                former = select_name_and_uri(get_section(before, "adapter")) if stays else {}
                values |= {"adapter": {**values["adapter"], **own}, "canary": {}, "previous": former}
        self.releases.check_values(name, values)
        return values

    def has_same_model(self, stored: StoredRelease, values: Values) -> bool:
        """Return True if a change keeps the same vLLM, so that it can serve the old and the new adapter at once."""
        return self._find_model(stored.values) == self._find_model(values)

    def _find_model(self, values: Values) -> tuple[str, str]:
        """Return `serving.mode` and the URI of the base model."""
        known = self.releases.defaults
        mode = str(get_section(values, "serving").get("mode") or known["serving"]["mode"])
        return mode, str(get_section(values, "model").get("uri") or known["model"]["uri"])

    def promote(self, name: str, expected: ServingState | None = None) -> Release:
        """Route all questions to the canary. The adapter that was in service stays loaded.

        Raises:
            UsageError: if the deployment does not exist, has no canary, or uses another version of the chart.
            CanaryChangedError: if another canary is on trial than `expected`, or beside another adapter.
        """
        stored, was = self.find_canary(name, expected)
        back = self._find_revision_before(stored, was.canary)
        self._preload(stored, stored.values, was.canary, back, model_alone=True)
        values = promote_canary(stored.values)
        self._apply(name, self.releases.get(name), values, describe_release(ServingState.of(values)))
        return self._finish(name, back)

    def find_canary(self, name: str, expected: ServingState | None = None) -> tuple[StoredRelease, ServingState]:
        """Return a release that has a canary, and its adapters.

        Raises:
            UsageError: if the deployment does not exist, has no canary, or uses another version of the chart.
            CanaryChangedError: if another canary is on trial than `expected`, or beside another adapter.
        """
        stored = self._get_same_chart(name)
        was = ServingState.of(stored.values)
        if expected and (was.adapter, was.canary, was.percent > 0) != (expected.adapter, expected.canary, True):
            raise CanaryChangedError(
                "deploy.canary-changed",
                f"{name} was changed by another command: {describe_release(was)}, but {expected.canary} beside "
                f"{expected.adapter} was watched; nothing was changed; see `gumshoe deployments show {name}`",
            )
        if not was.percent:
            raise UsageError(
                "deploy.no-canary",
                f"{name} has no canary; start one with `gumshoe deploy {name} --adapter VERSION --canary 10`",
            )
        return stored, was

    def check_promotion(self, name: str) -> None:
        """Check that the cluster would accept the promotion of a canary, and change nothing.

        Raises:
            ClusterError: if a permission is missing.
            GumshoeError: if another program changed a field, unless forced.
        """
        stored, _ = self.find_canary(name)
        self.releases.try_apply(stored, promote_canary(stored.values), is_forced=self.is_forced)

    def stop_canary(self, name: str, expected: ServingState) -> Release:
        """Stop the canary, which stays loaded.

        Raises:
            UsageError: if the release uses another version of the chart.
            CanaryChangedError: if another canary is on trial than `expected`, or beside another adapter.
        """
        self.find_canary(name, expected)
        return self.rollback(name, None)

    def rollback(self, name: str, revision: int | None) -> Release:
        """Undo the last step: stop the canary, or remove a stopped canary, or return to the previous adapter.

        With `revision`, restore that revision completely. A rollback is kept even if it is not ready in time, so that a
        bad adapter gets no questions again.

        Raises:
            UsageError: if there is nothing to go back to, or the release uses another version of the chart.
        """
        if revision is not None:
            self.releases.rollback(name, revision, is_forced=self.is_forced)
            self._record_adapters(name, self.releases.get(name).values)  # they may be old ones
            return self._finish(name)
        stored = self._get_same_chart(name)
        was = ServingState.of(stored.values)
        if was.percent:
            values = merge_values(stored.values, {"canary": {"percent": 0}})
        elif was.canary:
            values = {**stored.values, "canary": {}}
        elif was.previous:
            idle = {**select_name_and_uri(stored.values["adapter"]), "percent": 0}
            values = serve_section(stored.values, "previous", {"canary": idle, "previous": {}})
        else:
            raise UsageError(
                "deploy.nothing-to-roll-back",
                f"{name} has no adapter besides {was.adapter}; deploy another, or use `gumshoe rollback {name} "
                f"--revision N` with a revision from `gumshoe deployments show {name}`",
            )
        self._apply(name, stored, values, describe_release(ServingState.of(values)))
        return self._finish(name)

    def _get_same_chart(self, name: str) -> StoredRelease:
        """Return a release of this chart version, so that a change affects only adapters."""
        stored = self.releases.get(name)
        if stored.release.chart_version != self.releases.chart_version:
            raise UsageError(
                "deploy.other-chart-version",
                f"{name} uses chart {stored.release.chart_version}, but this is chart {self.releases.chart_version}, "
                f"which would change more than adapters; name the old chart with --chart, or run `gumshoe deploy "
                f"{name}` first",
            )
        return stored

    def _preload(
        self, stored: StoredRelease, values: Values, adapter: str, back: int | None, *, model_alone: bool = False
    ) -> None:
        """Make vLLM load an adapter without sending it any new questions. If it fails, roll back to revision `back`.

        With `model_alone`, ignore the readiness of everything but vLLM.
        """
        before = ServingState.of(stored.values)
        if adapter not in before.names or stored.release.status != "deployed":
            self._apply(stored.release.name, stored, values, f"load {adapter} beside {before.adapter}")
        self._wait(stored.release.name, back, model_alone=model_alone)

    def was_stopped(self, stored: StoredRelease, adapter: str) -> bool:
        """Return True if an adapter is loaded without questions because it was stopped, not to be deployed."""
        serving = ServingState.of(stored.values)
        is_idle = serving.canary == adapter and not serving.percent
        return is_idle and self._find_revision_before(stored, adapter) == stored.release.revision

    def _record_adapters(self, name: str, *loaded: Values) -> None:
        record_adapters(self.releases.cluster, name, loaded, self.releases.list_values(name))

    def _find_revision_before(self, stored: StoredRelease, adapter: str | None) -> int | None:
        """Return the revision before a command that deploys an adapter, or None if Helm has none.

        That is the last one, unless it only loaded the adapter: then the same command made it, and was interrupted.
        """
        name = stored.release.name
        history = self.releases.list_history(name)
        complete = [each.revision for each in history if each.status in ("deployed", "superseded")]
        if adapter and len(complete) > 1:
            last, earlier = (ServingState.of(self.releases.get_values(name, each)) for each in complete[:2])
            if last.canary == adapter and not last.percent and adapter not in earlier.names:
                return complete[1]
        return complete[0] if complete else None

    def _apply(
        self,
        name: str,
        stored: StoredRelease | None,
        values: Values,
        description: str,
        *,
        create_namespace: bool = False,
    ) -> None:
        """Change a release unless it already has these values. If forced, apply them again."""
        is_unchanged = stored is not None and stored.release.status == "deployed" and stored.values == values
        is_same_chart = stored is not None and stored.release.chart_version == self.releases.chart_version
        if self.is_forced or not (is_unchanged and is_same_chart):
            self.releases.apply(name, values, description, create_namespace=create_namespace, is_forced=self.is_forced)

    def _finish(self, name: str, back: int | None = None) -> Release:
        if self.waiting.until_all_ready:
            return self._wait(name, back)
        return self.releases.get(name).release

    def _wait(self, name: str, back: int | None, *, model_alone: bool = False) -> Release:
        """Wait until the release is ready, and return it. If it is not, roll back to revision `back` if enabled.

        Raises:
            DeploymentNotReadyError: if the release is not ready in time.
            DeploymentFailedError: if it can never become ready.
        """
        stored = self.releases.get(name)
        try:
            wait_until_ready(stored, self.releases.cluster, self.waiting.seconds, model_alone=model_alone)
            return stored.release
        except (DeploymentNotReadyError, DeploymentFailedError) as error:
            if back is None or back == stored.release.revision:
                raise
            if not self.waiting.rollback_on_failure:
                raise type(error)(
                    error.code, f"{error}; to go back, run `gumshoe rollback {name} --revision {back}`"
                ) from None
            self.releases.rollback(name, back, is_forced=self.is_forced)
            raise type(error)("deploy.rolled-back", f"{error}; {name} was rolled back to revision {back}") from None


def values_file(name: str) -> str:
    """Return the name of the file in which `format_helm_command` expects the values of a deployment."""
    return f"values.{name}.yaml"


def format_helm_command(releases: Releases, name: str, *, create_namespace: bool = False) -> str:
    """Return the helm command that applies the values of a file, `values.NAME.yaml`."""
    cluster = releases.cluster
    words = ["helm", "upgrade", "--install", name, str(releases.chart_directory), "--namespace", cluster.namespace]
    words += ["--kube-context", cluster.context] if cluster.context else []
    words += ["--create-namespace"] if create_namespace else []
    return shlex.join([*words, "--values", values_file(name)])
