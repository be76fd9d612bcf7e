"""Deploy published adapters: replace the adapter in service, run a canary beside it, and roll back.

Invariants, as long as the base model and `serving.mode` stay the same: an adapter is loaded beside the one in service
before it receives questions, so no episode finds a server without its adapter; the old adapter serves until then. When
two adapters swap roles, vLLM keeps running and only the agent server restarts.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.artifacts.store import CorruptArtifactError, Store
from gumshoe.cluster.canary_plan import CONFIDENCE, MIN_EPISODES, WatchPlan
from gumshoe.cluster.helm import Release
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.readiness import DeploymentFailedError, DeploymentNotReadyError, wait_until_ready
from gumshoe.cluster.releases import Releases, StoredRelease, check_name
from gumshoe.errors import RefusedError, UsageError
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.terminal import err

Values = dict[str, Any]
KIND = "adapters"
_CONFIG = "adapter_config.json"  # PEFT's
_BASE = "base_model.json"  # what the adapter was trained on
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for max_lora_rank
DEPLOY_MODES = ("none", "canary", "full")
"""How a pipeline deploys what it published: not at all, as a canary beside the adapter in service, or instead of it."""
PIPELINE_SECONDS = 3600.0
"""Timeout of a deployment by a pipeline."""


class CanaryChangedError(RefusedError):
    """Report that another command changed the canary of a deployment."""


@dataclass(frozen=True, slots=True)
class PublishedAdapter:
    """Describe an adapter in a store."""

    version: str
    uri: str
    """Folder of its files."""
    base_model: str
    """Base model: a name on the Hugging Face Hub, with the commit or the revision that was trained if it is known, e.g.
    `acme/model:COMMIT`; or a directory on the training machine."""
    rank: int
    store: str


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """Options for waiting until a deployment is ready."""

    seconds: float
    """Timeout of each step of a change."""
    until_all_ready: bool = True
    """Wait for the last step too. Loading an adapter before it receives questions is always waited for."""
    rollback_on_failure: bool = False
    """Roll back if the deployment is not ready in time."""


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


@dataclass(frozen=True, slots=True)
class ServingState:
    """The adapters that a release has in service."""

    adapter: str
    canary: str = ""
    """The adapter on trial; empty without a canary."""
    percent: float = 0
    """Percentage of the questions that the canary gets: 0 while it is loading, and after a rollback."""
    previous: str = ""
    """The adapter that was in service before, kept loaded for a rollback."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ServingState":
        """Read the state from chart values."""
        names = {part: str(_get_section(values, part).get("name") or "") for part in ("adapter", "canary", "previous")}
        percent = _get_section(values, "canary").get("percent", 10) if names["canary"] else 0
        return cls(names["adapter"], names["canary"], percent, names["previous"])

    @property
    def names(self) -> list[str]:
        """The adapters that vLLM has loaded."""
        return [each for each in (self.adapter, self.canary, self.previous) if each]

    @property
    def traffic(self) -> dict[str, float]:
        """Percentage of the questions by adapter."""
        return (
            {self.adapter: 100 - self.percent}
            | dict.fromkeys(self.names[1:], 0)
            | ({self.canary: self.percent} if self.canary else {})
        )


