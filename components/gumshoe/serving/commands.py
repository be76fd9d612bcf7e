"""`gumshoe serve`, `gumshoe serve-key` and `gumshoe ask`: the agent server, keys for it, and one question."""

import asyncio
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.markup import escape

from gumshoe.errors import RefusedError, UsageError
from gumshoe.inference.policy import HIGHEST_TEMPERATURE
from gumshoe.rollouts.commands import EnvironmentWord, named_environment
from gumshoe.terminal import JsonFlag, err, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.rollouts.answer import Answer, AnswerStep

serve = typer.Typer(add_completion=False)
serve_key = typer.Typer(add_completion=False)
ask = typer.Typer(add_completion=False)

ChooseBy = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="For a majority, the judge that compares answers (heuristic unless given); for the best, "
        "ruler:MODEL or ruler:MODEL@URL.",
    ),
]


@serve.command()
def run(
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            envvar="GUMSHOE_INDEX",
            metavar="DIR|KIND/VERSION",
            help="Of mail or of documents, here or in the store.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", envvar="GUMSHOE_STORE", help="Where indexes and adapters were published.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="As for `gumshoe rollout`: vllm:URL#ADAPTER, chat:MODEL@URL, tiny, ..."),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|latest|DIR", help="In place of --policy: this adapter, with a vLLM server started for it."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The adapter's base model, where it is not its own.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="The model's, for vllm:.")] = None,
    canary: Annotated[str | None, typer.Option(metavar="ADAPTER", help="Another adapter of the same servers.")] = None,
    canary_percent: Annotated[
        float | None, typer.Option(min=0, max=100, help="Of the episodes that it takes; 10 unless given.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may ask, as `gumshoe serve-key` wrote it.")
    ] = None,
    open_access: Annotated[
        bool, typer.Option("--open", help="Anybody may read all of it: for one's own machine alone.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen at; 127.0.0.1 unless given.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="8000 unless given; 0 is any that is free.")
    ] = None,
    environment: EnvironmentWord = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as YAML.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting, as limits.queue=10.")
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings, and serve nothing.")] = False,
) -> None:
    """Serve an agent that answers from mail, or from documents: HTTP at /invoke, MCP at /mcp, and a page at /.

    Flags come before the environment (GUMSHOE_SERVE__LIMITS__QUEUE=10), and that before the file of settings. Who may
    ask is to be said: --keys, access.jwks_url, or --open.
    """
    try:
        from gumshoe.serving.server import serve as serve_until_asked_to_end
        from gumshoe.serving.settings import read_settings
        from gumshoe.serving.telemetry import log_as_json, told
    except ModuleNotFoundError as error:
        raise UsageError(
            "serving.not-installed", f"gumshoe serve requires {error.name}: pip install 'gumshoe-agents[serve]'"
        ) from None

    flags: dict[str, Any] = _nested(sets or [])
    given = {
        "index": index,
        "environment": environment,
        "store": store,
        "host": host,
        "port": port,
        "model.policy": policy,
        "model.adapter": adapter,
        "model.base": model,
        "model.tokenizer": tokenizer,
        "model.canary": canary,
        "model.canary_percent": canary_percent,
        "access.keys": None if keys is None else str(keys),
        "access.open": open_access or None,
    }
    for setting, value in given.items():
        if value is not None:
            _put(flags, setting, value)
    settings = read_settings(config, flags)
    if print_config:
        out.print(escape(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)), end="", soft_wrap=True)
        return
    if sys.stderr.isatty():
        serve_until_asked_to_end(settings, lambda url: err.print(f"Serving at [bold]{escape(url)}[/]"))
    else:
        log_as_json()
        serve_until_asked_to_end(settings, lambda url: told(f"Serving at {url}"))


