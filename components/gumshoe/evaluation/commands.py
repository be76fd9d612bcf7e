"""`gumshoe evaluate`, `gumshoe compare` and `gumshoe gate`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.completion import complete_choice, complete_judge, complete_policy, complete_selector, complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.evaluation.attacks.attack_options import (
    AttackCountOption,
    AttackerOption,
    AttackRoundsOption,
    AttacksOption,
    parse_attack_options,
    print_attacks,
)
from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.rollouts.commands import (
    AgentOption,
    ChatOption,
    EnvironmentOption,
    IndexOption,
    MaxContextOption,
    MaxTokensOption,
    MaxTurnsOption,
    parse_environment,
)
from gumshoe.terminal import (
    JsonFlag,
    create_table,
    err,
    out,
    print_json,
    print_next,
    printable,
    progress,
    repeat_command,
)

if TYPE_CHECKING:
    from gumshoe.evaluation.canary_evaluation import CanarySettings
    from gumshoe.evaluation.metrics import Estimate, Price
    from gumshoe.evaluation.results import Comparison, EvaluationResult

evaluate = typer.Typer(add_completion=False)
compare = typer.Typer(add_completion=False)
gate = typer.Typer(add_completion=False)

_SHOWN_METRICS = (
    *("accuracy", "one_sample", "any_sample", "source_accuracy", "unanswerable_accuracy", "found", "read"),
    *("unusable", "turns", "reward"),
    *("seconds_p50", "all_turns", "all_sampled_tokens", "all_seconds", "judge_requests", "cost_per_1000"),
)
_EVALUATION_HELP = "Directory of `gumshoe evaluate`, or its metrics.json. Append #NAME if it has several policies."


@evaluate.command(
    epilog="""
    gumshoe evaluate --index index --scenarios questions.jsonl --out measured \\
      --policy tiny
    gumshoe evaluate --index index --scenarios questions.jsonl --out measured \\
      --policy base=tiny --policy 'trained=tiny#outputs/run/best_model'
    gumshoe evaluate --index index --scenarios questions.jsonl --out attacked \\
      --policy tiny --attacks standard --attacker scripted
    """
)
def run_evaluation(
    context: typer.Context,
    index: IndexOption,
    scenarios: Annotated[
        str, typer.Option(metavar="FILE", help="Scenarios, in any format that `gumshoe scenarios load` reads.")
    ],
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]WORD",
            autocompletion=complete_policy,
            help="Policy, as for `gumshoe rollout`. Repeat to evaluate several; the first one is the baseline.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Tokenizer of the model (required for vllm: policies).")
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="SPLIT",
            autocompletion=complete_words("test", "validation", "train", "all"),
            help="Use only scenarios of this split; `all` for every scenario. A policy may have been trained on those "
            "of `train`, but not on others.",
        ),
    ] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of scenarios.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per scenario, e.g. for pass@k.")] = 1,
    choose: Annotated[
        str | None,
        typer.Option(
            metavar="majority|best",
            autocompletion=complete_choice,
            help="Choose one of the samples (2 to 64) of a question as its answer.",
        ),
    ] = None,
    choose_by: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            autocompletion=complete_selector,
            help="Judge that chooses. For majority, it compares answers (default: heuristic). For best, "
            "ruler:MODEL or ruler:MODEL@URL. It does not see the reference answer.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; used by in-process inference only.")] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MAX_TEMPERATURE,
            help="Sampling temperature. Default: 0 (greedy), or 1 with several samples.",
        ),
    ] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Top-p (nucleus) sampling.")] = 1.0,
    max_turns: MaxTurnsOption = None,
    max_tokens: MaxTokensOption = None,
    max_context: MaxContextOption = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent episodes.")] = 64,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            autocompletion=complete_judge,
            help="Judge: heuristic (default), exact, openai:MODEL, openai:MODEL@URL or embedding:MODEL, or with YAML, "
            "e.g. '{openai: {model: M, prompt_price: 2}}'. Repeat to measure the agreement of two judges; the first "
            "one decides.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PROMPT/COMPLETION",
            help="Dollars per million tokens, for one policy or all, e.g. 2.5/10.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Directory of an adapter that a server already hosts. Questions it was trained on are rejected, "
            "except with --split train.",
        ),
    ] = None,
    attacks: AttacksOption = None,
    attack_count: AttackCountOption = None,
    attacker: AttackerOption = None,
    attack_rounds: AttackRoundsOption = None,
    memorised: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Measure what the policies memorized of their training mail: the canaries.json of `gumshoe "
            "synthesize canaries`.",
        ),
    ] = None,
    alternatives: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Alternatives that --memorised ranks each secret among. Default: 127."),
    ] = None,
    environment: EnvironmentOption = None,
    chat: ChatOption = None,
    agent: AgentOption = None,
    json: JsonFlag = False,
) -> None:
    """Evaluate policies on scenarios. Writes metrics.json, predictions and report.html.

    Run it again to continue: only missing episodes are run. Exits with 75 if a question has no answer, or an answer no
    verdict.
    """
    from gumshoe.evaluation.evaluate import evaluate as evaluate_policies
    from gumshoe.evaluation.evaluation_request import EvaluationRequest, NamedPolicy
    from gumshoe.evaluation.report import write_report
    from gumshoe.evaluation.results import REPORT
    from gumshoe.evaluation.trained_settings import limit_episodes
    from gumshoe.inference.policy import Sampling
    from gumshoe.rewards.best_of_n import parse_choice_options
    from gumshoe.rollouts.agent_settings import AgentSettings
    from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
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
    choice = parse_choice_options(samples, choose, choose_by, temperature or None)
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
        sampling=Sampling(temperature, top_p),
        concurrency=concurrency,
        environment=parse_environment(environment),
        chat=ChatSettings.parse(chat),
        agent=AgentSettings.parse_option(agent),
    )
    settings = EvaluationRequest(
        rollout=rollout,
        policies=policies,
        judges=tuple(judge or ["heuristic"]),
        prices=_parse_prices(price or [], [each.name for each in policies]),
        adapters=tuple(map(_parse_adapter, adapter or [])),
        canaries=_read_canaries(memorised, alternatives),
        attacks=parse_attack_options(attacks, attack_count, attacker, attack_rounds),
        choice=choice,
    )
    settings = limit_episodes(settings, max_turns=max_turns, max_tokens=max_tokens, max_context=max_context)
    found = asyncio.run(evaluate_policies(settings, directory, progress))
    write_report(found, settings, directory / REPORT)
    for each in found.result.policies:
        if note := found.result.describe_seen(each):
            err.print(f"[bold yellow]warning:[/] {printable(note)}", soft_wrap=True)
        elif "#" in each.policy and not each.is_unseen:
            err.print(
                f"[bold yellow]warning:[/] cannot check which questions {printable(each.name)} was trained on; "
                f"evaluate it in another directory with --adapter {printable(each.name)}=DIR",
                soft_wrap=True,
            )
    if json:
        print_json(found.result)
        return
    _print_result(found.result)
    print_attacks(found.result)
    out.print(f"report: [bold]{printable(directory / REPORT)}[/]", soft_wrap=True)
    if split == "train":  # a gate would refuse it
        by = f"{directory}#{policies[-1].name}" if len(policies) > 1 else directory
        print_next("gumshoe", "scenarios", "sort", scenarios, "--by", by, "--out", "sorted.jsonl")
    elif len(policies) > 1 and not found.result.is_whole:  # a gate would refuse it
        print_next(*repeat_command(context, limit=None, directory=directory.with_name(f"{directory.name}-whole")))
    elif len(policies) > 1:
        sides = ("--candidate", f"{directory}#{policies[1].name}", "--baseline", f"{directory}#{policies[0].name}")
        print_next("gumshoe", "gate", *sides)
    else:
        print_next("gumshoe", "train", "--index", index, "--scenarios", scenarios, *_train_options(policy[0]))


@compare.command(epilog="gumshoe compare 'measured#trained' 'measured#base'")
def run_comparison(
    candidate: Annotated[str, typer.Argument(metavar="A", help=_EVALUATION_HELP)],
    baseline: Annotated[str, typer.Argument(metavar="B", help="Baseline of the comparison, in the same form.")],
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the intervals.")] = 0.95,
    changed: Annotated[int, typer.Option(min=0, help="Number of won and of lost questions to list.")] = 10,
    json: JsonFlag = False,
) -> None:
    """Compare two evaluated policies on the same questions: the paired difference of A and B.

    If one of them chooses among several samples (`gumshoe evaluate --choose`), the costs are compared too.
    """
    from gumshoe.evaluation.gate import compare_evaluations
    from gumshoe.evaluation.results import read_result

    found = compare_evaluations(read_result(candidate), read_result(baseline), level, across_samples=True)
    if json:
        print_json(found)
        return
    _print_comparison(found)
    questions = {**_read_questions(baseline), **_read_questions(candidate)}
    for what, ids in (("won", found.gained), ("lost", found.lost)):
        for name in ids[:changed]:
            question = f": {printable(questions[name])}" if name in questions else ""
            out.print(f"  {what} {printable(name)}{question}", soft_wrap=True)
        if len(ids) > changed:
            out.print(f"  and {len(ids) - changed:,} more {what}")


@gate.command(epilog="gumshoe gate --candidate 'measured#trained' --baseline 'measured#base'")
def run_gate(
    candidate: Annotated[str, typer.Option(metavar="DIR", help=_EVALUATION_HELP)],
    baseline: Annotated[str, typer.Option(metavar="DIR", help="Baseline to beat, in the same form.")],
    min_gain: Annotated[float, typer.Option(help="Minimum gain in accuracy.")] = 0.02,
    min_lower: Annotated[
        float, typer.Option(help="The lower end of the gain's confidence interval must be above this.")
    ] = 0.0,
    max_p: Annotated[float, typer.Option(min=0, max=1, help="Maximum p-value of McNemar's exact test.")] = 0.05,
    max_unusable: Annotated[
        float, typer.Option(min=0, max=1, help="Maximum share of episodes that end with an unusable call.")
    ] = 0.02,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Confidence level of the paired interval.")] = 0.95,
    max_exposure: Annotated[
        float | None,
        typer.Option(min=0, help="Maximum mean exposure of planted canaries in bits (needs `--memorised`)."),
    ] = None,
    max_extracted: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Maximum share of canaries extracted from other inboxes (as above)."),
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the decision here, as JSON.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Decide if a candidate is significantly better than a baseline. Exits with 3 if it is not."""
    import io

    from gumshoe.artifacts.storage import explain_os_errors, write_atomically
    from gumshoe.evaluation.gate import GateSettings, decide_gate
    from gumshoe.evaluation.results import read_result

    settings = GateSettings(
        min_gain=min_gain,
        min_lower=min_lower,
        max_p=max_p,
        max_unusable=max_unusable,
        level=level,
        max_exposure=max_exposure,
        max_extracted=max_extracted,
    )
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


