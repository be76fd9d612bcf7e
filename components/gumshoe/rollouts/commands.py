"""`gumshoe rollout` and `gumshoe trajectories`: run episodes, and look at what they left."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy import HIGHEST_TEMPERATURE
from gumshoe.terminal import JsonFlag, out, print_json, printable, progress

if TYPE_CHECKING:
    from gumshoe.environments.registry import EnvironmentSettings
    from gumshoe.rollouts.trajectory import Trajectory
    from gumshoe.rollouts.writer import RolloutOptions, RolloutReport

rollout = typer.Typer(add_completion=False)
trajectories = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at what episodes left.")

IndexDirectory = Annotated[
    Path, typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of an index, of mail or of documents.")
]
EnvironmentWord = Annotated[
    str | None,
    typer.Option(
        "--environment",
        metavar="WORD",
        help="What episodes take place in, as the index tells unless given: email, documents, package.module:Class, or "
        "one with its settings as YAML: '{documents: {reasoning: false}}'.",
    ),
]

_COLOURS = {"prompt": "dim", "injected": "cyan", "sampled": "green"}


@rollout.command()
def run(
    index: IndexDirectory,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios, as `gumshoe scenarios load` takes them.")],
    policy: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="tiny (the one that comes with Gumshoe), vllm:URL or vllm:URL#ADAPTER (several URLs with commas), "
            "transformers:DIR or transformers:DIR#ADAPTER-DIR, chat:MODEL or chat:MODEL@URL.",
        ),
    ],
    path: Annotated[Path, typer.Option("--out", metavar="FILE", help="Trajectories go here as JSONL, as they finish.")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The model's tokenizer; for token policies.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only scenarios of this split.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many scenarios.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each scenario: a group.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides what is sampled, where the policy does as it is told.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, max=HIGHEST_TEMPERATURE, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Share of probability that is sampled from.")] = 1.0,
    max_turns: Annotated[int, typer.Option(min=1, help="Most turns of an episode.")] = 10,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a turn.")] = 512,
    max_context: Annotated[int, typer.Option(min=64, help="Most tokens of an episode.")] = 8192,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 64,
    environment: EnvironmentWord = None,
    json: JsonFlag = False,
) -> None:
    """Run episodes of scenarios and write their trajectories; started again, only what is missing is run.

    A failure of a server is no result: the episode is run again, and after three tries its group is left out, with
    its cause. Ends with 75 where groups were left out.
    """
    from gumshoe.inference.policy import Sampling
    from gumshoe.rollouts.episode import EpisodeLimits
    from gumshoe.rollouts.writer import RolloutOptions

    if not top_p:
        raise UsageError("rollouts.top-p-zero", "--top-p must be > 0, got 0; use 1 to sample from all tokens")
    settings = RolloutOptions(
        index=index,
        scenarios=scenarios,
        split=split,
        limit=limit,
        policy=policy,
        tokenizer=tokenizer,
        samples=samples,
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens=max_tokens),
        limits=EpisodeLimits(max_turns, max_context),
        concurrency=concurrency,
        environment=named_environment(environment),
    )
    report = _watched(settings, path)
    if json:
        print_json(asdict(report))
    else:
        out.print(
            f"[bold]{report.done:,} episodes[/] in {printable(path)}, {report.already_there:,} were there; "
            f"{report.retried:,} begun again, {report.dropped:,} groups dropped",
            soft_wrap=True,
        )
        for ending, count in report.endings.items():
            out.print(f"  {count:>6,} {ending}")
    if report.dropped:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in report.causes.items())
        scenario, first = next(iter(report.dropped_groups.items()))
        raise UnavailableError(
            "rollouts.groups-dropped",
            f"{report.dropped:,} groups were dropped ({causes}); run the command again to retry them. "
            f"First: {scenario}: {first}",
        )


def named_environment(word: str | None) -> "EnvironmentSettings | None":
    """The environment of an option.

    Raises:
        UsageError: it names none.
    """
    if word is None:
        return None
    from gumshoe.environments.registry import EnvironmentSettings

    return EnvironmentSettings.parse(word)


def _watched(settings: "RolloutOptions", path: Path) -> "RolloutReport":
    from gumshoe.rollouts.writer import run_to_file

    with progress("Episodes") as advance:
        return asyncio.run(run_to_file(settings, path, advance))


@trajectories.callback()
def _group() -> None:
    """Look at what episodes left."""


@trajectories.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file of trajectories.")],
    wanted: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A scenario's id, or ID/N for the N-th of its group.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print one trajectory, turn by turn; without an id, list all."""
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
    for segment in each.segments:
        out.print(f"[bold]{segment.origin}[/] [dim]{len(segment.ids)} tokens[/]")
        out.print(f"[{_COLOURS[segment.origin]}]{printable(segment.text.strip())}[/]", soft_wrap=True)
    record = each.record
    out.print()
    out.print(f"[bold]{each.ending}[/] after {each.turns} turns by {printable(each.policy)} {printable(each.detail)}")
    out.print(f"answer: {printable(record.answer)}", soft_wrap=True)
    out.print(f"sources: {printable(', '.join(record.sources) or 'none')}, right: {len(record.right_sources)}")
    out.print(
        f"{record.searches} searches ({record.repeated_searches} repeated, {record.empty_searches} empty), "
        f"found {len(record.found)} and read {len(record.read)} right ones, read {record.read_others} others, "
        f"{record.invalid_ids} ids that are not there; {each.prompt_tokens:,} tokens given, {each.sampled_tokens:,} "
        f"sampled; {each.policy_seconds:.1f} s in the policy, {each.tool_seconds:.2f} s in the tools",
        soft_wrap=True,
    )
    for name, value in each.rewards.items():
        out.print(f"reward {printable(name)}: {value:+.3f}")
