"""Page of the command line: every command with its arguments and options."""

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from textwrap import dedent
from typing import Any

import typer
from docs.generate.markdown import anchor, code, page, prose, sentence, table

from gumshoe.cli import COMMANDS, app

_EXTRA = re.compile(r"(?:^|  )\[(?P<notes>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]$")
_LIMITS = re.compile(r"(?:([-\d.e]+)(<=?))?x(?:([<>]=?)([-\d.e]+))?")
_TYPES = {
    "str": "TEXT",
    "path": "PATH",
    "int": "INTEGER",
    "int range": "INTEGER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "list[str]": "TEXT",
}


def render_command_line() -> str:
    """Return the page, with the groups of commands of `gumshoe --help`."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        groups[command.rich_help_panel].append(name)
    overview = (
        (group, f"[{code(f'gumshoe {name}')}](#gumshoe-{name})", sentence(_plain(COMMANDS[name][1])))
        for group, names in groups.items()
        for name in names
    )
    return page(
        "Command line",
        "`gumshoe --help` lists the commands, and `gumshoe COMMAND --help` shows the options of one. `gumshoe "
        "--version` prints the version. Every command ends with one of these [exit codes](exit-codes.md).",
        table(("group", "command", "purpose"), overview),
        (
            line
            for group, names in groups.items()
            for line in (f"## {group}", "", *(each for name in names for each in _render_command(name)))
        ),
    )


def load_command(name: str) -> Any:
    """Return a command of `gumshoe`, as typer builds it."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    return typer.main.get_command(getattr(import_module(module), attribute or "app"))


def list_commands() -> Iterator[tuple[str, Any]]:
    """Yield each command that can be run, with its full name, e.g. `gumshoe mail index`."""
    for name in sorted(COMMANDS):
        command = load_command(name)
        for inner, found in getattr(command, "commands", {"": command}).items():
            if not found.hidden:
                yield f"gumshoe {name} {inner}".strip(), found


def _render_command(name: str) -> Iterator[str]:
    command = load_command(name)
    if not hasattr(command, "commands"):
        yield from _render_one(f"gumshoe {name}", command, "###")
        return
    yield from [f"### gumshoe {name}", "", sentence(_plain(COMMANDS[name][1])), ""]
    for inner, found in command.commands.items():
        if not found.hidden:
            yield from _render_one(f"gumshoe {name} {inner}", found, "####")


def _render_one(name: str, command: Any, level: str) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    parameters = [each for each in command.params if not each.hidden]
    usage = " ".join([name, *(_usage(each) for each in parameters if each.param_type_name == "argument"), "[OPTIONS]"])
    yield from [f"{level} {name}", "", *_paragraphs(command.help or ""), "```text", usage, "```"]
    for kind in ("argument", "option"):
        chosen = [each for each in parameters if each.param_type_name == kind]
        if chosen:
            yield from table((kind, "default", "description"), (_row(each, name, context) for each in chosen))
    if command.epilog:
        yield from ["Examples:", "", "```text", *dedent(command.epilog).strip().splitlines(), "```", ""]


def _usage(argument: Any) -> str:
    shown = str(argument.metavar or argument.name.upper()).strip("[]").removesuffix("...").strip("[]")
    shown += "..." if argument.nargs == -1 else ""
    return shown if argument.required else f"[{shown}]"


def _row(parameter: Any, command: str, context: typer.Context) -> tuple[str, str, str]:
    shown, text = parameter.get_help_record(context)
    notes = _read_notes(text)
    description = sentence(_plain(parameter.help or ""))
    for note in notes:
        if note.startswith("env var: "):
            description += f" Environment variable: {code(note.removeprefix('env var: '))}."
        elif limits := _LIMITS.fullmatch(note):
            description += _describe_limits(*limits.groups())
    default = next((code(note.removeprefix("default: ")) for note in notes if note.startswith("default: ")), "")
    name = parameter.opts[0].lstrip("-") if parameter.param_type_name == "option" else parameter.name
    target = anchor(f"{command.replace(' ', '-')}--{name}")
    label = _usage(parameter).strip("[]") if parameter.param_type_name == "argument" else _name_types(shown)
    return target + code(label), "required" if parameter.required else default, description


def _describe_limits(least: str | None, above: str | None, below: str | None, most: str | None) -> str:
    """Return the limits of a number, e.g. ` At least 1, at most 64.` for `1<=x<=64`."""
    signs = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
    first = f"{signs[(above or '').replace('<', '>')]} {least}" if least else ""
    second = f"{signs[below]} {most}" if below else ""
    text = ", ".join(filter(None, (first, second)))
    return f" {text[:1].upper()}{text[1:]}."


def _read_notes(text: str) -> list[str]:
    """Return what typer adds to the help of an option: its default, limits and environment variable."""
    found = _EXTRA.search(text)
    return found["notes"].split("; ") if found else []


def _name_types(shown: str) -> str:
    return re.sub(r"<([^>]*)>", lambda found: _TYPES.get(found[1], found[1]), shown)


def _paragraphs(text: str) -> Iterator[str]:
    for each in text.split("\n\n"):
        yield from [prose(_plain(each)), ""]


def _plain(text: str) -> str:
    """Return help without the backslashes that keep Rich from reading markup."""
    return text.replace("\\[", "[")
