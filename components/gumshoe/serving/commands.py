"""Provide `gumshoe serve`, `gumshoe serve-key` and `gumshoe ask`."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gumshoe.completion import complete_adapter, complete_choice, complete_model, complete_policy, complete_selector
from gumshoe.errors import RefusedError, UsageError
from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.installation import install_command
from gumshoe.rollouts.commands import AgentOption, ChatOption, EnvironmentOption, parse_environment
from gumshoe.terminal import JsonFlag, err, out, print_json, printable
from gumshoe.yaml_text import InvalidYamlError, load_yaml

if TYPE_CHECKING:
    from gumshoe.rollouts.answer import Answer, AnswerStep
    from gumshoe.scenarios.scenario import Scenario

T = TypeVar("T")

serve = typer.Typer(add_completion=False)
serve_key = typer.Typer(add_completion=False)
ask = typer.Typer(add_completion=False)

ChooseBy = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        autocompletion=complete_selector,
        help="Judge of the samples. For majority: compares answers (default: heuristic). For best: ruler:MODEL or "
        "ruler:MODEL@URL.",
    ),
]


@serve.command(
    epilog="""
    gumshoe serve --policy tiny --index index --open
    gumshoe serve --adapter latest --store s3://bucket/project --index index \\
      --keys keys.yaml
    """
)
def run(
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            envvar="GUMSHOE_INDEX",
            metavar="DIR|KIND/VERSION",
            help="Index of mail or documents: a directory, or KIND/VERSION in the store.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Store of indexes and adapters."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            autocompletion=complete_policy,
            help="Policy as in `gumshoe rollout`: vllm:URL#ADAPTER, chat:MODEL@URL, tiny, ...",
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|DIR",
            autocompletion=complete_adapter,
            help="Instead of --policy: start a vLLM server for this adapter. `latest`: the newest in the store.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Base model (default: the one in the adapter's metadata).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="Tokenizer of the model, required for vllm:.")
    ] = None,
    canary: Annotated[
        str | None, typer.Option(metavar="ADAPTER", help="Canary: another adapter that the same servers have loaded.")
    ] = None,
    canary_percent: Annotated[
        float | None, typer.Option(min=0, max=100, help="Percentage of the questions for the canary (default: 10).")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of access keys, written by `gumshoe serve-key`.")
    ] = None,
    open_access: Annotated[
        bool, typer.Option("--open", help="Let anybody read everything. Use it only on your own machine.")
    ] = False,
    i_know: Annotated[
        bool,
        typer.Option(
            "--i-know",
            help="With --open and another --host than this machine: accept that everybody in the network can read "
            "everything. Also set access.allowed_hosts.",
        ),
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on (default: 8000); 0 for any free port.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, max=64, help="Processes that run the episodes, beside the one that answers HTTP (default: 0)."
        ),
    ] = None,
    environment: EnvironmentOption = None,
    chat: ChatOption = None,
    agent: AgentOption = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with settings.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One setting, e.g. limits.queue=10. Repeatable."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML, with descriptions, and exit.")
    ] = False,
) -> None:
    """Serve an agent that answers from mail or documents: HTTP at /invoke, MCP at /mcp, a page at /, the API at /docs.

    Flags override environment variables (GUMSHOE_SERVE__LIMITS__QUEUE=10), which override the settings file. Access
    must be configured: --keys, access.jwks_url or --open.
    """
    try:
        from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
        from gumshoe.serving.server import serve as run_server
        from gumshoe.serving.settings import read_settings
        from gumshoe.serving.settings_template import render_settings
        from gumshoe.serving.telemetry import log_as_json, log_event
    except ModuleNotFoundError as error:
        raise UsageError(
            "serving.not-installed", f"gumshoe serve requires {error.name}: {install_command(extra='serve')}"
        ) from None

    flags: dict[str, Any] = _parse_sets(sets or [])
    chat_settings = ChatSettings.parse(chat)
    options = {
        "index": index,
        "environment": environment,
        "store": store,
        "host": host,
        "port": port,
        "workers": workers,
        "model.policy": policy,
        "model.adapter": adapter,
        "model.base": model,
        "model.tokenizer": tokenizer,
        "model.chat": chat_settings and chat_settings.model_dump(exclude_unset=True),
        "model.agent": agent,
        "model.canary": canary,
        "model.canary_percent": canary_percent,
        "access.keys": None if keys is None else str(keys),
        "access.open": open_access or None,
        "access.open_to_network": i_know or None,
    }
    for setting, value in options.items():
        if value is not None:
            _set_nested(flags, setting, value)
    if print_config:
        out.print(printable(render_settings(config, flags)), end="", soft_wrap=True)
        return
    settings = read_settings(config, flags)
    if sys.stderr.isatty():
        run_server(
            settings, lambda url, limits: err.print(f"Serving at [bold]{printable(url)}[/]; per episode: {limits}")
        )
    else:
        log_as_json()
        run_server(settings, lambda url, limits: log_event(f"Serving at {url}; per episode: {limits}"))


@serve_key.command(epilog="gumshoe serve-key keys.yaml ann --inbox ann@example.com")
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file. It is created if it does not exist.")],
    name: Annotated[str, typer.Argument(help="Name of the key's owner, shown in logs.")],
    inbox: Annotated[
        list[str] | None,
        typer.Option(
            "--inbox",
            metavar="ADDRESS",
            help="Inbox that the key may read, or a pattern, e.g. *@example.com. Repeatable. Not needed for documents.",
        ),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="NAME",
            help="Collection of documents that the key may read, or a pattern, e.g. eng-*. Repeatable. Not needed if "
            "the index has no collections.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Create a key for the agent server and print it. The file only contains its hash, so it cannot be shown again.

    A running server reads the file again when it changes. To revoke a key, remove its entry from the file.
    """
    from gumshoe.serving.key_file import add_key

    inboxes, collections = inbox or [], collection or []
    key = add_key(file, name, inboxes, collections)
    if json:
        print_json({"name": name, "key": key, "inboxes": inboxes, "collections": collections})
        return
    out.print(key, soft_wrap=True)
    named = [*inboxes, *(f"the collection {each}" for each in collections)]
    what = ", ".join(named) or "documents without collections, but no inbox (add --inbox or --collection)"
    err.print(f"{printable(name)} may read {printable(what)}", soft_wrap=True)


