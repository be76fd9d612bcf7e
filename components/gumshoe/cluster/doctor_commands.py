"""`gumshoe doctor`."""

import re
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, out, plain, print_json, printable

if TYPE_CHECKING:
    from gumshoe.cluster.doctor import Checked, Diagnosis
    from gumshoe.cluster.preflight.result import Finding

doctor = typer.Typer(add_completion=False)

_TOLERATION = re.compile(r"(?P<key>[^=:\s]+)(?:=(?P<value>[^:\s]*))?(?::(?P<effect>NoSchedule|NoExecute))?")
_MARKS = {
    "ok": "[green]✓[/]",
    "warning": "[yellow]![/]",
    "problem": "[red]✗[/]",
    "unanswered": "[red]✗[/]",
    "skipped": "[dim]-[/]",
}
_NAME_WIDTH = 12
_INDENT = _NAME_WIDTH + 3  # behind the mark and the name
_NARROWEST = 30


@doctor.command()
def doctor_(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where runs are to be; the context's own unless given.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Of the kubeconfig; its current one unless given.")] = None,
    store: Annotated[
        str | None,
        typer.Option(envvar="GUMSHOE_STORE", metavar="URI", help="Of the runs: s3://BUCKET/PROJECT."),
    ] = None,
    kfp: Annotated[
        str | None,
        typer.Option(
            envvar="KFP_HOST", metavar="URL", help="Where Kubeflow Pipelines answers; in a pod, its usual address."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Of each pod of a run.")] = 1,
    nodes: Annotated[
        int, typer.Option(min=1, help="Pods with so many GPUs that run at once: those that train and those that serve.")
    ] = 1,
    tolerations: Annotated[
        list[str] | None,
        typer.Option(
            "--toleration", metavar="KEY[=VALUE][:EFFECT]", help="A taint that the run's pods bear; repeatable."
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="This check alone; repeatable.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a check may take.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Check a cluster, a store and Kubeflow Pipelines before the first run, and say how to mend what is missing.

    Checks: api, crds, controllers, namespace, accounts, secrets, storage, gpus, quota, queue, runtime, store, kfp.
    Nothing is changed: what is written to the store to try it is removed again. The store is tried with the
    credentials that this command has, which may not be those of pods; the preflight Job, in
    manifests/components/preflight, has theirs. Without a kubeconfig, --store and --kfp are looked at alone.

    Exit status: 0 all is well, but for warnings (!); 1 something is to be mended (✗); 75 the cluster does not answer,
    or nothing is wrong but that something does not.
    """
    try:
        from gumshoe.cluster.doctor import Wanted, examine

        wanted = Wanted(
            namespace=namespace,
            context=context,
            store=store,
            kfp=kfp,
            gpus=gpus,
            nodes=nodes,
            tolerations=tuple(map(_toleration, tolerations or [])),
            only=tuple(only or []),
            seconds=timeout,
        )
        found = examine(wanted)
    except ModuleNotFoundError as error:
        raise UsageError(
            "cluster.missing-dependency", f"gumshoe doctor requires {error.name}: pip install 'gumshoe-agents[deploy]'"
        ) from None
    if json:
        print_json(_described(found))
    else:
        _show(found)
    raise typer.Exit(found.exit_status)


def _toleration(text: str) -> dict[str, Any]:
    """A toleration as Kubernetes has it, from what `kubectl taint` calls a taint.

    Raises:
        UsageError: it is none.
    """
    found = _TOLERATION.fullmatch(text)
    if found is None:
        raise UsageError(
            "doctor.invalid-toleration",
            f"--toleration must be KEY, KEY=VALUE or KEY=VALUE:EFFECT, got {text!r}; write e.g. nvidia.com/gpu",
        )
    value = found["value"]
    made = {"key": found["key"], "operator": "Exists"} if value is None else {"key": found["key"], "value": value}
    return made | ({"effect": found["effect"]} if found["effect"] else {})


def _described(found: "Diagnosis") -> dict[str, Any]:
    return {
        "namespace": found.namespace,
        "is_well": found.exit_status == 0,
        "checks": [
            {
                "check": checked.name,
                "state": checked.state,
                "findings": [
                    {
                        "state": each.state,
                        "text": each.text,
                        "mend": each.mend,
                        "commands": list(each.commands),
                        "code": each.code or None,
                    }
                    for each in checked.findings
                ],
            }
            for checked in found.checks
        ],
    }


def _show(found: "Diagnosis") -> None:
    for checked in found.checks:
        _show_check(checked)
    from gumshoe.cluster.preflight.result import State

    wrong = found.count(State.PROBLEM) + found.count(State.UNANSWERED)
    warned = found.count(State.WARNING)
    where = f" Namespace {printable(found.namespace)}." if found.namespace else ""
    told = f"[red]{wrong} to mend[/]" if wrong else "[green]Nothing must be mended[/]"
    out.print(f"{told}, {warned} {'warning' if warned == 1 else 'warnings'}.{where}", soft_wrap=True)


def _show_check(checked: "Checked") -> None:
    name = checked.name
    for each in checked.findings:
        _show_finding(name, each)
        name = ""


def _show_finding(name: str, finding: "Finding") -> None:
    begin = f"{_MARKS[finding.state]} [bold]{name}[/]{' ' * (_NAME_WIDTH - len(name))} "
    for line in _lines(f"{finding.text} [{finding.code}]" if finding.code else finding.text):
        out.print(f"{begin}{printable(line)}", soft_wrap=True)
        begin = " " * _INDENT
    begin = f"{' ' * _INDENT}[dim]→[/] "
    for line in _lines(finding.mend and finding.mend + (":" if finding.commands else "")):
        out.print(f"{begin}{printable(line)}", soft_wrap=True)
        begin = " " * (_INDENT + 2)
    for command in finding.commands:
        out.print(f"    [cyan]{printable(command)}[/]", soft_wrap=True)  # whole, to be copied


def _lines(text: str) -> list[str]:
    """A text as wide as there is room; what has no spaces stays whole."""
    room = max(_NARROWEST, out.width - _INDENT - 2)
    return textwrap.wrap(plain(text), room, break_long_words=False, break_on_hyphens=False)
