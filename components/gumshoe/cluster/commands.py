"""`gumshoe deploy`, `rollback` and `deployments`."""

import json as to_json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from gumshoe.completion import complete_adapter
from gumshoe.corpus import DEFAULT_ENVIRONMENT, find_corpus
from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.terminal import JsonFlag, create_table, err, out, print_json, printable
from gumshoe.yaml_text import InvalidYamlError, load_yaml

if TYPE_CHECKING:
    from gumshoe.cluster.deploy import Deployments
    from gumshoe.cluster.helm import Release
    from gumshoe.cluster.kubernetes_api import Cluster
    from gumshoe.cluster.readiness import Health
    from gumshoe.cluster.releases import Releases, StoredRelease

deploy = typer.Typer(add_completion=False)
rollback = typer.Typer(add_completion=False)
deployments = typer.Typer(add_completion=False, help="List, inspect and remove deployments, and read their logs.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the deployment (a Helm release).")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Kubernetes namespace (default: the context's).")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig (default: the current one).")]
ChartDirectory = Annotated[
    Path | None,
    typer.Option("--chart", metavar="DIR", help="Directory of a Helm chart to use instead of Gumshoe's own."),
]
Minutes = Annotated[float, typer.Option("--timeout", min=0.01, help="Minutes to wait until the deployment is ready.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Wait only until the new adapter is loaded, not until every pod is ready.")
]
GoBack = Annotated[
    bool, typer.Option("--rollback-on-failure", help="Roll back if the deployment is not ready in time.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite changes of other programs, e.g. `kubectl set image`, instead of failing."),
]
READY_MINUTES = 40.0


@deploy.command(
    epilog="""
    gumshoe deploy agent --store s3://bucket/project --adapter latest
    gumshoe deploy agent --store s3://bucket/project --adapter VERSION --canary 10
    """
)
def deploy_(
    name: Name,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", envvar="GUMSHOE_STORE", metavar="URI", help="Store of the adapter: s3://BUCKET/PREFIX."
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            autocompletion=complete_adapter,
            help="Version in the store, or `latest` (default: the one in service).",
        ),
    ] = None,
    canary: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Serve the adapter as a canary with this percentage of the questions."),
    ] = None,
    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values", "-f", metavar="FILE", help="YAML file with chart values. Repeatable; the last one wins."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One chart value, e.g. serving.gpus=2. Repeatable."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartDirectory = None,
    create_namespace: Annotated[
        bool, typer.Option("--create-namespace", help="Create the namespace if it does not exist.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the chart values and the helm command; change nothing.")
    ] = False,
    timeout: Minutes = READY_MINUTES,
    no_wait: NoWait = False,
    go_back: GoBack = False,
    force: Force = False,
    json: JsonFlag = False,
) -> None:
    """Deploy a published adapter to a cluster with Gumshoe's Helm chart.

    An existing deployment keeps its values, except those that are given. A new adapter is loaded beside the one in
    service, and takes over once every vLLM pod has it. The previous one stays loaded for `gumshoe rollback`.
    """
    from gumshoe.cluster.deploy import format_helm_command, values_file
    from gumshoe.cluster.published_adapter import find_adapter
    from gumshoe.cluster.releases import check_name

    check_name(name)
    overrides = _read_values(values or [], sets or [])
    found = None
    if adapter is not None:
        if store is None:
            raise UsageError(
                "deploy.store-not-named", f"no store is named for adapter {adapter}; set --store or $GUMSHOE_STORE"
            )
        found = find_adapter(store, adapter)
    if dry_run:
        changes, stored = _find_current(name, namespace, context, chart)
        planned = changes.plan_values(name, stored, found, overrides, canary)
        helm_command = format_helm_command(changes.releases, name, create_namespace=create_namespace)
        if json:
            print_json({"values": planned, "command": helm_command})
            return
        out.print(printable(yaml.safe_dump(planned, sort_keys=False)), end="", soft_wrap=True)
        difference = ", but does not load the new adapter first" if stored and found else ""
        place = values_file(name)
        err.print(
            f"Equivalent helm command, with the values above in {place}{difference}:\n  {printable(helm_command)}",
            soft_wrap=True,
        )
        return
    changes = open_deployments(namespace, context, chart, timeout, go_back, not no_wait, is_forced=force)
    release = changes.deploy(name, found, overrides, canary, create_namespace=create_namespace)
    report_release(changes, release, json, is_waited_for=not no_wait)