def _parse_sets(sets: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE options into nested settings.

    Raises:
        UsageError: if one is malformed.
    """
    found: dict[str, Any] = {}
    for each in sets:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(
                "serving.invalid-set-option", f"--set must be NAME=VALUE, e.g. limits.queue=10; got {each!r}"
            )
        try:
            _set_nested(found, name.strip(), load_yaml(value))
        except InvalidYamlError as error:
            raise UsageError(
                "serving.invalid-set-option", f"--set {each!r}: the value is not valid YAML: {error}"
            ) from None
    return found


def _set_nested(found: dict[str, Any], name: str, value: Any) -> None:
    *groups, last = name.split(".")
    for group in groups:
        inner = found.setdefault(group, {})
        if not isinstance(inner, dict):
            raise UsageError(
                "serving.invalid-set-option", f"cannot set {name}: {group} is a value, not a group of settings"
            )
        found = inner
    found[last] = value


@ask.command(
    epilog="""
    gumshoe ask "When is the invoice due?" --index index --inbox ann@example.com
    gumshoe ask --scenarios questions.jsonl --index index --adapter latest
    """
)
def run_question(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(metavar="QUESTION", help="The question.")] = None,
    inbox: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Inbox to search, for questions about mail.")
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Ask the first test question of these scenarios instead."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of an index of mail or documents."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Agent server to ask. It has its own model and index.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="GUMSHOE_KEY", metavar="KEY", help="Key for the agent server.")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|DIR",
            autocompletion=complete_adapter,
            help="Adapter: a version in the store, `latest`, or a directory.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Store of the adapters.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|NAME",
            autocompletion=complete_model,
            help="Base model (default: the adapter's own; without an adapter, tiny).",
        ),
    ] = None,
    day: Annotated[
        datetime | None,
        typer.Option("--date", formats=["%Y-%m-%d"], help="Ignore later messages (default for mail: today)."),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of turns (default: as the adapter was trained, or 10).")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens per turn (default: as the adapter was trained, or 512)."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Number of episodes, from which one answer is chosen (at most 64).")
    ] = 1,
    choose: Annotated[
        str | None,
        typer.Option(
            metavar="majority|best",
            autocompletion=complete_choice,
            help="How to choose among several samples (default: majority).",
        ),
    ] = None,
    choose_by: ChooseBy = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, max=MAX_TEMPERATURE, help="Sampling temperature (default: 0, greedy; 1 with several samples)."
        ),
    ] = None,
    environment: EnvironmentOption = None,
    agent: AgentOption = None,
    chat: ChatOption = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATTERN",
            help="Collections of documents to read, e.g. hr, eng-* or '*' (repeatable). Needed if the index has some.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Answer one question, on this machine (--index) or by an agent server (--url), and show the steps and sources.

    Exits with 3 if there is no answer.
    """
    if url is not None:  # index and store may be set by environment variables, for other commands
        local_options = {
            "index",
            "adapter",
            "store",
            "model",
            "max_turns",
            "max_tokens",
            "environment",
            "agent",
            "chat",
            "collections",
        }
        local_options |= {"samples", "choose", "choose_by", "temperature"}
        sources = {name: context.get_parameter_source(name) for name in local_options}
        given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if given:
            flag = "--" + min(given).replace("_", "-")
            raise UsageError(
                "serving.option-conflict", f"{flag} cannot be used with --url: the server has its own index and model"
            )
    elif index is None:
        raise UsageError("serving.no-index-or-url", "set --index to ask here, or --url to ask an agent server")
    elif (source := context.get_parameter_source("key")) is not None and source.name == "COMMANDLINE":
        raise UsageError("serving.option-conflict", "--key cannot be used without --url: only an agent server has keys")
    query_date, readable = day.date() if day else None, tuple(collections) if collections else None
    known = None
    if scenarios is not None:
        known = _read_test_question(scenarios, {"QUESTION": question, "--inbox": inbox})
        question, inbox = known.question, known.inbox_address
        query_date = _choose_one(known.query_date, query_date, "--date", known)
        readable = _choose_one(known.collections, readable, "--collections", known)
        err.print(f"{printable(inbox)} asks: {printable(question)}" if inbox else printable(question), soft_wrap=True)
    if question is None:
        raise UsageError("serving.no-question", "no question given: write QUESTION, or use --scenarios FILE")
    from gumshoe.serving.ask import LocalModel, Question, answer_locally, ask_server

    if index is None or url is not None:
        found = ask_server(str(url), key, question, inbox, query_date)
    else:
        from gumshoe.rewards.best_of_n import parse_choice_options
        from gumshoe.rollouts.agent_settings import AgentSettings
        from gumshoe.rollouts.chat_format.chat_settings import ChatSettings

        choice = parse_choice_options(samples, choose or ("majority" if samples > 1 else None), choose_by, temperature)
        local_question = Question(index, inbox, query_date, question, parse_environment(environment), readable)
        parsed = ChatSettings.parse(chat), AgentSettings.parse_option(agent)
        local = LocalModel(adapter, store, model, *parsed, max_turns, max_tokens)
        found = asyncio.run(answer_locally(local_question, local, temperature or 0.0, choice))
    if json:
        from pydantic import TypeAdapter

        from gumshoe.rollouts.answer import Answer

        print_json(TypeAdapter(Answer).dump_python(found, mode="json"))
    else:
        _print_answer(found)
        if known is not None:
            err.print(f"Reference answer: {printable(known.answer)}", soft_wrap=True)
    if not found.success:
        is_tiny = url is None and adapter is None and model in (None, "tiny")
        hint = "; the tiny policy reads only synthetic mail: use --adapter or --model" if is_tiny else ""
        raise RefusedError("serving.no-answer", f"{found.reason}{hint}")


def _read_test_question(file: str, others: Mapping[str, object]) -> "Scenario":
    """Return the first test question of a file. `others` are options that this question replaces.

    Raises:
        UsageError: if one of them is given, or the file has no test question.
    """
    from gumshoe.scenarios.sources import load_scenarios

    if given := [name for name, value in others.items() if value is not None]:
        raise UsageError(
            "serving.option-conflict",
            f"{given[0]} cannot be used with --scenarios, whose question is asked in its own inbox; leave one of them "
            "out",
        )
    loaded = load_scenarios(file)
    known = next(iter(loaded.only("test")), None)
    if known is None:
        found = sorted({each.split or "no split" for each in loaded})
        raise UsageError(
            "serving.no-test-question",
            f"{file} has no question of the split test, only of: {', '.join(found)}; split it with "
            "`gumshoe scenarios split`, or write QUESTION",
        )
    return known


def _choose_one(own: T | None, given: T | None, option: str, known: "Scenario") -> T | None:
    """Return the value that a scenario has, or else that of an option.

    Raises:
        UsageError: if both have one.
    """
    if own is not None and given is not None:
        raise UsageError(
            "serving.option-conflict",
            f"{option} cannot be used with this question: scenario {known.id} has its own, {own}; leave the option out",
        )
    return given if own is None else own


def _print_answer(found: "Answer") -> None:
    for step in found.steps:
        err.print(f"[dim]{printable(_format_step(step))}[/]", soft_wrap=True)
    if found.success:
        out.print(f"[bold]{printable(found.answer)}[/]", soft_wrap=True)
    for each in found.sources:
        out.print(f"  {printable(each.label)}", soft_wrap=True)
    err.print(f"{printable(found.policy)}, {found.turns} turns, {found.seconds:.1f} s", soft_wrap=True)
    if found.chosen and found.cost:
        err.print(f"{printable(found.chosen)}; all samples: {printable(found.cost.summary)}", soft_wrap=True)


def _format_step(step: "AnswerStep") -> str:
    """Return a tool call in one line, with the number of hits of a search."""
    if not step.tool:
        return " ".join(step.text.split())
    values = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items() if value is not None)
    if not step.tool.startswith("search"):
        return f"{step.tool}({values})"
    result = step.result or ""
    kind = "found in part" if result.startswith("No message ") else "found"
    return f"{step.tool}({values}): {result.count(chr(10) + '  id: ')} {kind}"
