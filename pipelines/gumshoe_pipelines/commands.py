"""Provide `gumshoe pipeline`: compile, run, submit, watch and list."""

import secrets
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.errors import UsageError
from gumshoe.redaction import redact
from gumshoe.terminal import JsonFlag, create_table, err, out, print_json, print_list, printable
from gumshoe_pipelines.completion import complete_parameter, complete_pipeline

if TYPE_CHECKING:
    from rich.console import Console

    from gumshoe.cluster.pod_problems import ProblemLog
    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.kubeflow_client import KubeflowClient
    from gumshoe_pipelines.run_status import PipelineRunView

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Compile pipelines, run them on this machine, or submit them."
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE", autocompletion=complete_pipeline, help="train-agent, sweep-agent or evaluate-agent."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-p",
        metavar="NAME=VALUE",
        autocompletion=complete_parameter,
        help="One parameter in YAML, e.g. seed=2. Repeatable.",
    ),
]
Host = Annotated[str | None, typer.Option(envvar="KFP_HOST", metavar="URL", help="URL of the Kubeflow Pipelines API.")]
Namespace = Annotated[
    str | None, typer.Option(envvar="KFP_NAMESPACE", help="Kubernetes namespace (Kubeflow profile) to run in.")
]
Token = Annotated[str | None, typer.Option(envvar="KFP_TOKEN", help="Bearer token for the Kubeflow Pipelines API.")]
Cookie = Annotated[
    str | None,
    typer.Option(envvar="KFP_COOKIE", metavar="NAME=VALUE", help="Session cookie of Kubeflow's login page."),
]
InCluster = Annotated[
    bool,
    typer.Option(
        "--in-cluster",
        help="In a pod: use its service account token, and by default the API in namespace kubeflow.",
    ),
]
_NO_IMAGE = "local"  # steps on this machine run without containers
_STATES = {"SUCCEEDED": "green", "RUNNING": "cyan", "FAILED": "red", "CANCELED": "yellow", "SKIPPED": "dim"}
ParameterFile = Annotated[Path | None, typer.Option("--params", metavar="FILE", help="YAML file with parameters.")]


@app.command("compile")
def compile_(
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE]...", autocompletion=complete_pipeline, help="Pipelines to compile (default: all)."
        ),
    ] = None,
    parameters: Parameters = None,
    params: ParameterFile = None,
) -> None:
    """Compile pipelines to YAML: PIPELINE.yaml for the Kubeflow API, PIPELINE.k8s.yaml for `kubectl apply`.

    Only the parameters that a run in Kubeflow cannot have are accepted: queue, priority, cache, image_pull_secret.
    """
    from gumshoe.artifacts.storage import explain_os_errors, make_writable_directory
    from gumshoe_pipelines.graphs import PIPELINES, compile_graph, compile_manifests, read_values
    from gumshoe_pipelines.run_arguments import check_compiled

    present = dict.fromkeys(_use_present_name(each)[0] for each in names or PIPELINES)
    given = read_values(parameters or [], params)
    compiled = {name: check_compiled(name, given) for name in present}
    place = make_writable_directory(str(directory))
    for name in present:
        graph = compile_graph(name, compiled[name])
        for path, text in (
            (place / f"{name}.yaml", graph.text),
            (place / f"{name}.k8s.yaml", compile_manifests(graph)),
        ):
            with explain_os_errors(path):
                path.write_text(text, encoding="utf-8")
            out.print(printable(path), soft_wrap=True)


@app.command()
def run(
    name: Name,
    parameters: Parameters = None,
    params: ParameterFile = None,
    directory: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory for logs, steps and the cache.")
    ] = Path("outputs/pipeline"),
    caching: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse results of identical steps.")] = True,
    is_new: Annotated[bool, typer.Option("--new", help="Start a new run instead of continuing the last one.")] = False,
) -> None:
    """Run a pipeline on this machine, step by step.

    By default, artifacts go to DIR/store. With the parameters of the last run in DIR, it continues that run, unless
    files or code that the parameters name have changed since; otherwise, it is a new run.
    """
    from gumshoe_pipelines.local_inputs import digest_named_inputs
    from gumshoe_pipelines.local_runner import lock_run, prepare_directory, run_locally
    from gumshoe_pipelines.run_summary import print_summary

    place = directory.absolute()
    own = {"store": str(place / "store"), "worker_image": _NO_IMAGE, "trainer_image": _NO_IMAGE}
    graph, arguments = _prepare_run(name, parameters, params, own, is_local=True)
    if is_new and arguments.get("run"):
        raise UsageError(
            "pipelines.new-with-run",
            f"--new starts a new run, and run names one: {arguments['run']}; leave one of them out",
        )
    prepare_directory(place)
    with lock_run(place) as lock:
        inputs = digest_named_inputs(arguments)
        arguments["run"] = arguments.get("run") or _choose_run(place, graph, arguments, inputs, is_new=is_new)
        err.print(f"Run {printable(arguments['run'])}, output in {printable(place)}", soft_wrap=True)
        run_locally(graph, arguments, place, caching=caching, inputs=inputs, lock=lock)
        print_summary(arguments, place)


