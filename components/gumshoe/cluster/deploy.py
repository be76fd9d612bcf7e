"""Put a published adapter into service, beside another or in its place, and take it back.

What always holds, as long as base model and `serving.mode` stay: an adapter is loaded beside the one in service before
it is asked anything, so that no episode finds a server without its adapter; what served before goes on until then. When
two adapters change places, vLLM goes on untouched, and only the agent server is told.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.artifacts.store import CorruptArtifactError, Store
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.readiness import DeploymentNotReadyError, wait_until_ready
from gumshoe.cluster.releases import Release, Releases, StoredRelease, check_name
from gumshoe.errors import UsageError
from gumshoe.terminal import err

Values = dict[str, Any]
KIND = "adapters"
_CONFIG = "adapter_config.json"  # PEFT's
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
HOWS = ("none", "canary", "full")
"""How a pipeline deploys what it published: not at all, beside the adapter in service, or in its place."""
_PIPELINE_SECONDS = 3600.0  # that it waits


@dataclass(frozen=True, slots=True)
class PublishedAdapter:
    """An adapter in a store, as a deployment needs to know it."""

    version: str
    uri: str
    """The folder of its files."""
    base_model: str
    """As PEFT noted it: a name on the hub, or a directory on the machine that made it."""
    rank: int
    store: str


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """How long somebody waits for a deployment, and what happens when it is not ready by then."""

    seconds: float
    """For each step of a change."""
    is_for_all: bool = True
    """Whether it is for the last step too. That an adapter is loaded before it is asked is always waited for."""
    goes_back: bool = False
    """Whether the release goes back to what it was."""


@dataclass(frozen=True, slots=True)
class DeployTarget:
    """Where a pipeline deploys, and as what."""

    name: str = "gumshoe"
    """The release of Helm; it is made where there is none."""
    namespace: str = ""
    """The pod's own where it is empty."""
    percent: float = 10
    """Of the episodes that a canary takes."""
    values: Values = field(default_factory=dict)
    """Of the chart, over those that the release has."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "DeployTarget":
        """
        Raises:
            UsageError: it is told what there is not, or otherwise than it can be.
        """
        known = {each.name for each in fields(cls)}
        if wrong := set(told) - known:
            raise UsageError(
                "deploy.unknown-target-key",
                f"deployment has no key {', '.join(sorted(wrong))}; use {', '.join(sorted(known))}",
            )
        made = cls(**told)
        for key, kind, wanted in (
            ("name", str, "a string"),
            ("namespace", str, "a string"),
            ("values", dict, "a mapping"),
        ):
            if not isinstance(value := getattr(made, key), kind):
                raise UsageError("deploy.invalid-target", f"{key} must be {wanted}, got {value!r}")
        check_name(made.name)
        if not isinstance(made.percent, int | float) or not 0 <= made.percent <= 100:
            raise UsageError("deploy.invalid-target", f"percent must be a number from 0 to 100, got {made.percent!r}")
        return made


@dataclass(frozen=True, slots=True)
class ServingState:
    """What a release has in service."""

    adapter: str
    canary: str = ""
    """The adapter on trial; empty where there is none."""
    percent: float = 0
    """Of the episodes that the canary takes: 0 while it is being loaded, and after it was taken back."""
    previous: str = ""
    """The adapter that was in service before, loaded for the way back."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ServingState":
        """As values of the chart say it."""
        names = {part: str(_part(values, part).get("name") or "") for part in ("adapter", "canary", "previous")}
        percent = _part(values, "canary").get("percent", 10) if names["canary"] else 0
        return cls(names["adapter"], names["canary"], percent, names["previous"])

    @property
    def names(self) -> list[str]:
        """The adapters that vLLM has."""
        return [each for each in (self.adapter, self.canary, self.previous) if each]

    @property
    def traffic(self) -> dict[str, float]:
        """The percentage of the episodes that each adapter takes."""
        return (
            {self.adapter: 100 - self.percent}
            | dict.fromkeys(self.names[1:], 0)
            | ({self.canary: self.percent} if self.canary else {})
        )


def find_adapter(store: str, version: str) -> PublishedAdapter:
    """A published adapter, whose shape is read from its own files.

    Raises:
        NotFoundError: the store has none of that version.
        UsageError: what it has is no adapter, or no pod could fetch it.
        CorruptArtifactError: its configuration is not what was published.
    """
    kept = Store(store)
    if not kept.uri.startswith("s3://"):
        raise UsageError(
            "deploy.store-not-in-s3",
            f"a cluster cannot read from {kept.uri}; publish the adapter to a store in S3, s3://BUCKET/PREFIX",
        )
    manifest = kept.manifest(f"{KIND}/{version}")
    shape = _shape(kept, manifest)
    ranks = [shape.get("r", 0), *(shape.get("rank_pattern") or {}).values()]
    base = shape.get("base_model_name_or_path") or manifest.settings.get("base_model") or ""
    uri = f"{kept.uri}/{manifest.reference}/{manifest.data}/"
    return PublishedAdapter(manifest.version, uri, str(base), max(map(int, ranks)), kept.uri)


