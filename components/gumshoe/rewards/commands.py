"""`gumshoe judge`: score trajectories, and measure a judge on labelled answers."""

import asyncio
import json as json_lines
from collections import Counter
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.terminal import JsonFlag, out, print_json, printable, progress

if TYPE_CHECKING:
    from gumshoe.rewards.chat_judge import JudgeModel
    from gumshoe.rewards.judge import Judge
    from gumshoe.rewards.ruler import Ruler

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Score trajectories, and measure a judge.")
Result = TypeVar("Result")

Trajectories = Annotated[Path, typer.Argument(metavar="FILE", help="A file of trajectories.")]
JudgeWord = Annotated[
    str,
    typer.Option("--judge", metavar="WORD", help="heuristic, exact, openai:MODEL[@URL] or embedding:MODEL."),
]
Threshold = Annotated[
    float | None, typer.Option(min=-1, max=1, help="Of an embedding judge: the similarity that is enough.")
]
PromptPrice = Annotated[float | None, typer.Option(min=0, help="Dollars for a million tokens that a model reads.")]
CompletionPrice = Annotated[float | None, typer.Option(min=0, help="Dollars for a million tokens that it writes.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Requests at once.")]
Deadline = Annotated[float | None, typer.Option(min=1, help="Seconds for one question, with all its tries.")]
CachePath = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="FILE", help="Where answers and vectors are kept; in the user's cache unless given."
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Ask again what was asked before.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Each result goes here, as JSONL.")]


@app.callback()
def _group() -> None:
    """Score trajectories, and measure a judge."""


@app.command()
def score(
    path: Trajectories,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="The scenarios that were rolled out.")],
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
    """Say of each answer whether it is right. Ends with 75 where some have no verdict."""
    from gumshoe.rewards.scoring import judge_trajectories

    model = _model(prompt_price, completion_price, concurrency, deadline, cache, no_cache)
    made = _judge(judge, threshold, model)
    with progress("Judging") as advance:
        found = _run(judge_trajectories(path, scenarios, made, advance), made)
    _write(results, [asdict(each) for each in found])
    correct, failed = sum(each.correct is True for each in found), sum(each.correct is None for each in found)
    rules = Counter(each.rule for each in found if each.rule)
    if json:
        facts = {"episodes": len(found), "correct": correct, "failed": failed, "usage": _usage(made)}
        print_json({**facts, "results": [asdict(each) for each in found]})
    else:
        judged = len(found) - failed
        share = f" ({correct / judged:.1%})" if judged else ""
        out.print(f"[bold]{correct:,} of {judged:,} right[/]{share} for {escape(judge)}", soft_wrap=True)
        for rule, count in rules.most_common():
            out.print(f"  {count:>6,} {escape(rule)}")
        _print_usage(made)
    _refuse_missing_verdicts([each.why for each in found if each.correct is None])


