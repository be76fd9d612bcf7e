"""`gumshoe rollout`, `gumshoe trajectories` and `gumshoe ask`: run episodes, and look at what they left."""

import asyncio
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from gumshoe.agent.policy import HIGHEST_TEMPERATURE
from gumshoe.errors import RefusedError, UnavailableError, UsageError
from gumshoe.terminal import JsonFlag, err, out, plain, print_json, progress

if TYPE_CHECKING:
    from gumshoe.agent.answer import Answer, Step
    from gumshoe.agent.run import RolloutReport, Settings
    from gumshoe.agent.trajectory import Trajectory

rollout = typer.Typer(add_completion=False)
ask = typer.Typer(add_completion=False)
trajectories = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at what episodes left.")

_PATIENCE = 300.0  # seconds for an agent server's answer
_BUSY = 429
_COLOURS = {"prompt": "dim", "injected": "cyan", "sampled": "green"}


@rollout.command()
def run(
    index: Annotated[Path, typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of a mail index.")],
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
    json: JsonFlag = False,
) -> None:
    """Run episodes of scenarios and write their trajectories; started again, only what is missing is run.

    A failure of a server is no result: the episode is run again, and after three tries its group is left out, with
    its cause. Ends with 75 where groups were left out.
    """
    from gumshoe.agent.episode import EpisodeLimits
    from gumshoe.agent.policy import Sampling
    from gumshoe.agent.run import Settings

    if not top_p:
        raise UsageError("a --top-p of 0 leaves no token to sample; 1 leaves all")
    settings = Settings(
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
    )
    report = _watched(settings, path)
    if json:
        print_json(asdict(report))
    else:
        out.print(
            f"[bold]{report.done:,} episodes[/] in {_shown(path)}, {report.already_there:,} were there; "
            f"{report.retried:,} begun again, {report.dropped:,} groups dropped",
            soft_wrap=True,
        )
        for ending, count in report.endings.items():
            out.print(f"  {count:>6,} {ending}")
    if report.dropped:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in report.causes.items())
        scenario, first = next(iter(report.dropped_groups.items()))
        raise UnavailableError(
            f"{report.dropped:,} groups were dropped ({causes}); run this again for them. Of {scenario}: {first}"
        )


@ask.command()
def run_question(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(help="What to find out.")] = None,
    inbox: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whose mail; nothing else is seen.")] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="In place of question and inbox: the first of the test split of scenarios."),
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of a mail index.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Of an agent server, which has a model and an index.")
    ] = None,
    key: Annotated[str | None, typer.Option(envvar="GUMSHOE_KEY", metavar="KEY", help="For the agent server.")] = None,
    adapter: Annotated[
        str | None,
        typer.Option(metavar="VERSION|latest|DIR", help="Of the store, or a directory; the base model alone without."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", envvar="GUMSHOE_STORE", help="Where adapters were published.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The base model; the adapter's own unless given, or tiny.")
    ] = None,
    day: Annotated[
        datetime | None, typer.Option("--date", formats=["%Y-%m-%d"], help="Nothing sent later is seen; today.")
    ] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Most turns.")] = 10,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a turn.")] = 512,
    json: JsonFlag = False,
) -> None:
    """Answer one question, with what was done for it and where the answer stands: on this machine (--index), or by an
    agent server (--url).

    Ends with 3 where there is no answer.
    """
    if url is not None:  # an index and a store of the environment are for questions that are answered here
        here = {"index", "adapter", "store", "model", "max_turns", "max_tokens"}
        sources = {name: context.get_parameter_source(name) for name in here}
        given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if given:
            flag = "--" + min(given).replace("_", "-")
            raise UsageError(f"an agent server has its own index and model; leave {flag} out, or --url")
    elif index is None:
        raise UsageError("say where to look: in an index (--index), or by an agent server (--url)")
    known = None
    if scenarios is not None and question is None and inbox is None:
        from gumshoe.scenarios.sources import load_scenarios

        known = next(iter(load_scenarios(scenarios).only("test")), None)
    if known is not None:
        question, inbox = known.question, known.inbox_address
        err.print(f"{_shown(known.inbox_address)} asks: {_shown(question)}", soft_wrap=True)
    if question is None or inbox is None:
        raise UsageError("ask a question of somebody's mail (QUESTION and --inbox), or one of a file (--scenarios)")
    asked_on = known.query_date if known and known.query_date else (day or datetime.now(UTC)).date()
    if index is None or url is not None:
        found = _served(str(url), key, question, inbox, asked_on)
    else:
        from gumshoe.agent.ask import LocalModel, Question, answered
        from gumshoe.agent.episode import EpisodeLimits
        from gumshoe.agent.policy import Sampling

        asked, local = Question(index, inbox, asked_on, question), LocalModel(adapter, store, model)
        found = asyncio.run(answered(asked, local, Sampling(0.0, max_tokens=max_tokens), EpisodeLimits(max_turns)))
    if json:
        from pydantic import TypeAdapter

        from gumshoe.agent.answer import Answer

        print_json(TypeAdapter(Answer).dump_python(found, mode="json"))
    else:
        _print_answer(found)
        if known is not None:
            err.print(f"The answer that is known: {_shown(known.answer)}", soft_wrap=True)
    if not found.success:
        raise RefusedError(found.reason)


