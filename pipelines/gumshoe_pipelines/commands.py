"""`gumshoe pipeline`: compile, run, submit, watch, list."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.kubeflow_client import KubeflowClient
    from gumshoe_pipelines.watch import RunView

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The whole path, as a graph: compile it, run it here, submit it."
)

Name = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="train-agent, retrain-agent, sweep-agent or evaluate-agent.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", "-p", metavar="NAME=VALUE", help="A parameter, in YAML, such as seed=2; repeatable."),
]
Host = Annotated[str | None, typer.Option(envvar="KFP_HOST", metavar="URL", help="Where Kubeflow Pipelines answers.")]
Namespace = Annotated[
    str | None, typer.Option(envvar="KFP_NAMESPACE", help="Yours, where the server has several users; of the pods.")
]
Token = Annotated[str | None, typer.Option(envvar="KFP_TOKEN", help="What the server lets you in with.")]
InCluster = Annotated[bool, typer.Option("--in-cluster", help="Take address and token from the pod that this runs in.")]
_STATES = {"SUCCEEDED": "green", "RUNNING": "cyan", "FAILED": "red", "CANCELED": "yellow", "SKIPPED": "dim"}
ParameterFile = Annotated[Path | None, typer.Option("--params", metavar="FILE", help="Parameters by name, in YAML.")]


@app.command("compile")
def compile_(
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the YAML goes.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="All of them unless named.")
    ] = None,
) -> None:
    """Compile pipelines to what Kubeflow takes: PIPELINE.yaml for its server, PIPELINE.k8s.yaml for `kubectl apply`."""
    from gumshoe.artifacts.storage import explain_os_errors, writable_directory
    from gumshoe_pipelines.graphs import PIPELINES, compiled, manifests

    place = writable_directory(str(directory))
    for name in names or PIPELINES:
        graph = compiled(name)
        for path, text in ((place / f"{name}.yaml", graph.text), (place / f"{name}.k8s.yaml", manifests(graph))):
            with explain_os_errors(path):
                path.write_text(text, encoding="utf-8")
            out.print(printable(path), soft_wrap=True)


@app.command()
def run(
    name: Name,
    parameters: Parameters = None,
    params: ParameterFile = None,
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="What the run leaves goes here.")] = Path(
        "outputs/pipeline"
    ),
    caching: Annotated[bool, typer.Option("--cache/--no-cache", help="Take what was made before.")] = True,
) -> None:
    """Run a pipeline on this machine, step after step, as Kubeflow would.

    Where they are not set, artifacts go to DIR/store, and the run has an id of its own. With the id of a run that
    stopped, it takes up where that stopped.
    """
    from gumshoe_pipelines.local_runner import run_locally

    place = directory.absolute()
    graph, arguments = _asked(name, parameters, params, "local", {"store": str(place / "store")}, reach=True)
    err.print(f"Run {printable(arguments.get('run', name))}, with all that it leaves in {printable(place)}")
    run_locally(graph, arguments, place, caching=caching)
    _conclude(arguments)


def _conclude(arguments: dict[str, Any]) -> None:
    """What came of a run: the gate's words, what was published, and where every episode can be seen."""
    from gumshoe.artifacts.store import Store

    store, kind = Store(arguments["store"]), f"runs/{arguments.get('run')}/reports"
    if "run" not in arguments or store.latest(kind) is None:
        return
    report = store.manifest(f"{kind}/latest")
    out.print(printable(report.settings.get("why", "")), soft_wrap=True)
    found = store.find(f"adapters/{arguments['run']}")
    out.print(f"Published: [bold]{escape(found.reference) if found else 'nothing'}[/]", soft_wrap=True)
    out.print(f"Every episode: {escape(store.uri)}/{report.reference}/{report.data}/report.html", soft_wrap=True)