@serve_key.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys; it is made where there is none.")],
    name: Annotated[str, typer.Argument(help="Who is to have it, as logs say.")],
    inbox: Annotated[
        list[str] | None,
        typer.Option(
            "--inbox", metavar="ADDRESS", help="May be read; patterns such as *@example.com too. Not for documents."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a key for the agent server, and show it this once: the file holds its hash.

    A server that runs reads the file when it is started again. Who takes a key's lines out of it takes it back.
    """
    from gumshoe.serving.access import add_key

    inboxes = inbox or []
    key = add_key(file, name, inboxes)
    if json:
        print_json({"name": name, "key": key, "inboxes": inboxes})
        return
    out.print(key, soft_wrap=True)
    what = ", ".join(inboxes) or "documents, and no inbox (--inbox)"
    err.print(f"{printable(name)} may read {printable(what)}", soft_wrap=True)


def _nested(sets: list[str]) -> dict[str, Any]:
    """
    Raises:
        UsageError: one is no NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for each in sets:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(
                "serving.invalid-set-option", f"--set must be NAME=VALUE, e.g. limits.queue=10; got {each!r}"
            )
        try:
            _put(found, name.strip(), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise UsageError(
                "serving.invalid-set-option", f"--set {each!r}: the value is not valid YAML: {error}"
            ) from None
    return found


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    *groups, last = name.split(".")
    for group in groups:
        inner = found.setdefault(group, {})
        if not isinstance(inner, dict):
            raise UsageError(
                "serving.invalid-set-option", f"cannot set {name}: {group} is a value, not a group of settings"
            )
        found = inner
    found[last] = value


@ask.command()
def run_question(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(help="What to find out.")] = None,
    inbox: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Whose mail, where it is about mail; nothing else is seen.")
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="In place of question and inbox: the first of the test split of scenarios."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of an index, of mail or of documents."),
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
        datetime | None,
        typer.Option("--date", formats=["%Y-%m-%d"], help="Nothing sent later is seen; today, of mail."),
    ] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Most turns.")] = 10,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a turn.")] = 512,
    samples: Annotated[int, typer.Option(min=1, help="Episodes, of which one's answer is chosen; 64 at most.")] = 1,
    choose: Annotated[
        str | None, typer.Option(metavar="majority|best", help="How, where there are several; majority unless given.")
    ] = None,
    choose_by: ChooseBy = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=HIGHEST_TEMPERATURE, help="Greedy (0) unless given, or 1 with several samples."),
    ] = None,
    environment: EnvironmentWord = None,
    json: JsonFlag = False,
) -> None:
    """Answer one question, with what was done for it and where the answer stands: on this machine (--index), or by an
    agent server (--url).

    Ends with 3 where there is no answer.
    """
    if url is not None:  # an index and a store of the environment are for questions that are answered here
        here = {"index", "adapter", "store", "model", "max_turns", "max_tokens", "environment"}
        here |= {"samples", "choose", "choose_by", "temperature"}
        sources = {name: context.get_parameter_source(name) for name in here}
        given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if given:
            flag = "--" + min(given).replace("_", "-")
            raise UsageError(
                "serving.option-conflict", f"{flag} cannot be used with --url: the server has its own index and model"
            )
    elif index is None:
        raise UsageError("serving.no-index-or-url", "set --index to ask here, or --url to ask an agent server")
    known = None
    if scenarios is not None and question is None and inbox is None:
        from gumshoe.scenarios.sources import load_scenarios

        known = next(iter(load_scenarios(scenarios).only("test")), None)
    if known is not None:
        question, inbox = known.question, known.inbox_address
        err.print(f"{printable(inbox)} asks: {printable(question)}" if inbox else printable(question), soft_wrap=True)
    if question is None:
        raise UsageError("serving.no-question", "no question given: write QUESTION, or use --scenarios FILE")
    asked_on = known.query_date if known and known.query_date else day.date() if day else None
    from gumshoe.serving.ask import LocalModel, Question, answered, served

    if index is None or url is not None:
        found = served(str(url), key, question, inbox, asked_on)
    else:
        from gumshoe.inference.policy import Sampling
        from gumshoe.rewards.best_of_n import chosen_of
        from gumshoe.rollouts.episode import EpisodeLimits

        choice = chosen_of(samples, choose or ("majority" if samples > 1 else None), choose_by, temperature)
        asked = Question(index, inbox, asked_on, question, named_environment(environment))
        local, limits = LocalModel(adapter, store, model), EpisodeLimits(max_turns)
        sampling = Sampling(temperature or 0.0, max_tokens=max_tokens)
        found = asyncio.run(answered(asked, local, sampling, limits, choice))
    if json:
        from pydantic import TypeAdapter

        from gumshoe.rollouts.answer import Answer

        print_json(TypeAdapter(Answer).dump_python(found, mode="json"))
    else:
        _print_answer(found)
        if known is not None:
            err.print(f"The answer that is known: {printable(known.answer)}", soft_wrap=True)
    if not found.success:
        raise RefusedError("serving.no-answer", f"no answer: {found.reason}")


def _print_answer(found: "Answer") -> None:
    for step in found.steps:
        err.print(f"[dim]{printable(_in_a_line(step))}[/]", soft_wrap=True)
    if found.success:
        out.print(f"[bold]{printable(found.answer)}[/]", soft_wrap=True)
    for each in found.sources:
        out.print(f"  {printable(each.shown)}", soft_wrap=True)
    err.print(f"{printable(found.policy)}, {found.turns} turns, {found.seconds:.1f} s", soft_wrap=True)
    if found.chosen and found.cost:
        err.print(f"{printable(found.chosen)}; all samples: {printable(found.cost.summary)}", soft_wrap=True)


def _in_a_line(step: "AnswerStep") -> str:
    """A call, and how much came of it."""
    if not step.tool:
        return " ".join(step.text.split())
    values = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items() if value is not None)
    hits = f": {(step.result or '').count(chr(10) + '  id: ')} found" if step.tool.startswith("search") else ""
    return f"{step.tool}({values}){hits}"