def _served(url: str, key: str | None, question: str, inbox: str, day: date) -> "Answer":
    """The answer of an agent server.

    Raises:
        UsageError: it does not take the question, or the key.
        UnavailableError: it does not answer, or has no model that does.
    """
    import httpx
    from pydantic import TypeAdapter, ValidationError

    from gumshoe.agent.answer import Answer

    asked = {"question": question, "inbox_address": inbox, "query_date": str(day), "steps": True}
    try:
        response = httpx.post(
            f"{url.rstrip('/')}/invoke",
            json={"parameters": asked},
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=_PATIENCE,
        )
        if response.is_success:
            return TypeAdapter(Answer).validate_json(response.content)
        told = response.json()
        said = f"{url} answered {response.status_code}: {told['title']}, {told['detail']}"
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(f"{url} is no address ({error}); write http://HOST:PORT") from None
    except httpx.HTTPError as error:
        raise UnavailableError(f"{url} does not answer ({type(error).__name__}: {error}); is it running?") from None
    except (ValidationError, ValueError, KeyError, TypeError):
        raise UsageError(f"{url} does not answer as an agent server does; check the address") from None
    raise UnavailableError(said) if response.is_server_error or response.status_code == _BUSY else UsageError(said)


def _print_answer(found: "Answer") -> None:
    for step in found.steps:
        err.print(f"[dim]{_shown(_in_a_line(step))}[/]", soft_wrap=True)
    if found.success:
        out.print(f"[bold]{_shown(found.answer)}[/]", soft_wrap=True)
    for each in found.sources:
        sent = f"{each.sent:%Y-%m-%d} " if each.sent else ""
        out.print(f"  {_shown(f'{sent}{each.sender}: {each.subject} {each.message_id}')}", soft_wrap=True)
    err.print(f"{_shown(found.policy)}, {found.turns} turns, {found.seconds:.1f} s", soft_wrap=True)


def _in_a_line(step: "Step") -> str:
    """A call, and how much came of it."""
    if not step.tool:
        return " ".join(step.text.split())
    values = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items() if value is not None)
    hits = f": {(step.result or '').count(chr(10) + '  id: ')} found" if step.tool.startswith("search") else ""
    return f"{step.tool}({values}){hits}"


def _watched(settings: "Settings", path: Path) -> "RolloutReport":
    from gumshoe.agent.run import run_to_file

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
    from gumshoe.agent.run import read_trajectories

    found = list(read_trajectories(path))
    if wanted is None and json:
        listed = ("scenario", "sample", "policy", "ending", "detail", "turns")
        print_json([{name: getattr(each, name) for name in listed} | {"answer": each.record.answer} for each in found])
        return
    if wanted is None:
        for each in found:
            answer = each.record.answer or each.detail
            out.print(
                f"[bold]{_shown(each.scenario)}/{each.sample}[/] {each.ending}, {each.turns} turns: {_shown(answer)}",
                soft_wrap=True,
            )
        return
    name, _, number = wanted.rpartition("/")
    chosen = [
        each for each in found if each.scenario == wanted or (each.scenario == name and str(each.sample) == number)
    ]
    if not chosen:
        raise UsageError(f"{path} holds no trajectory of {wanted!r}; without an id this lists those it has")
    if json:
        print_json([asdict(each) for each in chosen])
        return
    for each in chosen:
        _print_trajectory(each)


def _print_trajectory(each: "Trajectory") -> None:
    out.rule(f"{_shown(each.scenario)}/{each.sample}")
    for segment in each.segments:
        out.print(f"[bold]{segment.origin}[/] [dim]{len(segment.ids)} tokens[/]")
        out.print(f"[{_COLOURS[segment.origin]}]{_shown(segment.text.strip())}[/]", soft_wrap=True)
    record = each.record
    out.print()
    out.print(f"[bold]{each.ending}[/] after {each.turns} turns by {_shown(each.policy)} {_shown(each.detail)}")
    out.print(f"answer: {_shown(record.answer)}", soft_wrap=True)
    out.print(f"sources: {_shown(', '.join(record.sources) or 'none')}, right: {len(record.right_sources)}")
    out.print(
        f"{record.searches} searches ({record.repeated_searches} repeated, {record.empty_searches} empty), "
        f"found {len(record.found)} and read {len(record.read)} right ones, read {record.read_others} others, "
        f"{record.invalid_ids} ids that are not there; {each.prompt_tokens:,} tokens given, {each.sampled_tokens:,} "
        f"sampled; {each.policy_seconds:.1f} s in the policy, {each.tool_seconds:.2f} s in the tools",
        soft_wrap=True,
    )
    for name, value in each.rewards.items():
        out.print(f"reward {_shown(name)}: {value:+.3f}")


def _shown(text: object) -> str:
    return escape(plain(text))