@app.command()
def ruler(
    path: Trajectories,
    judge: Annotated[str, typer.Option(metavar="MODEL[@URL]", help="The chat model that scores.")],
    shuffles: Annotated[int, typer.Option(min=1, help="Scores are means over so many orders.")] = 1,
    rubric: Annotated[Path | None, typer.Option(metavar="FILE", help="What to score by, in words.")] = None,
    max_characters: Annotated[
        int, typer.Option(min=1000, help="Longest group that is shown; results are shortened to it.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Decides orders and ids.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    results: OutFile = None,
    json: JsonFlag = False,
) -> None:
    """Score the trajectories of each group relative to one another. Ends with 75 where groups were dropped."""
    from gumshoe.rewards.chat_judge import model_named
    from gumshoe.rewards.ruler import open_ruler
    from gumshoe.rewards.scoring import score_groups

    model = _model(prompt_price, completion_price, concurrency, deadline, cache, no_cache)
    settings: dict[str, Any] = {"model": model_named(judge) | model, "shuffles": shuffles, "seed": seed}
    settings["max_characters"] = max_characters
    if rubric is not None:
        settings["rubric"] = _text(rubric)
    made = open_ruler(settings)
    with progress("Scoring") as advance:
        found = _run(score_groups(path, made, advance), made)
    _write(results, [asdict(each) for each in found])
    scored = [each.scores for each in found if each.scores]
    dropped = [each.dropped for each in found if not each.scores]
    spread = sum(each.spread for each in scored) / len(scored) if scored else 0.0
    if json:
        facts = {"groups": len(found), "dropped": len(dropped), "spread": spread, "usage": _usage(made)}
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
            out.print(f"position bias: a trajectory's scores spread by {spread:.3f} over {shuffles} orders")
        _print_usage(made)
    if dropped:
        raise UnavailableError("judges.groups-dropped", f"{len(dropped):,} groups have no scores, e.g.: {dropped[0]}")


@app.command()
def calibrate(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Labelled answers, as JSONL.")],
    judge: JudgeWord = "heuristic",
    threshold: Threshold = None,
    mistakes: Annotated[int, typer.Option(min=0, help="Show so many verdicts that are wrong.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    json: JsonFlag = False,
) -> None:
    """Compare a judge with labelled answers: question, reference, query_date, answer, correct and kind on each line.

    Ends with 75 where some have no verdict.
    """
    from gumshoe.rewards.scoring import calibrate as measured
    from gumshoe.rewards.scoring import read_labelled

    answers = read_labelled(path)
    made = _judge(judge, threshold, _model(prompt_price, completion_price, concurrency, deadline, cache, no_cache))
    with progress("Judging") as advance:
        found = _run(measured(answers, made, advance), made)
    table = {(is_so, said): found.table[is_so, said] for is_so in (True, False) for said in (True, False)}
    names = {True: "right", False: "wrong"}
    if json:
        confusion = {f"{names[is_so]}, judged {names[said]}": count for (is_so, said), count in table.items()}
        kinds = {kind: counts[True] / counts.total() for kind, counts in found.kinds.items()}
        print_json(
            {
                "accuracy": found.accuracy,
                "confusion": confusion,
                "kinds": kinds,
                "failed": len(found.failures),
                "usage": _usage(made),
            }
        )
    else:
        out.print(f"[bold]{found.accuracy:.1%}[/] of {found.table.total():,} verdicts are as labelled")
        shown = Table("", "judged right", "judged wrong")
        for is_so, name in names.items():
            shown.add_row(name, str(table[is_so, True]), str(table[is_so, False]))
        out.print(shown)
        for kind, counts in sorted(found.kinds.items(), key=lambda each: each[1][True] / each[1].total()):
            out.print(f"  {counts[True]:>4,} of {counts.total():>4,} {printable(kind)}")
        for each, why in found.mistakes[:mistakes]:
            out.print(
                f"\n[bold]{names[each.correct]}[/], judged {names[not each.correct]} ({printable(why)})\n  "
                f"{printable(each.question)}\n  reference: {printable(each.reference)}\n  answer: "
                f"{printable(each.given)}",
                soft_wrap=True,
            )
        _print_usage(made)
    _refuse_missing_verdicts(found.failures)


def _judge(word: str, threshold: float | None, model: dict[str, Any]) -> "Judge":
    from gumshoe.rewards.judge_registry import named_settings, open_judge

    name, settings = named_settings(word)
    takes = {"openai": set(model), "embedding": {"cache", "threshold"}}.get(name, set())
    given = model | ({} if threshold is None else {"threshold": threshold})
    refused = ", ".join(f"--{each.replace('_', '-')}" for each in given if each not in takes and each != "cache")
    if refused:
        raise UsageError(
            "judges.option-not-supported", f"the judge {name} does not take {refused}; remove it, or use another judge"
        )
    return open_judge({name: settings | {each: value for each, value in given.items() if each in takes}})


def _model(
    prompt_price: float | None,
    completion_price: float | None,
    concurrency: int | None,
    deadline: float | None,
    cache: Path | None,
    no_cache: bool,
) -> dict[str, Any]:
    """The settings of a model that the options give."""
    if cache and no_cache:
        raise UsageError("judges.cache-conflict", "--cache and --no-cache exclude each other; use one of them")
    kept = {"cache": None} if no_cache else {"cache": cache} if cache else {}
    bounds = {"concurrency": concurrency, "deadline": deadline}
    given = {"prompt_price": prompt_price, "completion_price": completion_price, **bounds}
    return {name: value for name, value in given.items() if value is not None} | kept


def _run(work: Coroutine[Any, Any, Result], made: "Judge | Ruler") -> Result:
    async def closing() -> Result:
        try:
            return await work
        finally:
            await made.aclose()

    return asyncio.run(closing())


def _asked(made: object) -> "JudgeModel | None":
    """The chat model behind a judge, if it has one."""
    found: JudgeModel | None = getattr(made, "model", None)
    return found


def _usage(made: object) -> dict[str, Any]:
    model = _asked(made)
    return {} if model is None else model.usage.numbers()


def _print_usage(made: object) -> None:
    used = _usage(made)
    if used:
        out.print(
            f"{used['requests']:,} requests ({used['retried']:,} sent again, {used['unusable']:,} answers unusable), "
            f"{used['cached']:,} from the cache; {used['prompt_tokens']:,} tokens read and "
            f"{used['completion_tokens']:,} written, ${used['cost']:.4f}; {used['latency']:.2f} s a request",
            soft_wrap=True,
        )


def _write(path: Path | None, results: list[dict[str, Any]]) -> None:
    from gumshoe.artifacts.storage import explain_os_errors

    if path is not None:
        with explain_os_errors(path):
            path.write_text(
                "".join(f"{json_lines.dumps(each, ensure_ascii=False)}\n" for each in results), encoding="utf-8"
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("judges.rubric-unreadable", f"cannot read {path}: {error}; name a UTF-8 text file") from None


def _refuse_missing_verdicts(failures: list[str]) -> None:
    if failures:
        raise UnavailableError(
            "judges.verdicts-missing", f"{len(failures):,} answers have no verdict, e.g.: {failures[0]}"
        )