def find_adapter(store: str, version: str) -> PublishedAdapter:
    """Find a published adapter and read its base model and rank from its files.

    Raises:
        NotFoundError: if the store has no adapter of that version.
        UsageError: if the artifact is not an adapter, or the store cannot be read from a cluster.
        CorruptArtifactError: if its configuration is damaged.
    """
    artifacts = Store(store)
    if not artifacts.uri.startswith("s3://"):
        raise UsageError(
            "deploy.store-not-in-s3",
            f"a cluster cannot read from {artifacts.uri}; publish the adapter to a store in S3, s3://BUCKET/PREFIX",
        )
    manifest = artifacts.manifest(f"{KIND}/{version}")
    config = _read_json(artifacts, manifest, _CONFIG)
    if config is None:
        raise UsageError(
            "deploy.not-an-adapter",
            f"{manifest.reference} is not an adapter: it has no {_CONFIG}; name another version",
        )
    ranks = [config.get("r", 0), *(config.get("rank_pattern") or {}).values()]
    named, trained = config.get("base_model_name_or_path"), str(manifest.settings.get("base_model") or "")
    base = trained if not named or trained.startswith(f"{named}:") else str(named)  # the latter has no revision
    known = _read_json(artifacts, manifest, _BASE) or {}
    repository, _ = _split_revision(base)
    if known.get("revision") and _split_revision(str(known.get("name")))[0] == repository:
        base = f"{repository}:{known['revision']}"
    uri = f"{artifacts.uri}/{manifest.reference}/{manifest.data}/"
    return PublishedAdapter(manifest.version, uri, base, max(map(int, ranks)), artifacts.uri)