@rollback.command(epilog="gumshoe rollback agent --namespace agents")
def rollback_(
    name: Name,
    revision: Annotated[
        int | None, typer.Option(min=1, help="Restore this revision completely: values, chart and adapters.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartDirectory = None,
    timeout: Minutes = READY_MINUTES,
    no_wait: NoWait = False,
    force: Force = False,
    json: JsonFlag = False,
) -> None:
    """Stop a deployment's canary. Without a canary, return to the previous adapter."""
    changes = open_deployments(namespace, context, chart, timeout, False, not no_wait, is_forced=force)
    report_release(changes, changes.rollback(name, revision), json, is_waited_for=not no_wait)


@deployments.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    namespace: Namespace = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    json: JsonFlag = False,
) -> None:
    """List the deployments of a namespace with adapters, traffic shares, health and last change."""
    if context.invoked_subcommand:
        if namespace or kube_context or json:
            raise UsageError(
                "deploy.misplaced-option",
                "options must follow the subcommand; write `gumshoe deployments "
                f"{context.invoked_subcommand} NAME --namespace …`",
            )
        return
    releases = _open_releases(namespace, kube_context)
    found = [releases.get(each.name) for each in releases.list_newest()]
    described = [_describe(each, _check_health(each, releases.cluster)) for each in found]
    if json:
        print_json(described)
        return
    if not described:
        err.print(f"Namespace {printable(releases.cluster.namespace)} has no deployments.")
        return
    table = create_table("deployment", "adapters", "health", "since", box=None, pad_edge=False)
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
    """Show a deployment in detail: adapters, health, sources, pods and revisions."""
    releases = _open_releases(namespace, context)
    stored = releases.get(name)
    health = _check_health(stored, releases.cluster)
    history = [asdict(each) | {"said": text} for each, text in _list_history(releases, name)]
    described = _describe(stored, health) | {"pods": [asdict(each) for each in health.pods], "history": history}
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
        out.print(
            f"  {pod.part:5}  {printable(pod.name)}  {printable(state)}  ({pod.restarts} restarts)", soft_wrap=True
        )
    out.print("[bold]revisions:[/]")
    for each in history:
        out.print(
            f"  {each['revision']:3}  {each['updated']:%Y-%m-%d %H:%M}  {each['status']}  {printable(each['said'])}",
            soft_wrap=True,
        )


@deployments.command()
def logs(
    name: Name,
    model: Annotated[bool, typer.Option("--model", help="Show vLLM's logs instead of the agent server's.")] = False,
    tail: Annotated[int, typer.Option(min=1, help="Number of lines per pod.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines until interrupted.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="Show the logs of the previous containers.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of a deployment's pods. Each line begins with the pod's name."""
    from gumshoe.cluster.pod_logs import stream_logs

    releases = _open_releases(namespace, context)
    stored = releases.get(name)
    part = "model" if model else "agent"
    for pod, line in stream_logs(stored, releases.cluster, part, tail=tail, follow=follow, previous=previous):
        out.print(f"[dim]{printable(pod)}[/]  {printable(line)}", soft_wrap=True)


@deployments.command()
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    json: JsonFlag = False,
) -> None:
    """Remove a deployment. Adapters, indexes and secrets are kept."""
    from gumshoe.cluster.deployment_record import record_adapters

    releases = _open_releases(namespace, context)
    stored = releases.get(name)
    serving = _describe(stored, None)["said"]
    question = f"Remove {name} ({serving}) from namespace {releases.cluster.namespace}?"
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(3)
    revisions = releases.list_values(name)
    releases.remove(name)
    record_adapters(releases.cluster, name, [], revisions)
    if json:
        print_json({"removed": name, "namespace": releases.cluster.namespace})
        return
    out.print(f"Removed [bold]{printable(name)}[/]")


def _read_values(files: list[Path], sets: list[str]) -> dict[str, Any]:
    """Merge chart values from files and NAME=VALUE options, in this order.

    Raises:
        UsageError: if they cannot be read.
    """
    from gumshoe.cluster.serving_state import merge_values

    values: dict[str, Any] = {}
    for file in files:
        try:
            read = load_yaml(file.read_text(encoding="utf-8")) or {}
        except (OSError, ValueError) as error:
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
        values = merge_values(values, read)
    for each in sets:
        name, equals, text = each.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                "deploy.invalid-set-option", f"--set must be NAME=VALUE, got {each!r}; write e.g. --set serving.gpus=2"
            )
        try:
            value: Any = load_yaml(text) if text else ""
        except InvalidYamlError as error:
            raise UsageError(
                "deploy.invalid-set-option",
                f"the value of --set {each!r} is not valid YAML: {' '.join(str(error).split())}; quote or correct it",
            ) from None
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        values = merge_values(values, value)
    for name, group in values.items():
        try:
            to_json.dumps(group)
        except TypeError as error:
            raise UsageError(
                "deploy.value-not-json",
                f"{name} contains a value that JSON does not have: {error}; put dates in quotes",
            ) from None
    return {name: group for name, group in values.items() if group is not None}


def _open_releases(namespace: str | None, context: str | None, chart: Path | None = None) -> "Releases":
    try:
        from gumshoe.cluster.kubernetes_api import Cluster
        from gumshoe.cluster.releases import Releases

        return Releases(Cluster.of(namespace, context), chart)
    except ModuleNotFoundError as error:
        raise UsageError(
            "cluster.missing-dependency", f"deployments require {error.name}: {install_command(extra='deploy')}"
        ) from None


def open_deployments(
    namespace: str | None,
    context: str | None,
    chart: Path | None,
    minutes: float,
    go_back: bool,
    until_all_ready: bool,
    *,
    is_forced: bool = False,
) -> "Deployments":
    """Return the deployments of a namespace. `minutes` is the timeout of each step of a change."""
    from gumshoe.cluster.deploy import Deployments, WaitOptions

    waiting = WaitOptions(minutes * 60, until_all_ready, go_back)
    return Deployments(_open_releases(namespace, context, chart), waiting, is_forced)


def _find_current(
    name: str, namespace: str | None, context: str | None, chart: Path | None
) -> "tuple[Deployments, StoredRelease | None]":
    """Return the deployments and the current release; a first deployment if there is no kubeconfig."""
    from gumshoe.cluster.deploy import Deployments, WaitOptions
    from gumshoe.cluster.kubernetes_api import Cluster, find_kubeconfig
    from gumshoe.cluster.releases import Releases

    try:
        find_kubeconfig()
    except UsageError as error:
        if context is not None:
            raise
        reason = printable(error.message_with_code)
        err.print(f"No cluster available ({reason}); showing the values of a first deployment.", soft_wrap=True)
        return Deployments(Releases(Cluster(namespace or "default"), chart), WaitOptions(0)), None
    changes = open_deployments(namespace, context, chart, 0, go_back=False, until_all_ready=False)
    return changes, changes.releases.find(name)


def _check_health(stored: "StoredRelease", cluster: "Cluster") -> "Health":
    from gumshoe.cluster.readiness import check_health

    return check_health(stored, cluster)


def _list_history(releases: "Releases", name: str) -> Iterator[tuple["Release", str]]:
    from gumshoe.cluster.serving_state import ServingState, describe_release

    for each in releases.list_history(name):
        yield each, describe_release(ServingState.of(releases.get_values(name, each.revision)))


def _describe(stored: "StoredRelease", health: "Health | None") -> dict[str, Any]:
    from gumshoe.cluster.serving_state import ServingState, describe_release

    values, serving = stored.values, ServingState.of(stored.values)
    busy = "" if stored.release.status == "deployed" else f"Helm: {stored.release.status}"
    health_text = "; ".join(filter(None, (busy, health.text if health else "")))
    return {
        "name": stored.release.name,
        "namespace": stored.release.namespace,
        "adapter": serving.adapter,
        "traffic": serving.traffic,
        "said": describe_release(serving),
        "health": health_text,
        "is_ready": bool(health and health.is_ready and not busy),
        "since": f"{stored.release.updated:%Y-%m-%d %H:%M} UTC",
        "revision": stored.release.revision,
        "mode": (values.get("serving") or {}).get("mode", "standard"),
        "model": (values.get("model") or {}).get("uri", "the chart's default"),
        "adapter_uri": (values.get("adapter") or {}).get("uri", ""),
        "store": (values.get("agent") or {}).get("store", ""),
        "index": (values.get("agent") or {}).get("index") or "the latest",
    }


def report_release(changes: "Deployments", release: "Release", json: bool, *, is_waited_for: bool) -> None:
    """Print what a release serves, and how to ask it."""
    stored = changes.releases.get(release.name)
    described = _describe(stored, None)
    if json:
        print_json(
            {key: described[key] for key in ("name", "namespace", "adapter", "traffic", "revision")}
            | {"is_ready": is_waited_for}
        )
        return
    state = "is ready" if is_waited_for else "was changed"
    out.print(f"[bold]{printable(release.name)}[/] {state}: {printable(described['said'])}", soft_wrap=True)
    service, namespace = stored.find_name("Service", "-agent"), release.namespace
    port = next(
        (
            p["port"]
            for each in stored.objects
            if each["metadata"]["name"] == service and each["kind"] == "Service"
            for p in each["spec"]["ports"]
        ),
        80,
    )
    if not is_waited_for:
        err.print(f"Check its state: gumshoe deployments show {release.name} --namespace {namespace}", soft_wrap=True)
    corpus = find_corpus((stored.values.get("agent") or {}).get("environment", DEFAULT_ENVIRONMENT))
    inbox = " --inbox ann@example.com" if corpus and corpus.has_inboxes else ""
    by_key = ((stored.values.get("agent") or {}).get("access") or {}).get("existingSecret")
    err.print(
        f"Ask a question:\n  kubectl -n {namespace} port-forward service/{service} 8000:{port}\n"
        '  gumshoe ask "When is the invoice due?" --url http://127.0.0.1:8000'
        f"{inbox}{' --key KEY' if by_key else ''}",
        soft_wrap=True,
    )
