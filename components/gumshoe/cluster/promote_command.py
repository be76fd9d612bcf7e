"""`gumshoe promote`: promote a canary now, or watch it and decide by its measures."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.cluster.commands import (
    READY_MINUTES,
    ChartDirectory,
    Context,
    Force,
    GoBack,
    Minutes,
    Name,
    Namespace,
    NoWait,
    open_deployments,
    report_release,
)
from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, print_json, printable

if TYPE_CHECKING:
    from gumshoe.cluster.canary_watch import CanaryWatch, WatchResult
    from gumshoe.cluster.deploy import Deployments

promote = typer.Typer(add_completion=False)
_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


@promote.command(
    epilog="""
    gumshoe promote agent --namespace agents
    gumshoe promote agent --when "corrections <= baseline" --for 2h
    """
)
def promote_(
    name: Name,
    when: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Watch the canary, and promote it when this is shown, e.g. 'success >= baseline - 2%' (default while "
            "watching: not worse in success, corrections, errors and latency_p95).",
        ),
    ] = None,
    rollback_when: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Watch the canary, and roll it back when this is shown, or `never` (default while watching: the "
            "opposite of --when, or worse in another measure).",
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Watch at most this long, e.g. 90min (default: 2h).")
    ] = None,
    min_episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Questions that each adapter must have had before a promotion (default: 100)."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence of each decision, however often it is looked (default: 0.95).")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time between two looks at the metrics (default: 30s).")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A Prometheus server, or the /metrics of an agent server. Repeatable. Default: the pods, through the "
            "Kubernetes API.",
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    chart: ChartDirectory = None,
    timeout: Minutes = READY_MINUTES,
    no_wait: NoWait = False,
    go_back: GoBack = False,
    force: Force = False,
    json: JsonFlag = False,
) -> None:
    """Route all questions to a deployment's canary. vLLM has it loaded already, so only the agent server restarts.

    With one of the options from --when to --metrics, watch the canary and decide by its own measures.
    """
    if (when, rollback_when, duration, min_episodes, confidence, every, metrics or None) == (None,) * 7:
        changes = open_deployments(namespace, context, chart, timeout, go_back, not no_wait, is_forced=force)
        report_release(changes, changes.promote(name), json, is_waited_for=not no_wait)
        return
    from gumshoe.cluster.canary_plan import WatchPlan
    from gumshoe.cluster.canary_watch import CanaryWatch, raise_unless_promoted
    from gumshoe.cluster.metrics_sources import check_metrics_url, open_source

    for url in metrics or []:
        check_metrics_url(url)
    plan = WatchPlan.of(  # before the cluster is contacted
        when,
        rollback_when,
        seconds=None if duration is None else _parse_duration("--for", duration),
        min_episodes=min_episodes,
        confidence=confidence,
        every=None if every is None else _parse_duration("--every", every),
    )
    changes = open_deployments(namespace, context, chart, timeout, go_back, not no_wait, is_forced=force)
    watch = CanaryWatch(changes, open_source(metrics or [], changes.releases.cluster), plan)
    result = _run(watch, name)
    if json:
        print_json({"name": name, "namespace": changes.releases.cluster.namespace, **asdict(result)})
    raise_unless_promoted(result, name)
    if not json:
        _report(changes, name, result, is_waited_for=not no_wait)


def _run(watch: "CanaryWatch", name: str) -> "WatchResult":
    """Watch, and say what stays as it is if the user interrupts it."""
    try:
        return watch.run(name)
    except KeyboardInterrupt:
        if watch.is_changing:
            state = "the change has begun; see how far it is, or repeat the command to finish it"
        else:
            state = "nothing was changed, and the canary keeps its share; repeat the command to watch on"
        err.print(f"Interrupted: {state}: gumshoe deployments show {printable(name)}", soft_wrap=True)
        raise


def _report(changes: "Deployments", name: str, result: "WatchResult", *, is_waited_for: bool) -> None:
    err.print(printable(result.text), soft_wrap=True)
    report_release(changes, changes.releases.get(name).release, False, is_waited_for=is_waited_for)


def _parse_duration(option: str, text: str) -> float:
    """Parse a duration such as `90min`, and return it in seconds.

    Raises:
        UsageError: if it is not one, or not positive.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS.get(found[2], 0) if found else 0.0
    if not 0 < seconds <= 30 * _UNITS["d"]:
        raise UsageError(
            "deploy.invalid-duration",
            f"{option} must be a time with a unit (s, min, h or d) of at most 30 days, got {text!r}; write e.g. 2h",
        )
    return seconds
