"""`gumshoe deploy`, `promote`, `rollback` and `deployments`."""

import json as to_json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.markup import escape

from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.cluster.deploy import Deployments
    from gumshoe.cluster.kubernetes_api import Cluster
    from gumshoe.cluster.readiness import Health
    from gumshoe.cluster.releases import Release, Releases, StoredRelease

deploy = typer.Typer(add_completion=False)
promote = typer.Typer(add_completion=False)
rollback = typer.Typer(add_completion=False)
deployments = typer.Typer(add_completion=False, help="What runs: list it, look at it, read its logs, remove it.")

Name = Annotated[str, typer.Argument(help="Of the deployment: a release of Helm.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Of the cluster; the context's own unless given.")
]
Context = Annotated[str | None, typer.Option(help="Of the kubeconfig; its current one unless given.")]
ChartPlace = Annotated[
    Path | None, typer.Option("--chart", help="A chart in place of the one that comes with Gumshoe.")
]
Minutes = Annotated[float, typer.Option("--timeout", min=0.01, help="Minutes to wait until it is ready.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait until all is ready, but for a new adapter to be loaded.")
]
GoBack = Annotated[
    bool, typer.Option("--rollback-on-failure", help="Go back to what it was where it is not ready in time.")
]
_MINUTES = 40.0