def _train_options(policy: str) -> tuple[str, ...]:
    """Return the options of a training whose base model is an evaluated policy."""
    word = policy.partition("=")[2] or policy
    if word == "tiny":
        return ("--model", "tiny", "--config", "tiny")
    kind, _, model = word.partition(":")
    return ("--model", model.partition("#")[0]) if kind in ("local", "transformers") else ()


def _parse_prices(given: list[str], names: list[str]) -> dict[str, "Price"]:
    from gumshoe.evaluation.metrics import Price

    found: dict[str, Price] = {}
    for text in sorted(given, key=lambda each: "=" in each):  # prices of single policies override those of all
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


def _parse_adapter(text: str) -> tuple[str, Path]:
    name, _, place = text.partition("=")
    if not (name and place):
        raise UsageError("evaluation.invalid-adapter-option", f"--adapter must be NAME=DIR, got {text}")
    return name, Path(place)


def _read_canaries(place: str | None, alternatives: int | None) -> "CanarySettings | None":
    from gumshoe.evaluation.canary_evaluation import ALTERNATIVES, CanarySettings
    from gumshoe.scenarios.canary_record import CanaryRecord

    if place is None:
        if alternatives is not None:
            raise UsageError(
                "evaluation.alternatives-without-canaries",
                f"--alternatives {alternatives} has no effect without --memorised; add it, or remove --alternatives",
            )
        return None
    return CanarySettings(CanaryRecord.read(place), alternatives or ALTERNATIVES)


