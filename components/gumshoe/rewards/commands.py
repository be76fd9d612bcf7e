"""`gumshoe judge`: score trajectories with judges and rewards, and calibrate a judge on labelled answers."""

import asyncio
import io
import json as json_lines
from collections import Counter
from collections.abc import Coroutine
from dataclasses import asdict
from math import isnan
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gumshoe.completion import complete_judge
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.terminal import JsonFlag, create_table, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.rewards.chat_judge import JudgeModel
    from gumshoe.rewards.judge import Judge
    from gumshoe.rewards.reward import Reward
    from gumshoe.rewards.ruler import Ruler

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Score trajectories and calibrate judges.")
Result = TypeVar("Result")

Trajectories = Annotated[Path, typer.Argument(metavar="FILE", help="File of trajectories.")]
JudgeWord = Annotated[
    str,
    typer.Option(
        "--judge",
        metavar="WORD",
        autocompletion=complete_judge,
        help="Judge: heuristic, exact, openai:MODEL, openai:MODEL@URL or embedding:MODEL.",
    ),
]
Threshold = Annotated[
    float | None, typer.Option(min=-1, max=1, help="Minimum cosine similarity (embedding judges only). Default: 0.8.")
]
PromptPrice = Annotated[float | None, typer.Option(min=0, help="Dollars per million prompt tokens.")]
CompletionPrice = Annotated[float | None, typer.Option(min=0, help="Dollars per million completion tokens.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Maximum number of concurrent requests. Default: 16.")]
Deadline = Annotated[float | None, typer.Option(min=1, help="Seconds per question, with all attempts. Default: 120.")]
CachePath = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FILE", help="Cache of answers and embeddings. Default: in the user's cache."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not read or write a cache.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the results here, as JSONL.")]


@app.callback()
def _group() -> None:
    """Score trajectories and calibrate judges."""


@app.command(epilog="gumshoe judge score tiny.jsonl --scenarios questions.jsonl")
def score(
    path: Trajectories,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios of the trajectories.")],
    judge: JudgeWord = "heuristic",
    threshold: Threshold = None,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    results: OutFile = None,
    json: JsonFlag = False,
) -> None:
    """Judge each answer as correct or wrong. Exits with 75 if some answers have no verdict."""
    from gumshoe.rewards.scoring import judge_trajectories

    _check_results(results)
    model = _model_settings(prompt_price, completion_price, concurrency, deadline, cache, no_cache)
    opened = _open_judge(judge, threshold, model)
    with progress("Judging") as advance:
        found = _run_and_close(judge_trajectories(path, scenarios, opened, advance), opened)
    _write_results(results, [asdict(each) for each in found])
    correct, failed = sum(each.correct is True for each in found), sum(each.correct is None for each in found)
    rules = Counter(each.rule for each in found if each.rule)
    undecided = sum(each.is_undecided for each in found)
    if json:
        counts = {"episodes": len(found), "correct": correct, "undecided": undecided, "failed": failed}
        facts = {**counts, "usage": _usage(opened)}
        print_json({**facts, "results": [asdict(each) for each in found]})
    else:
        judged = len(found) - failed
        share = f" ({correct / judged:.1%})" if judged else ""
        out.print(f"[bold]{correct:,} of {judged:,} correct[/]{share} according to {printable(judge)}", soft_wrap=True)
        for rule, count in rules.most_common():
            out.print(f"  {count:>6,} {printable(rule)}")
        if undecided:
            out.print(f"{undecided:,} answers are undecided, and count as wrong", soft_wrap=True)
        _print_usage(opened)
    _check_verdicts([each.why for each in found if each.correct is None])


@app.command(epilog="gumshoe judge reward t.jsonl --scenarios q.jsonl --reward my_rewards:short")
def reward(
    path: Trajectories,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios of the trajectories.")],
    rewards: Annotated[
        list[str],
        typer.Option(
            "--reward",
            metavar="NAME",
            help="Reward function: built-in, MODULE:NAME, or {name: NAME, arguments: {...}}. Repeatable.",
        ),
    ],
    json: JsonFlag = False,
) -> None:
    """Compute rewards of recorded episodes as training does. Exits with 75 if a judge gave no answer."""
    from gumshoe.rewards.reward import load_rewards, parse_reward
    from gumshoe.rewards.scoring import reward_trajectories

    opened = load_rewards([parse_reward(each) for each in rewards])
    with progress("Scoring") as advance:
        found = _run_and_close(reward_trajectories(path, scenarios, opened, advance), *opened)
    columns = {each.name: [episode.rewards[each.name] for episode in found] for each in opened}
    means = {name: mean(kept) if (kept := _applicable(values)) else None for name, values in columns.items()}
    if json:
        episodes = [
            asdict(each) | {"rewards": {name: _number(value) for name, value in each.rewards.items()}} for each in found
        ]
        print_json({"episodes": len(found), "means": means, "results": episodes})
        return
    shown = create_table("episode", *(printable(name) for name in columns))
    for each in found:
        shown.add_row(f"{printable(each.scenario)}/{each.sample}", *map(_format_reward, each.rewards.values()))
    shown.add_section()
    shown.add_row("mean", *map(_format_reward, means.values()))
    out.print(shown)


