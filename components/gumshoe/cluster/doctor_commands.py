"""`gumshoe doctor`."""

import re
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.redaction import escape_control_characters
from gumshoe.terminal import JsonFlag, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.cluster.doctor import CheckResult, Diagnosis
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
_INDENT = _NAME_WIDTH + 3  # width of the mark and the name
_NARROWEST = 30


def _complete_check() -> list[str]:
    from gumshoe.cluster.doctor import CHECKS

    return list(CHECKS)


@doctor.command(
    epilog="""
    gumshoe doctor --namespace agents --store s3://bucket/project
    gumshoe doctor --only gpus --gpus 8 --toleration nvidia.com/gpu
    """
)
def doctor_(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace for runs (default: the context's).")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig (default: the current one).")] = None,
    store: Annotated[
        str | None,
        typer.Option(envvar="GUMSHOE_STORE", metavar="URI", help="Store for runs: s3://BUCKET/PROJECT."),
    ] = None,
    kfp: Annotated[
        str | None,
        typer.Option(
            envvar="KFP_HOST",
            metavar="URL",
            help="URL of the Kubeflow Pipelines API (default: none; in a pod, the address in the cluster).",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Number of GPUs per pod of a run (default: 1).")] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of GPU pods that run at once: trainers plus rollout servers (default: 1)."),
    ] = None,
    tolerations: Annotated[
        list[str] | None,
        typer.Option(
            "--toleration", metavar="KEY[=VALUE][:EFFECT]", help="Taint that the run's pods tolerate. Repeatable."
        ),
    ] = None,
    gpu_resource: Annotated[
        str,
        typer.Option(metavar="NAME", help="Resource that nodes count GPUs by, e.g. amd.com/gpu or habana.ai/gaudi."),
    ] = "nvidia.com/gpu",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", autocompletion=_complete_check, help="Run only this check. Repeatable."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of each check in seconds.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Check a cluster, a store and Kubeflow Pipelines before the first run, and show how to fix what is missing.

    Checks: api, crds, controllers, pipelines, namespace, dns, network, accounts, secrets, trust, storage, gpus, quota,
    queue, runtime, store, kfp.
    Nothing is changed: test objects in the store are removed again. The store is tested with this command's
    credentials, which may differ from those of pods; to test with theirs, run the preflight Job in
    manifests/components/preflight. Without a kubeconfig, only --store and --kfp are checked, and --namespace,
    --context, --gpus, --nodes and --only are errors.

    Exit status: 0 if all is well (warnings ! allowed); 1 if something must be fixed (✗); 75 if the cluster does not
    answer, or if missing answers are the only problem.
    """
    try:
        from gumshoe.cluster.doctor import DoctorOptions, examine

        wanted = DoctorOptions(
            namespace=namespace,
            context=context,
            store=store,
            kfp=kfp,
            gpus=gpus,
            nodes=nodes,
            tolerations=tuple(map(_parse_toleration, tolerations or [])),
            gpu_resource=gpu_resource,
            only=tuple(only or []),
            seconds=timeout,
        )
        found = examine(wanted)
    except ModuleNotFoundError as error:
        raise UsageError(
            "cluster.missing-dependency", f"gumshoe doctor requires {error.name}: {install_command(extra='deploy')}"
        ) from None
    if json:
        print_json(_describe(found))
    else:
        _print_diagnosis(found)
    raise typer.Exit(found.exit_status)


def _parse_toleration(text: str) -> dict[str, Any]:
    """Parse a taint in the notation of `kubectl taint` into a Kubernetes toleration.

    Raises:
        UsageError: if it is malformed.
    """
    found = _TOLERATION.fullmatch(text)
    if found is None:
        raise UsageError(
            "doctor.invalid-toleration",
            f"--toleration must be KEY, KEY=VALUE or KEY=VALUE:EFFECT, got {text!r}; write e.g. nvidia.com/gpu",
        )
    value = found["value"]
    toleration = {"key": found["key"], "operator": "Exists"} if value is None else {"key": found["key"], "value": value}
    return toleration | ({"effect": found["effect"]} if found["effect"] else {})


def _describe(found: "Diagnosis") -> dict[str, Any]:
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
                        "mend": each.remedy,
                        "commands": list(each.commands),
                        "code": each.code or None,
                    }
                    for each in checked.findings
                ],
            }
            for checked in found.checks
        ],
    }


def _print_diagnosis(found: "Diagnosis") -> None:
    for checked in found.checks:
        _print_check(checked)
    from gumshoe.cluster.preflight.result import State

    wrong = found.count(State.PROBLEM) + found.count(State.UNANSWERED)
    warned = found.count(State.WARNING)
    where = f" Namespace {printable(found.namespace)}." if found.namespace else ""
    unchecked = ", ".join(found.unchecked)
    well = "Nothing to fix in what was checked" if unchecked else "Nothing to fix"
    problems = f"[red]{wrong} to fix[/]" if wrong else f"[green]{well}[/]"
    missing = f"; not checked: {unchecked}" if unchecked else ""
    out.print(f"{problems}, {warned} {'warning' if warned == 1 else 'warnings'}{missing}.{where}", soft_wrap=True)


def _print_check(checked: "CheckResult") -> None:
    name = checked.name
    for each in checked.findings:
        _print_finding(name, each)
        name = ""


def _print_finding(name: str, finding: "Finding") -> None:
    begin = f"{_MARKS[finding.state]} [bold]{name}[/]{' ' * (_NAME_WIDTH - len(name))} "
    for line in _wrap(f"{finding.text} [{finding.code}]" if finding.code else finding.text):
        out.print(f"{begin}{printable(line)}", soft_wrap=True)
        begin = " " * _INDENT
    begin = f"{' ' * _INDENT}[dim]→[/] "
    for line in _wrap(finding.remedy and finding.remedy + (":" if finding.commands else "")):
        out.print(f"{begin}{printable(line)}", soft_wrap=True)
        begin = " " * (_INDENT + 2)
    for command in finding.commands:
        out.print(f"    [cyan]{printable(command)}[/]", soft_wrap=True)  # unwrapped, for copying


def _wrap(text: str) -> list[str]:
    """Wrap a text to the width of the terminal. Words without spaces are not broken."""
    room = max(_NARROWEST, out.width - _INDENT - 2)
    return textwrap.wrap(escape_control_characters(text), room, break_long_words=False, break_on_hyphens=False)
