"""`gumshoe rollout` and `gumshoe trajectories`: run episodes and show recorded trajectories."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.completion import complete_environment, complete_policy, complete_split
from gumshoe.corpus import CORPORA
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.environments.registry import EnvironmentSettings
    from gumshoe.rollouts.trajectory import Trajectory
    from gumshoe.rollouts.writer import RolloutOptions, RolloutReport

rollout = typer.Typer(add_completion=False)
trajectories = typer.Typer(no_args_is_help=True, add_completion=False, help="Show recorded trajectories.")

IndexOption = Annotated[
    Path,
    typer.Option("--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of an index of mail or documents."),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--environment",
        metavar="WORD",
        autocompletion=complete_environment,
        help=f"Environment: {', '.join(CORPORA)}, package.module:Class, or one with settings as YAML, e.g. "
        "'{email: {hits: 4, handles: true}}'. Default: the one that the policy was trained in, or that fits the index.",
    ),
]

AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="WORD|FILE",
        help="Agent that runs the episodes, in place of Gumshoe's own loop: package.module:name, "
        "'{command: [program, ...]}', or a YAML file with its settings.",
    ),
]
ChatOption = Annotated[
    str | None,
    typer.Option(
        "--chat",
        metavar="YAML|FILE",
        help="Chat settings, e.g. '{template_kwargs: {enable_thinking: false}}', or a file with them. Default: "
        "those that the adapter was trained with.",
    ),
]
_OF_TRAINING = "Default: that of the policy's training, or"
MaxTurnsOption = Annotated[
    int | None, typer.Option(min=1, help=f"Maximum number of turns per episode. {_OF_TRAINING} 10.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option(min=1, help=f"Maximum number of tokens per turn. {_OF_TRAINING} 512.")
]
MaxContextOption = Annotated[
    int | None,
    typer.Option(
        min=64,
        help=f"Maximum number of tokens per episode; chat: models have that of their server. {_OF_TRAINING} 8192.",
    ),
]

_COLOURS = {"prompt": "dim", "injected": "cyan", "sampled": "green"}


@rollout.command(
    epilog="""
    gumshoe rollout --policy tiny --out tiny.jsonl \\
      --index index --scenarios questions.jsonl
    gumshoe rollout --policy chat:gpt-4.1 --split train --out expert.jsonl \\
      --index index --scenarios questions.jsonl
    """
)
def run(
    index: IndexOption,
    scenarios: Annotated[
        str, typer.Option(metavar="FILE", help="Scenarios, in any format that `gumshoe scenarios load` reads.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            autocompletion=complete_policy,
            help="Policy: tiny (bundled with Gumshoe), local:MODEL, vllm:URL (several URLs separated by commas), "
            "transformers:DIR, chat:MODEL, chat:MODEL@URL or keywords (search without a model). Append #ADAPTER to use "
            "an adapter.",
        ),
    ],
    path: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File to append finished trajectories to, as JSONL.")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", help="Tokenizer of the model (required for vllm: policies)."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="SPLIT", autocompletion=complete_split, help="Use only scenarios of this split."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of scenarios.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per scenario (group size).")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed; used by in-process inference only.")] = 0,
    temperature: Annotated[
        float, typer.Option(min=0, max=MAX_TEMPERATURE, help="Sampling temperature; 0 is greedy.")
    ] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Top-p (nucleus) sampling.")] = 1.0,
    max_turns: MaxTurnsOption = None,
    max_tokens: MaxTokensOption = None,
    max_context: MaxContextOption = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent episodes.")] = 64,
    environment: EnvironmentOption = None,
    chat: ChatOption = None,
    agent: AgentOption = None,
    json: JsonFlag = False,
) -> None:
    """Run episodes of scenarios and write their trajectories. Run it again to continue: only missing groups are run.

    If a server fails, the episode is retried. After three attempts its group is dropped, and the command exits with 75.
    """
    from gumshoe.inference.policy import Sampling
    from gumshoe.inference.policy_names import PolicyName
    from gumshoe.rollouts.agent_settings import AgentSettings
    from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
    from gumshoe.rollouts.policy_limits import PolicyLimits
    from gumshoe.rollouts.writer import RolloutOptions

    if not top_p:
        raise UsageError("rollouts.top-p-zero", "--top-p must be > 0, got 0; use 1 to sample from all tokens")
    given, name = ChatSettings.parse(chat), PolicyName.parse(policy)
    limits = PolicyLimits.of(
        [*name.trained_directories, *([Path(tokenizer)] if tokenizer else [])],
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_context=max_context,
    )
    settings = RolloutOptions(
        index=index,
        scenarios=scenarios,
        split=split,
        limit=limit,
        policy=policy,
        tokenizer=tokenizer,
        samples=samples,
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens=limits.max_tokens),
        limits=limits.episode,
        concurrency=concurrency,
        environment=parse_environment(environment),
        chat=given and resolve_chat_settings(given, *name.directories, tokenizer),
        agent=AgentSettings.parse_option(agent),
    )
    report = _run_with_progress(settings, path)
    if json:
        print_json(asdict(report))
    else:
        out.print(
            f"[bold]{report.done:,} new episodes[/] in {printable(path)}, {report.already_there:,} existed; "
            f"{report.retried:,} retries, {report.dropped:,} groups dropped",
            soft_wrap=True,
        )
        for ending, count in report.endings.items():
            out.print(f"  {count:>6,} {ending}")
        if report.failure:
            err.print(f"[bold yellow]warning:[/] an agent failed: {printable(report.failure)}", soft_wrap=True)
        if report.split:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.split_reasons.items())
            out.print(f"{report.split:,} episodes have several segments: {reasons}", soft_wrap=True)
    if not (json or report.dropped):
        print_next("gumshoe", "judge", "score", path, "--scenarios", scenarios)
    if report.dropped:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in report.causes.items())
        scenario, first = next(iter(report.dropped_groups.items()))
        raise UnavailableError(
            "rollouts.groups-dropped",
            f"{report.dropped:,} groups were dropped ({causes}); run the command again to retry them. "
            f"First: {scenario}: {first}",
        )


def parse_environment(word: str | None) -> "EnvironmentSettings | None":
    """Parse the option `--environment`.

    Raises:
        UsageError: if it is not the name of an environment.
    """
    if word is None:
        return None
    from gumshoe.environments.registry import EnvironmentSettings

    return EnvironmentSettings.parse(word)


def _run_with_progress(settings: "RolloutOptions", path: Path) -> "RolloutReport":
    from gumshoe.rollouts.writer import run_to_file

    with progress("Episodes") as advance:
        return asyncio.run(run_to_file(settings, path, advance))


@trajectories.callback()
def _group() -> None:
    """Show recorded trajectories."""


@trajectories.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of trajectories.")],
    wanted: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Scenario id, or ID/N for sample N (from 0).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print a trajectory turn by turn. Without an id, list all trajectories."""
    from gumshoe.rollouts.writer import read_trajectories

    found = list(read_trajectories(path))
    if wanted is None and json:
        listed = ("scenario", "sample", "policy", "ending", "detail", "turns")
        print_json([{name: getattr(each, name) for name in listed} | {"answer": each.record.answer} for each in found])
        return
    if wanted is None:
        for each in found:
            answer = each.record.answer or each.detail
            which = f"[bold]{printable(each.scenario)}/{each.sample}[/]"
            out.print(f"{which} {each.ending}, {each.turns} turns: {printable(answer)}", soft_wrap=True)
        return
    name, _, number = wanted.rpartition("/")
    chosen = [
        each for each in found if each.scenario == wanted or (each.scenario == name and str(each.sample) == number)
    ]
    if not chosen:
        raise UsageError(
            "rollouts.trajectory-not-found",
            f"{path} has no trajectory of {wanted!r}; run the command without an id to list all",
        )
    if json:
        print_json([asdict(each) for each in chosen])
        return
    for each in chosen:
        _print_trajectory(each)