def _read_json(store: Store, manifest: Manifest, name: str) -> dict[str, Any] | None:
    """Return the content of a file of an adapter, or None if the adapter does not have the file.

    Raises:
        CorruptArtifactError: if it is damaged.
    """
    if all(each.path != name for each in manifest.files):
        return None
    try:
        with store.storage.open(f"{manifest.reference}/{manifest.data}/{name}") as file:
            found = json.loads(file.read())
    except (NotFoundError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise CorruptArtifactError(
            "deploy.adapter-config-corrupt",
            f"{name} of {store.uri}/{manifest.reference} is missing or not valid JSON; publish the adapter again",
        )
    return found


def merge_adapter_values(adapter: PublishedAdapter, before: Values, given: Values, known: Values) -> Values:
    """Merge chart values to serve an adapter: `before`, overridden by `given`, plus what the adapter needs.

    `known` are the chart's defaults.

    Raises:
        UsageError: if the location of the base model is unknown, or base model or store differ from the deployment's.
    """
    values = merge_values(before, given)
    model, own, agent = (values.setdefault(part, {}) for part in ("model", "adapter", "agent"))
    is_on_hub = "/" in adapter.base_model and not adapter.base_model.startswith(("/", "."))
    uri, is_given = str(model.get("uri") or ""), bool(_get_section(given, "model").get("uri"))
    if not uri and not is_on_hub:
        base = adapter.base_model or "its configuration does not name one"
        raise UsageError(
            "deploy.base-model-not-located",
            f"a cluster cannot find the base model of {adapter.version}: {base}; name its place with --set "
            "model.uri=s3://… or hf://…",
        )
    if not uri:
        model["uri"] = f"hf://{adapter.base_model}"
    elif is_on_hub and not is_given and uri.startswith("hf://") and not _is_same_base(uri, adapter.base_model):
        raise UsageError(
            "deploy.other-base-model",
            f"{adapter.version} is for {adapter.base_model}, but the deployment serves {uri}; to replace the base "
            f"model, or if both are the same, add --set model.uri=… (hf://{adapter.base_model})",
        )
    if agent.setdefault("store", adapter.store) != adapter.store and not agent.get("tokenizer"):
        raise UsageError(
            "deploy.other-store",
            f"{adapter.version} is in {adapter.store}, but the agent server reads from {agent['store']}; publish it "
            "there, or set agent.store if the index is in the adapter's store too",
        )
    rank = next((each for each in _RANKS if each >= adapter.rank), None)
    if rank is None:
        raise UsageError(
            "deploy.rank-too-high",
            f"{adapter.version} has LoRA rank {adapter.rank}, but vLLM supports at most {_RANKS[-1]}; train it with a "
            "lower rank",
        )
    if rank > own.get("maxRank", known["adapter"]["maxRank"]):
        own["maxRank"] = rank
    return values


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
        if (
            stored
            and not self.can_share_vllm(stored, values)
            and _get_section(values, "serving").get("mode") != "external"
        ):
            err.print(
                "[bold yellow]warning:[/] the base model or serving.mode changes: questions fail until the new model "
                "has started",
                soft_wrap=True,
            )
        elif (
            adapter
            and stored
            and self.can_share_vllm(stored, values)
            and ServingState.of(stored.values).adapter != adapter.version
        ):
            self._preload(stored, _add_idle_canary(stored.values, values, adapter), adapter.version)
        return self._apply_and_wait(
            name, values, describe_release(ServingState.of(values)), create_namespace=create_namespace
        )

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
            UsageError: if a canary has no adapter beside it, or its adapter is already in service.
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
                if stored and not self.can_share_vllm(stored, values):
                    raise UsageError(
                        "deploy.canary-of-other-base-model",
                        f"the canary {adapter.version} needs the base model and serving.mode of {was.adapter}, which "
                        "is in service; deploy it without --canary",
                    )
                values |= {"canary": {**own, "percent": percent}, "previous": {}}
            elif was.adapter != adapter.version:
                is_shared = stored is not None and self.can_share_vllm(stored, values)
                former = _name_and_uri(_get_section(before, "adapter")) if is_shared else {}
                values |= {"adapter": {**values["adapter"], **own}, "canary": {}, "previous": former}
        self.releases.check_values(name, values)
        return values

    def can_share_vllm(self, stored: StoredRelease, values: Values) -> bool:
        """Return True if a change keeps the same vLLM, so that it can serve the old and the new adapter at once."""
        known = self.releases.defaults

        def shape(each: Values) -> tuple[str, str]:
            mode = str(_get_section(each, "serving").get("mode") or known["serving"]["mode"])
            return mode, str(_get_section(each, "model").get("uri") or known["model"]["uri"])

        return shape(stored.values) == shape(values) and shape(values)[0] != "external"

    def promote(self, name: str, expected: ServingState | None = None) -> Release:
        """Route all questions to the canary. The adapter that was in service stays loaded.

        Raises:
            UsageError: if the deployment does not exist, has no canary, or uses another version of the chart.
            CanaryChangedError: if another canary is on trial than `expected`, or beside another adapter.
        """
        stored, was = self.find_canary(name, expected)
        self._preload(stored, stored.values, was.canary, model_alone=True)
        values = _promoted_values(stored.values)
        return self._apply_and_wait(name, values, describe_release(ServingState.of(values)))

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
        self.releases.try_apply(stored, _promoted_values(stored.values), is_forced=self.is_forced)

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

        With `revision`, restore that revision completely.

        Raises:
            UsageError: if there is nothing to go back to, or the release uses another version of the chart.
        """
        if revision is not None:
            self.releases.rollback(name, revision, is_forced=self.is_forced)
            return self._finish(name)
        stored = self._get_same_chart(name)
        was = ServingState.of(stored.values)
        if was.percent:
            values = merge_values(stored.values, {"canary": {"percent": 0}})
        elif was.canary:
            values = {**stored.values, "canary": {}}
        elif was.previous:
            idle = {**_name_and_uri(stored.values["adapter"]), "percent": 0}
            values = _serve_section(stored.values, "previous", {"canary": idle, "previous": {}})
        else:
            raise UsageError(
                "deploy.nothing-to-roll-back",
                f"{name} has no adapter besides {was.adapter}; deploy another, or use `gumshoe rollback {name} "
                f"--revision N` with a revision from `gumshoe deployments show {name}`",
            )
        return self._apply_and_wait(name, values, describe_release(ServingState.of(values)))

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

    def _preload(self, stored: StoredRelease, values: Values, adapter: str, *, model_alone: bool = False) -> None:
        """Make vLLM load an adapter without sending it any new questions.

        With `model_alone`, ignore the readiness of everything but vLLM.
        """
        before = ServingState.of(stored.values)
        if adapter not in before.names or stored.release.status != "deployed":
            self._apply(stored.release.name, stored, values, f"load {adapter} beside {before.adapter}")
        self._wait(stored.release.name, self._find_rollback_revision(stored, adapter), model_alone=model_alone)

    def _find_rollback_revision(self, stored: StoredRelease, adapter: str) -> int | None:
        """Return the last revision before an adapter was preloaded, or None if Helm has none."""
        for each in self.releases.list_history(stored.release.name):
            if each.status in ("deployed", "superseded"):
                was = ServingState.of(self.releases.get_values(stored.release.name, each.revision))
                if was.canary != adapter or was.percent:
                    return each.revision
        return None

    def _apply_and_wait(
        self, name: str, values: Values, description: str, *, create_namespace: bool = False
    ) -> Release:
        """Change a release and wait until it is ready."""
        stored = self.releases.find(name)
        back = self._find_rollback_revision(stored, ServingState.of(values).adapter) if stored else None
        self._apply(name, stored, values, description, create_namespace=create_namespace)
        return self._finish(name, back)

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


def deploy_published(published: str, store: str, mode: str, target: DeployTarget, agent: str = "") -> str:
    """Deploy a published adapter from a pipeline step inside the cluster, and return what is in service.

    A deployment that is not ready within an hour is rolled back. The first adapter of a deployment serves all
    questions, even in mode `canary`. `agent` answers, which the adapter was trained with; if empty, Gumshoe's own loop.

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
    given = _serve_agent(agent, stored.values if stored else {}, target.values, is_canary=is_canary)
    changes.deploy(target.name, adapter, given, target.percent if is_canary else None)
    return f"{target.name}: {describe_release(ServingState.of(releases.get(target.name).values))}"


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


def describe_release(serving: ServingState) -> str:
    """Return the adapters in service and their traffic, in one line."""
    shares = [f"{name} takes {share:g} %" for name, share in serving.traffic.items() if share]
    loaded = [f"{name} is loaded" for name, share in serving.traffic.items() if not share]
    return ", ".join(shares + loaded)


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


def merge_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """Merge chart values like Helm merges files. An empty group (None) keeps the existing one."""
    both = dict(values)
    for name, value in changes.items():
        inner = both.get(name)
        if value is None and isinstance(inner, dict):
            continue
        both[name] = merge_values(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def _get_section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one group of chart values; empty if it is not set."""
    return dict(values.get(name) or {})


def _name_and_uri(adapter: Mapping[str, Any]) -> Values:
    """Return only the name and the URI of an adapter's values."""
    return {"name": adapter["name"], "uri": adapter.get("uri", "")}


def _is_same_base(uri: str, base_model: str) -> bool:
    """Return True unless a URI of the hub names another model or another revision than an adapter was trained on.

    If one of both has no revision, they cannot be compared.
    """
    (served, revision), (trained, commit) = _split_revision(uri.removeprefix("hf://")), _split_revision(base_model)
    return served == trained and (not revision or not commit or revision == commit)


def _split_revision(base_model: str) -> tuple[str, str]:
    """Return the name of a model on the hub, and its revision or an empty string."""
    name, _, revision = base_model.partition(":")
    return name, revision


def _add_idle_canary(before: Values, after: Values, adapter: PublishedAdapter) -> Values:
    """Return the new values, with the old adapter still in service and the new one as a canary without traffic."""
    canary = {"name": adapter.version, "uri": adapter.uri, "percent": 0}
    return {
        **after,
        "adapter": {**after["adapter"], **_name_and_uri(before["adapter"])},
        "canary": canary,
        "previous": {},
    }


def _promoted_values(values: Values) -> Values:
    """Put the canary into service, and keep the adapter before it."""
    return _serve_section(values, "canary", {"previous": _name_and_uri(values["adapter"]), "canary": {}})


def _serve_section(values: Values, by: str, others: Values) -> Values:
    """Put the adapter of section `by` into service."""
    return {**values, "adapter": {**values["adapter"], **_name_and_uri(values[by])}, **others}