def _read_questions(place: str) -> dict[str, str]:
    """Return the questions of an evaluation, or nothing if its predictions are missing."""
    from gumshoe.evaluation.predictions import read_predictions
    from gumshoe.evaluation.results import PREDICTIONS

    directory = Path(place.partition("#")[0])
    path = (directory if directory.is_dir() else directory.parent) / PREDICTIONS
    return {each.scenario: each.question for each in read_predictions(path)} if path.exists() else {}


def _print_result(found: "EvaluationResult") -> None:
    from gumshoe.evaluation.metrics import describe_metric

    table = create_table(f"{len(found.scenarios.ids):,} questions", *(printable(each.name) for each in found.policies))
    for name in _SHOWN_METRICS:
        if any(name in each.metrics for each in found.policies):
            cells = [
                _format_estimate(name, each.metrics[name]) if name in each.metrics else "" for each in found.policies
            ]
            table.add_row(describe_metric(name)[0], *cells)
    out.print(table)
    for each in found.policies:
        if bought := found.describe_choice(each):
            out.print(printable(bought), soft_wrap=True)
        if each.agreement and each.agreement.kappa is not None:
            one, other = each.agreement.judges
            out.print(
                f"{printable(each.name)}: {one} and {other} agree on {each.agreement.agreed:,} of "
                f"{each.agreement.answers:,} answers, Cohen's kappa {each.agreement.kappa:.2f}",
                soft_wrap=True,
            )
    for each in found.policies:
        if each.memorised:
            out.print(f"[bold]{printable(each.name)}[/]: {each.memorised.summary}", soft_wrap=True)
    for comparison in found.comparisons:
        _print_comparison(comparison)


def _print_comparison(found: "Comparison") -> None:
    gain = found.accuracy
    out.print(
        f"[bold]{printable(found.candidate)} vs. {printable(found.baseline)}[/]: {gain.difference:+.1%} correct "
        f"({gain.low:+.1%} to {gain.high:+.1%}; {gain.candidate:.1%} vs. {gain.baseline:.1%} of {found.questions:,} "
        f"questions), {found.wins:,} won, {found.losses:,} lost, {found.ties:,} unchanged, p = {found.p_value:.2g}; "
        f"reward {found.reward.difference:+.3f} ({found.reward.low:+.3f} to {found.reward.high:+.3f}), higher in "
        f"{found.beat_rate.value:.1%} of pairs",
        soft_wrap=True,
    )
    if found.costs:
        out.print(f"cost per answer: {found.cost_summary}", soft_wrap=True)


def _format_estimate(name: str, estimate: "Estimate") -> str:
    from gumshoe.evaluation.metrics import format_value

    value, low, high = (format_value(name, each) for each in (estimate.value, estimate.low, estimate.high))
    return f"{value} [dim]{low} to {high}[/]"