def _print_trajectory(each: "Trajectory") -> None:
    out.rule(f"{printable(each.scenario)}/{each.sample}")
    seen = 0
    for span in each.spans:
        if span.segment > seen:
            seen = span.segment
            begun = each.segments[seen - 1]
            out.print(
                f"[bold yellow]segment {seen}[/] [dim]{begun.reason}: continues segment {begun.parent} after "
                f"{begun.shared:,} tokens, with {len(begun.context):,} others[/]",
                soft_wrap=True,
            )
        place = f"segment {span.segment}, " if each.segments else ""
        out.print(f"[bold]{span.origin}[/] [dim]{place}{len(span.ids)} tokens[/]")
        out.print(f"[{_COLOURS[span.origin]}]{printable(span.text.strip())}[/]", soft_wrap=True)
    record = each.record
    out.print()
    out.print(f"[bold]{each.ending}[/] after {each.turns} turns by {printable(each.policy)} {printable(each.detail)}")
    out.print(f"answer: {printable(record.answer)}", soft_wrap=True)
    out.print(f"sources: {printable(', '.join(record.sources) or 'none')}, correct: {len(record.right_sources)}")
    out.print(
        f"{record.searches} searches ({record.repeated_searches} repeated, {record.empty_searches} empty); correct "
        f"sources: {len(record.found)} found, {len(record.read)} read; other sources read: {record.read_others}; "
        f"invalid ids: {record.invalid_ids}; tokens: {each.prompt_tokens:,} given, {each.sampled_tokens:,} sampled; "
        f"seconds: {each.policy_seconds:.1f} in the policy, {each.tool_seconds:.2f} in the tools",
        soft_wrap=True,
    )
    for name, value in each.rewards.items():
        out.print(f"reward {printable(name)}: {value:+.3f}")