@app.command()
def submit(
    name: Name,
    parameters: Parameters = None,
    params: ParameterFile = None,
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    in_cluster: InCluster = False,
    experiment: Annotated[str, typer.Option(help="That the run belongs to; made where it is missing.")] = "gumshoe",
    service_account: Annotated[str | None, typer.Option(help="Of the run's pods.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="SCHEDULE", help='Again and again, such as "0 0 3 * * 0": seconds first, Sundays at 3.'),
    ] = None,
    caching: Annotated[bool, typer.Option("--cache/--no-cache", help="Take what was made before.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    ui: Annotated[
        str | None, typer.Option(envvar="KFP_UI", metavar="URL", help="Where its pages are, if not at --host.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Start a run on a cluster, or have it run again and again. All of it is checked before the server hears of it.

    With the id of a run that stopped, the new one takes up where that stopped.
    """
    if cron is not None and watch:
        raise UsageError(
            "pipelines.cron-with-watch",
            "--watch cannot follow a schedule (--cron); follow one of its runs with `gumshoe pipeline watch ID`",
        )
    from gumshoe_pipelines.kubeflow_client import Address, KubeflowClient

    graph, arguments = _asked(name, parameters, params, "run", {}, reach=False)
    server = KubeflowClient(Address.of(host, namespace, token, in_cluster=in_cluster))
    if cron is not None:
        recurring = server.schedule(
            graph, arguments, cron=cron, experiment=experiment, service_account=service_account, caching=caching
        )
        if json:
            print_json({"recurring_run_id": recurring.recurring_run_id, "cron": cron})
        else:
            out.print(f"{escape(graph.name)} runs at {escape(cron)}: {recurring.recurring_run_id}", soft_wrap=True)
        return
    begun = server.submit(graph, arguments, experiment=experiment, service_account=service_account, caching=caching)
    address = f"{(ui or server.address.host).rstrip('/')}/#/runs/details/{begun.run_id}"
    if json:
        print_json({"run_id": begun.run_id, "run": arguments.get("run"), "address": address})
    else:
        out.print(f"[bold]{escape(arguments.get('run', name))}[/] {begun.run_id}", soft_wrap=True)
        out.print(escape(address), soft_wrap=True)
    if watch:
        _follow(server, begun.run_id)


@app.command("watch")
def watch_(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="As `submit` prints it.")],
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    in_cluster: InCluster = False,
    once: Annotated[bool, typer.Option("--once", help="Say how it is, and no more.")] = False,
) -> None:
    """Follow a run: its steps, how far the training is, and what keeps a pod from running.

    Ends with 1 where the run fails.
    """
    from gumshoe_pipelines.kubeflow_client import Address, KubeflowClient

    _follow(KubeflowClient(Address.of(host, namespace, token, in_cluster=in_cluster)), run_id, once=once)


@app.command("list")
def list_(
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    in_cluster: InCluster = False,
    most: Annotated[int, typer.Option("--limit", min=1, max=100, help="The newest so many.")] = 20,
    json: JsonFlag = False,
) -> None:
    """List runs, the newest first."""
    from rich.table import Table

    from gumshoe_pipelines.kubeflow_client import Address, KubeflowClient

    runs = KubeflowClient(Address.of(host, namespace, token, in_cluster=in_cluster)).runs(most)
    if json:
        print_json([{"run_id": each.run_id, "name": each.display_name, "state": each.state} for each in runs])
        return
    table = Table("run", "state", "begun (UTC)", "id", box=None)
    for each in runs:
        begun = f"{each.created_at:%Y-%m-%d %H:%M}" if each.created_at else ""
        table.add_row(printable(each.display_name), _state(each.state or "PENDING"), begun, each.run_id)
    out.print(table)


def _asked(
    name: str, parameters: list[str] | None, params: Path | None, kind: str, own: dict[str, Any], *, reach: bool
) -> "tuple[Graph, dict[str, Any]]":
    """A pipeline and its parameters, checked: those given, over those that every run has of its own."""
    from gumshoe.artifacts.manifest import code_hash
    from gumshoe_pipelines.graphs import compiled, read_values
    from gumshoe_pipelines.run_arguments import check_arguments

    graph = compiled(name)
    given = read_values(parameters or [], params)
    every = {"run": f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}", "code": code_hash(), **own}
    arguments = graph.checked({**{key: value for key, value in every.items() if key in graph.parameters}, **given})
    check_arguments(arguments, reach=reach)
    return graph, arguments


def _follow(server: "KubeflowClient", run_id: str, *, once: bool = False) -> None:
    from rich.live import Live

    from gumshoe.cluster.kubernetes_api import Cluster
    from gumshoe.errors import GumshoeError
    from gumshoe_pipelines.watch import follow, pods_of

    def warn(said: str) -> None:
        err.print(f"[bold yellow]warning:[/] {printable(said)}", soft_wrap=True)

    cluster = Cluster.of(server.address.namespace or "kubeflow", None)
    told = set[str]()
    view = None
    with Live(console=err, auto_refresh=False, transient=True) as live:
        for view in follow(lambda: server.run(run_id), partial(pods_of, cluster), warn):
            if err.is_terminal:
                live.update(_table(view), refresh=True)
            else:
                _tell(view, told)
            if once:
                break
    if view is None:
        return
    out.print(_table(view))
    if view.state not in ("SUCCEEDED", "RUNNING", "PENDING"):
        why = f": {view.error}" if view.error else "; see the errors of its steps above"
        raise GumshoeError("pipelines.run-failed", f"run {view.name} ended as {view.state}{why}")


def _tell(view: "RunView", told: set[str]) -> None:
    """What is new, a line each, where there is no terminal to draw on."""
    for step in view.steps:
        for text in (f"{step.name}: {step.state}", *filter(None, (step.progress, step.trouble, step.error))):
            if f"{step.name}/{text}" not in told:
                told.add(f"{step.name}/{text}")
                err.print(printable(text), soft_wrap=True)


def _table(view: "RunView") -> Any:
    from rich.table import Table

    table = Table("step", "state", "time", "", title=f"{printable(view.name)}: {view.state}", box=None)
    for step in view.steps:
        time = "" if step.seconds is None else f"{step.seconds // 60:.0f}:{step.seconds % 60:02.0f}"
        said = step.trouble or step.error or step.progress
        table.add_row(printable(step.name), _state(step.state), time, printable(said))
    return table


def _state(state: str) -> str:
    colour = _STATES.get(state, "default")
    return f"[{colour}]{state.lower()}[/]"