def _choose_run(place: Path, graph: "Graph", arguments: dict[str, Any], inputs: str, *, is_new: bool) -> str:
    """Return the ID of the last run in a directory if it can be continued, else a new one, and say why."""
    from gumshoe_pipelines.local_runner import find_last_run

    last = None if is_new else find_last_run(place, graph, arguments, inputs)
    if last:
        err.print(
            f"Continuing run {printable(last)}, which has the same parameters; --new starts another", soft_wrap=True
        )
        return last
    other = None if is_new else find_last_run(place, graph, arguments)
    if other:
        err.print(
            f"Run {printable(other)} has the same parameters, but code, files or settings that they name have changed, "
            f"so this is a new run; -p run={printable(other)} continues that one",
            soft_wrap=True,
        )
    return _create_run_id("local")


@app.command()
def submit(
    name: Name,
    parameters: Parameters = None,
    params: ParameterFile = None,
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    cookie: Cookie = None,
    in_cluster: InCluster = False,
    experiment: Annotated[str, typer.Option(help="Experiment name (created if missing).")] = "gumshoe",
    service_account: Annotated[str | None, typer.Option(help="Service account of the run's pods.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULE",
            help='Run on a schedule: six cron fields, beginning with seconds, e.g. "0 0 3 * * 0" for Sundays at 3.',
        ),
    ] = None,
    caching: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse results of identical steps.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    ui: Annotated[
        str | None,
        typer.Option(envvar="KFP_UI", metavar="URL", help="URL of the Kubeflow web pages (default: --host)."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Start a run on a cluster, or schedule runs. All parameters are checked before anything is sent.

    With the ID of a stopped run, the new one continues where that run stopped.
    """
    if cron is not None and watch:
        raise UsageError(
            "pipelines.cron-with-watch",
            "--watch cannot follow a schedule (--cron); follow one of its runs with `gumshoe pipeline watch ID`",
        )
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress
    from gumshoe_pipelines.run_arguments import check_cron

    if cron is not None:
        check_cron(cron)
    own = {} if cron else {"run": _create_run_id("run")}
    graph, arguments = _prepare_run(name, parameters, params, own, is_local=False)
    if cron and arguments.get("run"):
        raise UsageError(
            "pipelines.run-with-cron",
            f"every run of a schedule needs an ID of its own, got run {arguments['run']}; leave run out",
        )
    server = KubeflowClient(ServerAddress.of(host, namespace, token, cookie, in_cluster=in_cluster))
    if cron is not None:
        recurring = server.schedule(
            graph, arguments, cron=cron, experiment=experiment, service_account=service_account, caching=caching
        )
        if json:
            print_json({"recurring_run_id": recurring.recurring_run_id, "cron": cron})
        else:
            out.print(
                f"{printable(graph.name)} runs at {printable(cron)}: {recurring.recurring_run_id}", soft_wrap=True
            )
        return
    submitted = server.submit(graph, arguments, experiment=experiment, service_account=service_account, caching=caching)
    address = f"{redact(ui or server.address.host).rstrip('/')}/#/runs/details/{submitted.run_id}"
    if json:
        print_json({"run_id": submitted.run_id, "run": arguments.get("run"), "address": address})
    else:
        out.print(f"[bold]{printable(arguments.get('run', name))}[/] {submitted.run_id}", soft_wrap=True)
        out.print(printable(address), soft_wrap=True)
    if watch:
        _follow(server, submitted.run_id, result=err if json else out)  # the JSON document stays the only one


@app.command("watch")
def watch_(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="Run ID that `submit` printed.")],
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    cookie: Cookie = None,
    in_cluster: InCluster = False,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Follow a run: the state of its steps, the progress of the training, and problems of pods.

    Exits with 1 if the run fails.
    """
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    _follow(KubeflowClient(ServerAddress.of(host, namespace, token, cookie, in_cluster=in_cluster)), run_id, once=once)


@app.command("list")
def list_(
    host: Host = None,
    namespace: Namespace = None,
    token: Token = None,
    cookie: Cookie = None,
    in_cluster: InCluster = False,
    most: Annotated[int, typer.Option("--limit", min=1, max=100, help="Maximum number of runs.")] = 20,
    json: JsonFlag = False,
) -> None:
    """List runs, newest first."""
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    runs = KubeflowClient(ServerAddress.of(host, namespace, token, cookie, in_cluster=in_cluster)).list_runs(most)
    if json:
        print_json([{"run_id": each.run_id, "name": each.display_name, "state": each.state} for each in runs])
        return
    table = create_table("run", "state", "created (UTC)", "id", box=None)
    for each in runs:
        created = f"{each.created_at:%Y-%m-%d %H:%M}" if each.created_at else ""
        table.add_row(printable(each.display_name), _format_state(each.state or "PENDING"), created, each.run_id)
    print_list(table)


def _create_run_id(kind: str) -> str:
    # Several runs may be submitted in one second.
    return f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _use_present_name(name: str) -> tuple[str, dict[str, Any]]:
    """Return the present name of a pipeline, and the parameters that an earlier name stands for."""
    from gumshoe_pipelines.graphs import RENAMED

    present, own = RENAMED.get(name, (name, {}))
    if name in RENAMED:
        options = " ".join(f"-p {key}={value}" for key, value in own.items())
        _warn(f"{name} is now {present} {options}")
    return present, own


def _prepare_run(
    name: str, parameters: list[str] | None, params: Path | None, own: dict[str, Any], *, is_local: bool
) -> "tuple[Graph, dict[str, Any]]":
    """Compile a pipeline, and check and complete its parameters: those given, defaults, and `own`."""
    from gumshoe.artifacts.manifest import code_hash
    from gumshoe_pipelines.graphs import compile_graph, read_values, split_parameters
    from gumshoe_pipelines.run_arguments import check_arguments, complete_arguments

    present, implied = _use_present_name(name)
    compiled, given = split_parameters(present, read_values(parameters or [], params))
    graph = compile_graph(present, {} if is_local else compiled)  # there are no pods on this machine
    # Base model and config are filled in, since they decide what the settings of a training and its files are.
    usual = {name: graph.parameters.get(name, {}).get("defaultValue") for name in ("base_model", "config")}
    defaults = {"code": code_hash(), **usual, **own, **implied}
    arguments = graph.check({**{key: value for key, value in defaults.items() if key in graph.parameters}, **given})
    check_arguments({**compiled, **arguments}, is_local=is_local)
    return graph, complete_arguments(arguments, is_local=is_local)


def _warn(message: str) -> None:
    err.print(f"[bold yellow]warning:[/] {printable(message)}", soft_wrap=True)


def _follow(server: "KubeflowClient", run_id: str, *, once: bool = False, result: "Console" = out) -> None:
    from rich.live import Live

    from gumshoe.cluster.kubernetes_api import Cluster
    from gumshoe.cluster.pod_problems import ProblemLog
    from gumshoe.cluster.pod_refusals import find_step_refusals
    from gumshoe.errors import GumshoeError
    from gumshoe_pipelines.run_status import view_pods, watch_run

    cluster = Cluster.of(server.address.namespace or "kubeflow", None)
    printed, problems = set[str](), ProblemLog()
    get_pods, get_refusals = partial(view_pods, cluster), partial(find_step_refusals, cluster)
    view = None
    with Live(console=err, auto_refresh=False, transient=True) as live:
        for view in watch_run(lambda: server.get_run(run_id), get_pods, get_refusals, _warn):
            if err.is_terminal:
                live.update(_build_table(view), refresh=True)
            else:
                _print_news(view, printed, problems)
            if once:
                break
    if view is None:
        return
    result.print(_build_table(view))
    if view.state not in ("SUCCEEDED", "RUNNING", "PENDING"):
        why = f": {view.error}" if view.error else "; see the errors of its steps above"
        raise GumshoeError("pipelines.run-failed", f"run {view.name} ended with state {view.state}{why}")


def _print_news(view: "PipelineRunView", printed: set[str], problems: "ProblemLog") -> None:
    """Print what is new, one line each, if the output is not a terminal."""
    for step in view.steps:
        for text in (f"{step.name}: {step.state}", *filter(None, (step.progress, step.error))):
            if f"{step.name}/{text}" not in printed:
                printed.add(f"{step.name}/{text}")
                err.print(printable(text), soft_wrap=True)
        if step.problem and problems.is_news(step.name, step.problem):
            err.print(printable(f"{step.name}: {step.problem}"), soft_wrap=True)


def _build_table(view: "PipelineRunView") -> Any:
    table = create_table("step", "state", "time", "", title=f"{printable(view.name)}: {view.state}", box=None)
    for step in view.steps:
        time = "" if step.seconds is None else f"{step.seconds // 60:.0f}:{step.seconds % 60:02.0f}"
        note = step.problem or step.error or step.progress
        table.add_row(printable(step.name), _format_state(step.state), time, printable(note))
    return table


def _format_state(state: str) -> str:
    colour = _STATES.get(state, "default")
    return f"[{colour}]{state.lower()}[/]"
