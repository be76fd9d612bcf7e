"""`gumshoe evaluate`, `gumshoe compare` and `gumshoe gate`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gumshoe.errors import RefusedError, UsageError
from gumshoe.inference.policy import HIGHEST_TEMPERATURE
from gumshoe.rollouts.commands import EnvironmentWord, IndexDirectory, named_environment
from gumshoe.terminal import JsonFlag, err, out, print_json, printable, progress

if TYPE_CHECKING:
    from gumshoe.evaluation.metrics import Estimate, Price
    from gumshoe.evaluation.results import Comparison, EvaluationResult

evaluate = typer.Typer(add_completion=False)
compare = typer.Typer(add_completion=False)
gate = typer.Typer(add_completion=False)

_SHOWN = (
    *("accuracy", "one_sample", "any_sample", "source_accuracy", "found", "read", "unusable", "turns", "reward"),
    *("seconds_p50", "all_turns", "all_sampled_tokens", "all_seconds", "judge_requests", "cost_per_1000"),
)
_PLACE = "A directory that `gumshoe evaluate` wrote, or its metrics.json; with #NAME where it has several policies."


@evaluate.command()
def run_evaluation(
    index: IndexDirectory,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios, as `gumshoe scenarios load` takes them.")],
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]WORD",
            help="As `gumshoe rollout` takes it; given again, several. The first is the baseline of the others.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where everything goes; made where missing.")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The model's tokenizer; for token policies.")
    ] = None,
    split: Annotated[str, typer.Option(help="Only scenarios of this split; `all` takes every one.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many scenarios; for a first look.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each scenario, for pass@k and spread.")] = 1,
    choose: Annotated[
        str | None,
        typer.Option(
            metavar="majority|best", help="Take one of a question's samples (2 to 64) as its answer, and measure that."
        ),
    ] = None,
    choose_by: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="For a majority, the judge that compares answers: heuristic unless given. For the best, "
            "ruler:MODEL or ruler:MODEL@URL. Neither sees the reference answer.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides what is sampled, of token policies that do as told.")] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=HIGHEST_TEMPERATURE, help="Greedy (0) unless given, or 1 with several samples."),
    ] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Share of probability that is sampled from.")] = 1.0,
    max_turns: Annotated[int, typer.Option(min=1, help="Most turns of an episode.")] = 10,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a turn.")] = 512,
    max_context: Annotated[int, typer.Option(min=64, help="Most tokens of an episode, of token policies.")] = 8192,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 64,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="heuristic (unless given), exact, openai:MODEL[@URL] or embedding:MODEL, or with settings as YAML: "
            "'{openai: {model: M, prompt_price: 2}}'. Given twice, the first decides, and their agreement is told.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PROMPT/COMPLETION", help="Dollars for a million tokens, of a policy or of all."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="The directory of an adapter that a server has: what it learned from is read there, and refused.",
        ),
    ] = None,
    environment: EnvironmentWord = None,
    json: JsonFlag = False,
) -> None:
    """Run policies over scenarios, judge their answers, and measure: metrics.json, predictions and report.html.

    Started again, only what is missing is run. Ends with 75 where questions have no answer or answers no verdict.
    """
    from gumshoe.evaluation.evaluate import EvaluationRequest, NamedPolicy
    from gumshoe.evaluation.evaluate import evaluate as evaluated
    from gumshoe.evaluation.report import write_report
    from gumshoe.evaluation.results import REPORT
    from gumshoe.inference.policy import Sampling
    from gumshoe.rewards.best_of_n import chosen_of
    from gumshoe.rollouts.episode import EpisodeLimits
    from gumshoe.rollouts.writer import RolloutOptions

    if not top_p:
        raise UsageError("rollouts.top-p-zero", "--top-p must be > 0, got 0; use 1 to sample from all tokens")
    if temperature is None:
        temperature = 0.0 if samples == 1 else 1.0
    if samples > 1 and not temperature:
        raise UsageError(
            "rewards.greedy-samples",
            f"--samples {samples} needs --temperature > 0, got 0: greedy samples are identical",
        )
    choice = chosen_of(samples, choose, choose_by, temperature or None)
    policies = tuple(map(NamedPolicy.parse, policy))
    rollout = RolloutOptions(
        index=index,
        scenarios=scenarios,
        split=None if split == "all" else split,
        limit=limit,
        policy="",
        tokenizer=tokenizer,
        samples=samples,
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens=max_tokens),
        limits=EpisodeLimits(max_turns, max_context),
        concurrency=concurrency,
        environment=named_environment(environment),
    )
    settings = EvaluationRequest(
        rollout=rollout,
        policies=policies,
        judges=tuple(judge or ["heuristic"]),
        prices=_prices(price or [], [each.name for each in policies]),
        adapters=tuple(map(_adapter, adapter or [])),
        choice=choice,
    )
    found = asyncio.run(evaluated(settings, directory, progress))
    write_report(found, settings, directory / REPORT)
    for each in found.result.policies:
        if "#" in each.policy and not each.is_unseen:
            err.print(
                f"[bold yellow]warning:[/] what {escape(each.name)} learned from is not known; --adapter "
                f"{escape(each.name)}=DIR has it checked",
                soft_wrap=True,
            )
    if json:
        print_json(found.result)
        return
    _print_result(found.result)
    out.print(f"[bold]{escape(str(directory / REPORT))}[/] shows every episode", soft_wrap=True)


@compare.command()
def run_comparison(
    candidate: Annotated[str, typer.Argument(metavar="A", help=_PLACE)],
    baseline: Annotated[str, typer.Argument(metavar="B", help="What A is compared with, named likewise.")],
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    changed: Annotated[int, typer.Option(min=0, help="Name so many of the questions that changed sides.")] = 10,
    json: JsonFlag = False,
) -> None:
    """Compare two evaluated policies on the same questions: A less B, in pairs.

    Either may be the choice of several samples (`gumshoe evaluate --choose`): what an answer of each costs is told.
    """
    from gumshoe.evaluation.gate import compare_evaluations
    from gumshoe.evaluation.results import read_result

    found = compare_evaluations(read_result(candidate), read_result(baseline), level, across_samples=True)
    if json:
        print_json(found)
        return
    _print_comparison(found)
    questions = {**_questions(baseline), **_questions(candidate)}
    for what, ids in (("won", found.gained), ("lost", found.lost)):
        for name in ids[:changed]:
            told = f": {printable(questions[name])}" if name in questions else ""
            out.print(f"  {what} {printable(name)}{told}", soft_wrap=True)
        if len(ids) > changed:
            out.print(f"  and {len(ids) - changed:,} more {what}")


@gate.command()
def run_gate(
    candidate: Annotated[str, typer.Option(metavar="DIR", help=_PLACE)],
    baseline: Annotated[str, typer.Option(metavar="DIR", help="What it has to beat, named likewise.")],
    min_gain: Annotated[float, typer.Option(help="Least gain in accuracy.")] = 0.02,
    min_lower: Annotated[float, typer.Option(help="The interval's lower end must lie above this.")] = 0.0,
    max_p: Annotated[float, typer.Option(min=0, max=1, help="Highest p-value of McNemar's exact test.")] = 0.05,
    max_unusable: Annotated[
        float, typer.Option(min=0, max=1, help="Highest share of episodes that end with an unusable call.")
    ] = 0.02,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the paired interval.")] = 0.95,
    path: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The decision goes here, as JSON.")] = None,
    json: JsonFlag = False,
) -> None:
    """Say whether a candidate is really better than a baseline, and why. Ends with 3 where it is not."""
    import io

    from gumshoe.artifacts.storage import explain_os_errors, write_atomically
    from gumshoe.evaluation.gate import GateSettings, decide_gate
    from gumshoe.evaluation.results import read_result

    settings = GateSettings(min_gain, min_lower, max_p, max_unusable, level)
    found = decide_gate(read_result(candidate), read_result(baseline), settings)
    if path is not None:
        with explain_os_errors(path):
            write_atomically(path, io.BytesIO(found.model_dump_json(indent=2).encode() + b"\n"))
    if json:
        print_json(found)
    elif found.passed:
        out.print(printable(found.why), soft_wrap=True)
    if found.code is not None:
        raise RefusedError(found.code, found.why)


def _prices(given: list[str], names: list[str]) -> dict[str, "Price"]:
    from gumshoe.evaluation.metrics import Price

    found: dict[str, Price] = {}
    for text in sorted(given, key=lambda each: "=" in each):  # one for all first, so that a policy's own wins
        name, _, prices = text.rpartition("=")
        try:
            prompt, completion = map(float, prices.split("/"))
            if not (0 <= prompt < float("inf") and 0 <= completion < float("inf")):
                raise ValueError
        except ValueError:
            raise UsageError(
                "evaluation.invalid-price",
                f"--price must be [NAME=]PROMPT/COMPLETION in dollars >= 0, e.g. 2.5/10; got {text}",
            ) from None
        found |= dict.fromkeys([name] if name else names, Price(prompt=prompt, completion=completion))
    return found


def _adapter(text: str) -> tuple[str, Path]:
    name, _, place = text.partition("=")
    if not (name and place):
        raise UsageError("evaluation.invalid-adapter-option", f"--adapter must be NAME=DIR, got {text}")
    return name, Path(place)


def _questions(place: str) -> dict[str, str]:
    """The questions of an evaluation, where its predictions are at hand."""
    from gumshoe.evaluation.predictions import read_predictions
    from gumshoe.evaluation.results import PREDICTIONS

    directory = Path(place.partition("#")[0])
    path = (directory if directory.is_dir() else directory.parent) / PREDICTIONS
    return {each.scenario: each.question for each in read_predictions(path)} if path.exists() else {}


def _print_result(found: "EvaluationResult") -> None:
    from gumshoe.evaluation.metrics import described

    table = Table(f"{len(found.scenarios.ids):,} questions", *(escape(each.name) for each in found.policies))
    for name in _SHOWN:
        if any(name in each.metrics for each in found.policies):
            cells = [_shown(name, each.metrics[name]) if name in each.metrics else "" for each in found.policies]
            table.add_row(described(name)[0], *cells)
    out.print(table)
    for each in found.policies:
        if bought := found.bought(each):
            out.print(escape(bought), soft_wrap=True)
        if each.agreement and each.agreement.kappa is not None:
            one, other = each.agreement.judges
            out.print(
                f"{escape(each.name)}: {one} and {other} agree on {each.agreement.agreed:,} of "
                f"{each.agreement.answers:,} answers, Cohen's kappa {each.agreement.kappa:.2f}",
                soft_wrap=True,
            )
    for comparison in found.comparisons:
        _print_comparison(comparison)


def _print_comparison(found: "Comparison") -> None:
    gain = found.accuracy
    out.print(
        f"[bold]{escape(found.candidate)} against {escape(found.baseline)}[/]: {gain.difference:+.1%} correct "
        f"({gain.low:+.1%} to {gain.high:+.1%}; {gain.candidate:.1%} and {gain.baseline:.1%} of {found.questions:,}), "
        f"{found.wins:,} won, {found.losses:,} lost, {found.ties:,} as before, p = {found.p_value:.2g}; reward "
        f"{found.reward.difference:+.3f} ({found.reward.low:+.3f} to {found.reward.high:+.3f}), higher in "
        f"{found.beat_rate.value:.1%}",
        soft_wrap=True,
    )
    if found.costs:
        out.print(f"An answer of {escape(found.candidate)} takes {found.told_costs}", soft_wrap=True)


def _shown(name: str, estimate: "Estimate") -> str:
    from gumshoe.evaluation.metrics import written

    return f"{written(name, estimate.value)} [dim]{written(name, estimate.low)} to {written(name, estimate.high)}[/]"