@app.command(epilog="gumshoe judge ruler tiny.jsonl --judge gpt-4.1")
def ruler(
    path: Trajectories,
    judge: Annotated[str, typer.Option(metavar="MODEL[@URL]", help="Chat model that scores.")],
    shuffles: Annotated[
        int, typer.Option(min=1, help="Number of random orders per group; scores are means over them.")
    ] = 1,
    rubric: Annotated[Path | None, typer.Option(metavar="FILE", help="Text file with the scoring criteria.")] = None,
    max_characters: Annotated[
        int, typer.Option(min=1000, help="Maximum characters of a group in a request; longer results are shortened.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Random seed of the orders and ids.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    results: OutFile = None,
    json: JsonFlag = False,
) -> None:
    """Score the trajectories of each group relative to each other. Exits with 75 if groups were dropped."""
    from gumshoe.rewards.chat_judge import parse_model_name
    from gumshoe.rewards.ruler import open_ruler
    from gumshoe.rewards.scoring import score_groups

    _check_results(results)
    model = _model_settings(prompt_price, completion_price, concurrency, deadline, cache, no_cache)
    settings: dict[str, Any] = {"model": parse_model_name(judge) | model, "shuffles": shuffles, "seed": seed}
    settings["max_characters"] = max_characters
    if rubric is not None:
        settings["rubric"] = _read_rubric(rubric)
    opened = open_ruler(settings)
    with progress("Scoring") as advance:
        found = _run_and_close(score_groups(path, opened, advance), opened)
    _write_results(results, [asdict(each) for each in found])
    scored = [each.scores for each in found if each.scores]
    dropped = [each.dropped for each in found if not each.scores]
    spread = sum(each.spread for each in scored) / len(scored) if scored else 0.0
    if json:
        facts = {"groups": len(found), "dropped": len(dropped), "spread": spread, "usage": _usage(opened)}
        print_json({**facts, "results": [asdict(each) for each in found]})
    else:
        out.print(f"[bold]{len(scored):,} groups scored[/], {len(dropped):,} dropped", soft_wrap=True)
        for each in found:
            shown = (
                [f"{number}: {value:.2f}" for number, value in zip(each.samples, each.scores.scores, strict=True)]
                if each.scores
                else ["dropped"]
            )
            out.print(f"  {printable(each.scenario)}  {', '.join(shown)}", soft_wrap=True)
        if shuffles > 1:
            out.print(f"position bias: standard deviation {spread:.3f} of a trajectory's scores in {shuffles} orders")
        _print_usage(opened)
    if dropped:
        raise UnavailableError("judges.groups-dropped", f"{len(dropped):,} groups have no scores, e.g.: {dropped[0]}")


@app.command(epilog="gumshoe judge calibrate labelled.jsonl --judge openai:gpt-4.1 --mistakes 5")
def calibrate(
    path: Annotated[str, typer.Argument(metavar="FILE", help="File of labelled answers, as JSONL.")],
    judge: JudgeWord = "heuristic",
    threshold: Threshold = None,
    mistakes: Annotated[int, typer.Option(min=0, help="Number of wrong verdicts to show.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    json: JsonFlag = False,
) -> None:
    """Measure the accuracy of a judge on labelled answers.

    Each line is a JSON object with question, reference, answer and correct, and optionally query_date and kind. Exits
    with 75 if some answers have no verdict.
    """
    from gumshoe.rewards.scoring import calibrate as calibrate_judge
    from gumshoe.rewards.scoring import read_labelled

    answers = read_labelled(path)
    opened = _open_judge(
        judge, threshold, _model_settings(prompt_price, completion_price, concurrency, deadline, cache, no_cache)
    )
    with progress("Judging") as advance:
        found = _run_and_close(calibrate_judge(answers, opened, advance), opened)
    table = {(label, verdict): found.table[label, verdict] for label in (True, False) for verdict in (True, False)}
    names = {True: "right", False: "wrong"}
    if json:
        confusion = {f"{names[label]}, judged {names[verdict]}": count for (label, verdict), count in table.items()}
        kinds = {kind: counts[True] / counts.total() for kind, counts in found.kinds.items()}
        print_json(
            {
                "accuracy": found.accuracy,
                "confusion": confusion,
                "rates": {
                    name: {"count": rate.count, "of": rate.of, "share": rate.share, "interval": rate.interval}
                    for name, rate in found.rates.items()
                },
                "kinds": kinds,
                "failed": len(found.failures),
                "usage": _usage(opened),
            }
        )
    else:
        out.print(f"[bold]{found.accuracy:.1%}[/] of {found.table.total():,} verdicts agree with the label")
        shown = create_table("", "judged right", "judged wrong")
        for label, name in names.items():
            shown.add_row(name, str(table[label, True]), str(table[label, False]))
        out.print(shown)
        for name, rate in found.rates.items():
            low, high = rate.interval
            out.print(f"{name}: {rate.count:,} of {rate.of:,}, {rate.share:.1%} (95% interval {low:.1%} to {high:.1%})")
        for kind, counts in sorted(found.kinds.items(), key=lambda each: each[1][True] / each[1].total()):
            out.print(f"  {counts[True]:>4,} of {counts.total():>4,} {printable(kind)}")
        for each, why in found.mistakes[:mistakes]:
            out.print(
                f"\n[bold]{names[each.correct]}[/], judged {names[not each.correct]} ({printable(why)})\n  "
                f"{printable(each.question)}\n  reference: {printable(each.reference)}\n  answer: "
                f"{printable(each.given)}",
                soft_wrap=True,
            )
        _print_usage(opened)
    _check_verdicts(found.failures)
    if not json:
        print_next("gumshoe", "judge", "score", "TRAJECTORIES", "--scenarios", "FILE", "--judge", judge)


def _open_judge(word: str, threshold: float | None, model: dict[str, Any]) -> "Judge":
    from gumshoe.rewards.judge_registry import open_judge, parse_judge

    name, settings = parse_judge(word)
    takes = {"openai": set(model), "embedding": {"cache", "threshold"}}.get(name, set())
    given = model | ({} if threshold is None else {"threshold": threshold})
    unsupported = ", ".join(f"--{each.replace('_', '-')}" for each in given if each not in takes and each != "cache")
    if unsupported:
        raise UsageError(
            "judges.option-not-supported",
            f"the judge {name} does not support {unsupported}; remove it, or use another judge",
        )
    return open_judge({name: settings | {each: value for each, value in given.items() if each in takes}})


def _model_settings(
    prompt_price: float | None,
    completion_price: float | None,
    concurrency: int | None,
    deadline: float | None,
    cache: Path | None,
    no_cache: bool,
) -> dict[str, Any]:
    """Return the settings of the judge's model given by options."""
    if cache and no_cache:
        raise UsageError("judges.cache-conflict", "--cache and --no-cache exclude each other; use one of them")
    kept = {"cache": None} if no_cache else {"cache": cache} if cache else {}
    bounds = {"concurrency": concurrency, "deadline": deadline}
    given = {"prompt_price": prompt_price, "completion_price": completion_price, **bounds}
    return {name: value for name, value in given.items() if value is not None} | kept


def _applicable(values: list[float]) -> list[float]:
    return [value for value in values if not isnan(value)]


def _number(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if isnan(value) else value


def _format_reward(value: float | None) -> str:
    return "-" if value is None or isnan(value) else f"{value:.3f}"


def _run_and_close(work: Coroutine[Any, Any, Result], *judges: "Judge | Ruler | Reward") -> Result:
    """Run a coroutine, then close the judges."""

    async def run_and_close() -> Result:
        try:
            return await work
        finally:
            for each in judges:
                await each.aclose()

    return asyncio.run(run_and_close())


def _usage(judge: object) -> dict[str, Any]:
    from gumshoe.rewards.heuristic.heuristic_judge import HeuristicJudge

    judge = judge.second if isinstance(judge, HeuristicJudge) else judge
    model: JudgeModel | None = getattr(judge, "model", None)
    return {} if model is None else model.usage.to_dict()


def _print_usage(judge: object) -> None:
    used = _usage(judge)
    if used:
        out.print(
            f"{used['requests']:,} requests ({used['retried']:,} retries, {used['unusable']:,} unusable answers), "
            f"{used['cached']:,} answers from the cache; {used['prompt_tokens']:,} prompt tokens, "
            f"{used['completion_tokens']:,} completion tokens, ${used['cost']:.4f}; {used['latency']:.2f} s/request",
            soft_wrap=True,
        )


def _check_results(path: Path | None) -> None:
    """Check that the results can be written, before any request is made."""
    from gumshoe.artifacts.storage import check_output_file

    if path is not None:
        check_output_file(path)


def _write_results(path: Path | None, results: list[dict[str, Any]]) -> None:
    from gumshoe.artifacts.storage import explain_os_errors, write_atomically

    if path is not None:
        lines = "".join(f"{json_lines.dumps(each, ensure_ascii=False)}\n" for each in results)
        with explain_os_errors(path):
            write_atomically(path, io.BytesIO(lines.encode()))


def _read_rubric(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("judges.rubric-unreadable", f"cannot read {path}: {error}; name a UTF-8 text file") from None


def _check_verdicts(failures: list[str]) -> None:
    if failures:
        raise UnavailableError(
            "judges.verdicts-missing", f"{len(failures):,} answers have no verdict, e.g.: {failures[0]}"
        )