def _shape(store: Store, manifest: Manifest) -> dict[str, Any]:
    entry = next((each for each in manifest.files if each.path == _CONFIG), None)
    if entry is None:
        raise UsageError(
            "deploy.not-an-adapter",
            f"{manifest.reference} is not an adapter: it has no {_CONFIG}; name another version",
        )
    try:
        with store.storage.open(f"{manifest.reference}/{manifest.data}/{_CONFIG}") as file:
            found = json.loads(file.read())
    except (NotFoundError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise CorruptArtifactError(
            "deploy.adapter-config-corrupt",
            f"{_CONFIG} of {store.uri}/{manifest.reference} is missing or not valid JSON; publish the adapter again",
        )
    return found


def values_for(adapter: PublishedAdapter, before: Values, given: Values, known: Values) -> Values:
    """Values of the chart under which an adapter can be served: those before, under those given, with what it needs.

    `known` are the chart's own.

    Raises:
        UsageError: it says nothing of where the base model lies, or the deployment's is another, or its store is.
    """
    values = merged(before, given)
    model, own, agent = (values.setdefault(part, {}) for part in ("model", "adapter", "agent"))
    is_on_hub = "/" in adapter.base_model and not adapter.base_model.startswith(("/", "."))
    uri, is_given = str(model.get("uri") or ""), bool(_part(given, "model").get("uri"))
    if not uri and not is_on_hub:
        base = adapter.base_model or "which its configuration does not name"
        raise UsageError(
            "deploy.base-model-not-located",
            f"a cluster cannot find the base model of {adapter.version}: {base}; name its place with --set "
            "model.uri=s3://… or hf://…",
        )
    if not uri:
        model["uri"] = f"hf://{adapter.base_model}"
    elif is_on_hub and not is_given and uri.startswith("hf://") and _repository(uri) != adapter.base_model:
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
    """Changes to what is in service. Each waits until what it changed is ready, and raises as `wait_until_ready`.

    All of them may be called again, after whatever interrupted them.
    """

    releases: Releases
    waiting: WaitOptions

    def deploy(
        self,
        name: str,
        adapter: PublishedAdapter | None,
        given: Values,
        percent: float | None,
        *,
        create_namespace: bool = False,
    ) -> Release:
        """Serve an adapter: with all episodes, or as the canary with `percent` of them; with None, those that the
        release has.

        `given` is laid over the values that the release has.

        Raises:
            UsageError: it cannot be served so; nothing was changed.
            GumshoeError: the cluster, or Helm, refuses.
            DeploymentNotReadyError: it is not ready in time.
        """
        kept = self.releases.find(name)
        values = self.plan_values(name, kept, adapter, given, percent)
        if kept and not self.goes_on(kept, values) and _part(values, "serving").get("mode") != "external":
            err.print(
                "[bold yellow]warning:[/] another base model, or serving.mode, takes the place of what is served: "
                "questions fail until it has started",
                soft_wrap=True,
            )
        elif (
            adapter and kept and self.goes_on(kept, values) and ServingState.of(kept.values).adapter != adapter.version
        ):
            self._load(kept, _beside(kept.values, values, adapter), adapter.version)
        return self._put(name, values, describe_release(ServingState.of(values)), create_namespace=create_namespace)

    def plan_values(
        self,
        name: str,
        kept: StoredRelease | None,
        adapter: PublishedAdapter | None,
        given: Values,
        percent: float | None,
    ) -> Values:
        """The values that `deploy` comes to, which the chart takes.

        Raises:
            UsageError: there is nothing that a canary could be beside, or it is in service itself.
            UsageError: the chart rejects them; the message names the key.
        """
        was = ServingState.of(kept.values) if kept else ServingState("")
        if percent is not None and kept is None:
            raise UsageError(
                "deploy.canary-without-deployment",
                f"a canary needs an adapter in service beside it, but deployment {name} does not exist; deploy without "
                "--canary first",
            )
        if percent is not None and adapter is None:
            raise UsageError(
                "deploy.canary-without-adapter", f"no adapter is named for the canary of {name}; add --adapter VERSION"
            )
        if kept is None and adapter is None:
            raise UsageError(
                "deploy.first-without-adapter",
                f"deployment {name} does not exist yet; name its adapter, e.g. --adapter latest",
            )
        if percent is not None and adapter and was.adapter == adapter.version:
            raise UsageError(
                "deploy.canary-already-in-service",
                f"{adapter.version} is already in service in {name}; name another adapter for the canary",
            )
        before = kept.values if kept else {}
        if adapter is None:
            values = merged(before, given)
        else:
            values = values_for(adapter, before, given, self.releases.defaults)
            own = {"name": adapter.version, "uri": adapter.uri}
            if percent is not None:
                if kept and not self.goes_on(kept, values):
                    raise UsageError(
                        "deploy.canary-of-other-base-model",
                        f"the canary {adapter.version} needs the base model and serving.mode of {was.adapter}, which "
                        "is in service; deploy it without --canary",
                    )
                values |= {"canary": {**own, "percent": percent}, "previous": {}}
            elif was.adapter != adapter.version:
                goes_on = kept is not None and self.goes_on(kept, values)
                former = _place(_part(before, "adapter")) if goes_on else {}
                values |= {"adapter": {**values["adapter"], **own}, "canary": {}, "previous": former}
        self.releases.check(name, values)
        return values

    def goes_on(self, kept: StoredRelease, values: Values) -> bool:
        """Whether a change leaves vLLM what it is, so that it can have the adapters of before and after at once."""
        known = self.releases.defaults

        def shape(each: Values) -> tuple[str, str]:
            mode = str(_part(each, "serving").get("mode") or known["serving"]["mode"])
            return mode, str(_part(each, "model").get("uri") or known["model"]["uri"])

        return shape(kept.values) == shape(values) and shape(values)[0] != "external"

    def promote(self, name: str) -> Release:
        """Let the canary take all episodes; the adapter that was in service stays loaded.

        Raises:
            UsageError: there is no such deployment, or no canary in it, or this is another chart than its own.
        """
        kept = self._own(name)
        was = ServingState.of(kept.values)
        if not was.percent:
            raise UsageError(
                "deploy.no-canary",
                f"{name} has no canary; start one with `gumshoe deploy {name} --adapter VERSION --canary 10`",
            )
        self._load(kept, kept.values, was.canary, model_alone=True)
        values = _replaced(kept.values, "canary", {"previous": _place(kept.values["adapter"]), "canary": {}})
        return self._put(name, values, describe_release(ServingState.of(values)))

    def rollback(self, name: str, revision: int | None) -> Release:
        """End a canary; or take one away that is loaded and takes nothing; or, where there is none, go back to the
        adapter that was in service before. With `revision`, to all that the release was then.

        Raises:
            UsageError: there is nothing to go back to, or this is another chart than the release's own.
        """
        if revision is not None:
            self.releases.rollback(name, revision)
            return self._ready(name)
        kept = self._own(name)
        was = ServingState.of(kept.values)
        if was.percent:
            values = merged(kept.values, {"canary": {"percent": 0}})
        elif was.canary:
            values = {**kept.values, "canary": {}}
        elif was.previous:
            idle = {**_place(kept.values["adapter"]), "percent": 0}
            values = _replaced(kept.values, "previous", {"canary": idle, "previous": {}})
        else:
            raise UsageError(
                "deploy.nothing-to-roll-back",
                f"{name} has no adapter besides {was.adapter}; deploy another, or use `gumshoe rollback {name} "
                f"--revision N` with a revision from `gumshoe deployments show {name}`",
            )
        return self._put(name, values, describe_release(ServingState.of(values)))

    def _own(self, name: str) -> StoredRelease:
        """A release of this chart, of which nothing but adapters is to change."""
        kept = self.releases.get(name)
        if kept.release.chart_version != self.releases.chart_version:
            raise UsageError(
                "deploy.other-chart-version",
                f"{name} uses chart {kept.release.chart_version}, but this is chart {self.releases.chart_version}, "
                f"which would change more than adapters; name the old chart with --chart, or run `gumshoe deploy "
                f"{name}` first",
            )
        return kept

    def _load(self, kept: StoredRelease, values: Values, adapter: str, *, model_alone: bool = False) -> None:
        """See to it that vLLM has an adapter, which is asked nothing that it was not asked before. With `model_alone`
        nothing else has to be well.
        """
        before = ServingState.of(kept.values)
        if adapter not in before.names or kept.release.status != "deployed":
            self._change(kept.release.name, values, f"{adapter} is loaded beside {before.adapter}")
        self._wait(kept.release.name, self._settled(kept, adapter), model_alone=model_alone)

    def _settled(self, kept: StoredRelease, adapter: str) -> int | None:
        """The last revision that did not yet have an adapter loaded for its sake; None where Helm keeps none."""
        for each in self.releases.history(kept.release.name):
            if each.status in ("deployed", "superseded"):
                was = ServingState.of(self.releases.values(kept.release.name, each.revision))
                if was.canary != adapter or was.percent:
                    return each.revision
        return None

    def _put(self, name: str, values: Values, description: str, *, create_namespace: bool = False) -> Release:
        """Change a release, and wait for it."""
        kept = self.releases.find(name)
        back = self._settled(kept, ServingState.of(values).adapter) if kept else None
        self._change(name, values, description, create_namespace=create_namespace)
        return self._ready(name, back)

    def _change(self, name: str, values: Values, description: str, *, create_namespace: bool = False) -> None:
        """Change a release, where it is not so already."""
        kept = self.releases.find(name)
        is_so = kept is not None and kept.release.status == "deployed" and kept.values == values
        if not is_so or (kept and kept.release.chart_version != self.releases.chart_version):
            self.releases.put(name, values, description, create_namespace=create_namespace)

    def _ready(self, name: str, back: int | None = None) -> Release:
        if self.waiting.is_for_all:
            self._wait(name, back)
        return self.releases.get(name).release

    def _wait(self, name: str, back: int | None, *, model_alone: bool = False) -> None:
        """
        Raises:
            DeploymentNotReadyError: it is not ready in time; it went back to that revision where that is wished for.
        """
        kept = self.releases.get(name)
        try:
            wait_until_ready(kept, self.releases.cluster, self.waiting.seconds, model_alone=model_alone)
        except DeploymentNotReadyError as error:
            if back is None or back == kept.release.revision:
                raise
            if not self.waiting.goes_back:
                raise DeploymentNotReadyError(
                    error.code, f"{error}; to go back, run `gumshoe rollback {name} --revision {back}`"
                ) from None
            self.releases.rollback(name, back)
            raise DeploymentNotReadyError(
                "deploy.rolled-back", f"{error}; {name} was rolled back to revision {back}"
            ) from None


def put_into_service(published: str, store: str, how: str, target: DeployTarget) -> str:
    """A pipeline's step, from within the cluster; what is in service then. A deployment that is not ready within an
    hour goes back to what it was; the first one of a name has no adapter that a canary could be beside, and serves all.

    Raises:
        UsageError: it cannot be deployed so.
        GumshoeError: it was not.
    """
    if how == "none":
        return ""
    releases = Releases(Cluster.of(target.namespace or None, None))
    changes = Deployments(releases, WaitOptions(_PIPELINE_SECONDS, goes_back=True))
    adapter = find_adapter(store, published.removeprefix(f"{KIND}/"))
    kept = releases.find(target.name)
    is_canary = how == "canary" and kept is not None and ServingState.of(kept.values).adapter != adapter.version
    changes.deploy(target.name, adapter, target.values, target.percent if is_canary else None)
    return f"{target.name}: {describe_release(ServingState.of(releases.get(target.name).values))}"


def describe_release(serving: ServingState) -> str:
    """What is in service, in a line."""
    shares = [f"{name} takes {share:g} %" for name, share in serving.traffic.items() if share]
    loaded = [f"{name} is loaded" for name, share in serving.traffic.items() if not share]
    return ", ".join(shares + loaded)


def command(releases: Releases, name: str, *, create_namespace: bool = False) -> str:
    """What somebody would run by hand who has the values in a file."""
    cluster = releases.cluster
    words = ["helm", "upgrade", "--install", name, str(releases.place), "--namespace", cluster.namespace]
    words += ["--kube-context", cluster.context] if cluster.context else []
    words += ["--create-namespace"] if create_namespace else []
    return shlex.join([*words, "--values", "values.yaml"])


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """Values under others, as Helm lays files over each other. What is empty there leaves what there is."""
    both = dict(values)
    for name, value in changes.items():
        inner = both.get(name)
        if value is None and isinstance(inner, dict):
            continue
        both[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One of the chart's groups of values; empty where it is not set."""
    return dict(values.get(name) or {})


def _place(adapter: Mapping[str, Any]) -> Values:
    """Name and place of an adapter, without what else its values say."""
    return {"name": adapter["name"], "uri": adapter.get("uri", "")}


def _repository(uri: str) -> str:
    """The model of the hub that a URI names, without its revision."""
    return uri.removeprefix("hf://").partition(":")[0]


def _beside(before: Values, after: Values, adapter: PublishedAdapter) -> Values:
    """All that is to change, but for the adapter in service: the new one is beside it, and takes nothing yet."""
    canary = {"name": adapter.version, "uri": adapter.uri, "percent": 0}
    return {**after, "adapter": {**after["adapter"], **_place(before["adapter"])}, "canary": canary, "previous": {}}


def _replaced(values: Values, by: str, others: Values) -> Values:
    """The adapter in service replaced by the one that stands as `by`."""
    return {**values, "adapter": {**values["adapter"], **_place(values[by])}, **others}