@deploy.command()
def deploy_(
    name: Name,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", help="Where the adapter was published, s3://BUCKET/PREFIX."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="A version in the store, or `latest`; that in service unless given.")
    ] = None,
    canary: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Serve it beside the adapter in service, with this percentage of episodes."),
    ] = None,
    values: Annotated[
        list[Path] | None, typer.Option("--values", "-f", help="Values of the chart, YAML; repeatable, the last wins.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One of them, as serving.gpus=2.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartPlace = None,
    create_namespace: Annotated[
        bool, typer.Option("--create-namespace", help="Make the namespace where it is missing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the values, and the helm command, in place of running it.")
    ] = False,
    timeout: Minutes = _MINUTES,
    no_wait: NoWait = False,
    go_back: GoBack = False,
    json: JsonFlag = False,
) -> None:
    """Put a published adapter into service on a cluster, by the chart that comes with Gumshoe.

    A deployment that is there keeps its values, but for those that are given. A new adapter is loaded beside the one
    in service first, and takes over when every vLLM has it; the one before stays loaded for `gumshoe rollback`.
    """
    from gumshoe.cluster.deploy import command, find_adapter

    given = _given(values or [], sets or [])
    found = None
    if adapter is not None:
        if store is None:
            raise UsageError(
                "deploy.store-not-named", f"no store is named for adapter {adapter}; set --store or $GUMSHOE_STORE"
            )
        found = find_adapter(store, adapter)
    if dry_run:
        changes, kept = _seen(name, namespace, context, chart)
        planned = changes.plan_values(name, kept, found, given, canary)
        told = command(changes.releases, name, create_namespace=create_namespace)
        if json:
            print_json({"values": planned, "command": told})
            return
        out.print(escape(yaml.safe_dump(planned, sort_keys=False)), end="", soft_wrap=True)
        first = " once vLLM has the new adapter, which this command sees to first" if kept and found else ""
        err.print(f"With these in values.yaml, this comes to the same{first}:\n  {escape(told)}", soft_wrap=True)
        return
    changes = _changes(namespace, context, chart, timeout, go_back, not no_wait)
    release = changes.deploy(name, found, given, canary, create_namespace=create_namespace)
    _tell(changes, release, json, is_waited_for=not no_wait)


@promote.command()
def promote_(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartPlace = None,
    timeout: Minutes = _MINUTES,
    no_wait: NoWait = False,
    go_back: GoBack = False,
    json: JsonFlag = False,
) -> None:
    """Let a deployment's canary take all episodes. vLLM has it already; only the agent server is told."""
    changes = _changes(namespace, context, chart, timeout, go_back, not no_wait)
    _tell(changes, changes.promote(name), json, is_waited_for=not no_wait)


@rollback.command()
def rollback_(
    name: Name,
    revision: Annotated[
        int | None, typer.Option(min=1, help="Go back to all that the release was then: values, chart and adapters.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartPlace = None,
    timeout: Minutes = _MINUTES,
    no_wait: NoWait = False,
    json: JsonFlag = False,
) -> None:
    """End a deployment's canary; or, where it has none, go back to the adapter that was in service before."""
    changes = _changes(namespace, context, chart, timeout, False, not no_wait)
    _tell(changes, changes.rollback(name, revision), json, is_waited_for=not no_wait)


@deployments.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    namespace: Namespace = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")] = None,
    json: JsonFlag = False,
) -> None:
    """List the deployments of a namespace: adapters and what they take, health, and since when."""
    if context.invoked_subcommand:
        if namespace or kube_context or json:
            raise UsageError(
                "deploy.misplaced-option",
                "options must follow the subcommand; write `gumshoe deployments "
                f"{context.invoked_subcommand} NAME --namespace …`",
            )
        return
    releases = _releases(namespace, kube_context)
    found = [releases.get(each.name) for each in releases.newest()]
    described = [_described(each, _health(each, releases.cluster)) for each in found]
    if json:
        print_json(described)
        return
    if not described:
        err.print(f"Namespace {escape(releases.cluster.namespace)} has no deployments.")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("deployment", "adapters", "health", "since"):
        table.add_column(title, overflow="fold")
    for each in described:
        table.add_row(*map(printable, (each["name"], each["said"], each["health"], each["since"])))
    out.print(table)


@deployments.command()
def show(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    json: JsonFlag = False,
) -> None:
    """Describe a deployment: where everything comes from, its pods, and what it was before."""
    releases = _releases(namespace, context)
    kept = releases.get(name)
    health = _health(kept, releases.cluster)
    history = [asdict(each) | {"said": text} for each, text in _history(releases, name)]
    described = _described(kept, health) | {"pods": [asdict(each) for each in health.pods], "history": history}
    if json:
        for each in described["history"]:
            each["updated"] = each["updated"].isoformat()
        print_json(described)
        return
    for title in ("name", "namespace", "said", "health", "since", "mode", "model", "adapter_uri", "store", "index"):
        label = title.replace("said", "adapters").replace("_", " ")
        out.print(f"[bold]{label}:[/] {printable(described[title])}", soft_wrap=True)
    for pod in health.pods:
        state = "ready" if pod.is_ready else pod.trouble or pod.phase
        told = f"{printable(pod.name)}  {printable(state)}  ({pod.restarts} restarts)"
        out.print(f"  {pod.part:5}  {told}", soft_wrap=True)
    out.print("[bold]revisions:[/]")
    for each in history:
        out.print(
            f"  {each['revision']:3}  {each['updated']:%Y-%m-%d %H:%M}  {each['status']}  {printable(each['said'])}",
            soft_wrap=True,
        )


@deployments.command()
def logs(
    name: Name,
    model: Annotated[bool, typer.Option("--model", help="Of vLLM, in place of the agent server.")] = False,
    tail: Annotated[int, typer.Option(min=1, help="Lines of each pod.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until it is interrupted.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="Of the containers that ran before these.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of a deployment's pods, each line behind its pod's name."""
    from gumshoe.cluster.pod_logs import lines_of

    releases = _releases(namespace, context)
    kept = releases.get(name)
    part = "model" if model else "agent"
    for pod, line in lines_of(kept, releases.cluster, part, tail=tail, follow=follow, previous=previous):
        out.print(f"[dim]{printable(pod)}[/]  {printable(line)}", soft_wrap=True)


@deployments.command()
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    json: JsonFlag = False,
) -> None:
    """Take a deployment away. Adapters, indexes and secrets stay where they are."""
    releases = _releases(namespace, context)
    kept = releases.get(name)
    said = _described(kept, None)["said"]
    if not yes and not typer.confirm(f"Remove {name} ({said}) from namespace {releases.cluster.namespace}?", err=True):
        raise typer.Exit(3)
    releases.remove(name)
    if json:
        print_json({"removed": name, "namespace": releases.cluster.namespace})
        return
    out.print(f"Removed [bold]{printable(name)}[/]")


def _given(files: list[Path], sets: list[str]) -> dict[str, Any]:
    """Values from files, then from NAME=VALUE.

    Raises:
        UsageError: they cannot be read.
    """
    from gumshoe.cluster.deploy import merged

    values: dict[str, Any] = {}
    for file in files:
        try:
            read = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UsageError(
                "deploy.values-unreadable",
                f"cannot read values from {file}: {' '.join(str(error).split())}; name a YAML file in UTF-8",
            ) from None
        if not isinstance(read, dict):
            raise UsageError(
                "deploy.values-not-a-mapping",
                f"{file} must be a mapping of chart values, got {type(read).__name__}; write it like the chart's "
                "values.yaml",
            )
        values = merged(values, read)
    for each in sets:
        name, equals, text = each.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                "deploy.invalid-set-option", f"--set must be NAME=VALUE, got {each!r}; write e.g. --set serving.gpus=2"
            )
        try:
            value: Any = yaml.safe_load(text) if text else ""
        except yaml.YAMLError as error:
            raise UsageError(
                "deploy.invalid-set-option",
                f"the value of --set {each!r} is not valid YAML: {' '.join(str(error).split())}; quote or correct it",
            ) from None
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        values = merged(values, value)
    for name, group in values.items():
        try:
            to_json.dumps(group)
        except TypeError as error:
            raise UsageError(
                "deploy.value-not-json",
                f"{name} contains a value that JSON does not have: {error}; put dates in quotes",
            ) from None
    return {name: group for name, group in values.items() if group is not None}


def _releases(namespace: str | None, context: str | None, chart: Path | None = None) -> "Releases":
    try:
        from gumshoe.cluster.kubernetes_api import Cluster
        from gumshoe.cluster.releases import Releases

        return Releases(Cluster.of(namespace, context), chart)
    except ModuleNotFoundError as error:
        raise UsageError(
            "cluster.missing-dependency", f"deployments require {error.name}: pip install 'gumshoe-agents[deploy]'"
        ) from None


def _changes(
    namespace: str | None, context: str | None, chart: Path | None, minutes: float, go_back: bool, for_all: bool
) -> "Deployments":
    from gumshoe.cluster.deploy import Deployments, WaitOptions

    return Deployments(_releases(namespace, context, chart), WaitOptions(minutes * 60, for_all, go_back))


def _seen(
    name: str, namespace: str | None, context: str | None, chart: Path | None
) -> "tuple[Deployments, StoredRelease | None]":
    """What would be changed, and what there is; a first deployment where no cluster can be asked."""
    from gumshoe.cluster.deploy import Deployments, WaitOptions
    from gumshoe.cluster.kubernetes_api import Cluster, ClusterUnavailableError
    from gumshoe.cluster.releases import Releases

    waiting = WaitOptions(0)
    try:
        changes = _changes(namespace, context, chart, 0, go_back=False, for_all=False)
        return changes, changes.releases.find(name)
    except (UsageError, ClusterUnavailableError) as error:
        if context is not None:
            raise
        reason = escape(error.message_with_code)
        err.print(f"No cluster can be asked: {reason}. This is for a first deployment.", soft_wrap=True)
        return Deployments(Releases(Cluster(namespace or "default"), chart), waiting), None


def _health(kept: "StoredRelease", cluster: "Cluster") -> "Health":
    from gumshoe.cluster.readiness import look

    return look(kept, cluster)


def _history(releases: "Releases", name: str) -> Iterator[tuple["Release", str]]:
    from gumshoe.cluster.deploy import ServingState, describe_release

    for each in releases.history(name):
        yield each, describe_release(ServingState.of(releases.values(name, each.revision)))


def _described(kept: "StoredRelease", health: "Health | None") -> dict[str, Any]:
    from gumshoe.cluster.deploy import ServingState, describe_release

    values, serving = kept.values, ServingState.of(kept.values)
    busy = "" if kept.release.status == "deployed" else f"Helm: {kept.release.status}"
    health_text = "; ".join(filter(None, (busy, health.text if health else "")))
    return {
        "name": kept.release.name,
        "namespace": kept.release.namespace,
        "adapter": serving.adapter,
        "traffic": serving.traffic,
        "said": describe_release(serving),
        "health": health_text,
        "is_ready": bool(health and health.is_ready and not busy),
        "since": f"{kept.release.updated:%Y-%m-%d %H:%M} UTC",
        "revision": kept.release.revision,
        "mode": (values.get("serving") or {}).get("mode", "standard"),
        "model": (values.get("model") or {}).get("uri", "the chart's own"),
        "adapter_uri": (values.get("adapter") or {}).get("uri", ""),
        "store": (values.get("agent") or {}).get("store", ""),
        "index": (values.get("agent") or {}).get("index") or "the latest",
    }


def _tell(changes: "Deployments", release: "Release", json: bool, *, is_waited_for: bool) -> None:
    kept = changes.releases.get(release.name)
    described = _described(kept, None)
    if json:
        print_json(
            {key: described[key] for key in ("name", "namespace", "adapter", "traffic", "revision")}
            | {"is_ready": is_waited_for}
        )
        return
    state = "is ready" if is_waited_for else "was told"
    out.print(f"[bold]{printable(release.name)}[/] {state}: {printable(described['said'])}", soft_wrap=True)
    service, namespace = kept.of_kind("Service", "-agent"), release.namespace
    port = next(
        (
            p["port"]
            for each in kept.objects
            if each["metadata"]["name"] == service and each["kind"] == "Service"
            for p in each["spec"]["ports"]
        ),
        80,
    )
    if not is_waited_for:
        err.print(f"Look at it: gumshoe deployments show {release.name} --namespace {namespace}", soft_wrap=True)
    is_mail = (kept.values.get("agent") or {}).get("environment", "email") == "email"
    by_key = ((kept.values.get("agent") or {}).get("access") or {}).get("existingSecret")
    err.print(
        f"Ask it:\n  kubectl -n {namespace} port-forward service/{service} 8000:{port}\n"
        '  gumshoe ask "When is the audit?" --url http://127.0.0.1:8000'
        f"{' --inbox ann@example.com' if is_mail else ''}{' --key KEY' if by_key else ''}",
        soft_wrap=True,
    )
