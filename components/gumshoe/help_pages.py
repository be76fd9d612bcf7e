"""Print the help of a command, in a layout that stays readable on narrow terminals.

Options stand on the left and their help on the right. Quoted words and examples are never broken.
"""

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

_MAX_WIDTH = 100  # columns; longer lines are hard to read
_LEFT = 28  # columns for names; the help of a longer name begins in the next line
_QUOTED = re.compile(r"`[^`]+`|'[^']*[{\[][^']*'|\"[^\"]+\"")
_HARD_SPACE = "\N{NO-BREAK SPACE}"
_TYPES = {"int": "N", "float": "NUMBER", "str": "TEXT"}
Row = tuple[str, str]
"""The left and the right column of a line: a name and its help."""


def print_help(command: Any, context: Any) -> None:
    """Print the help of a command or a group, as typer builds it, on standard output."""
    console = Console(highlight=False)
    width = min(console.width, _MAX_WIDTH)
    for line in _render_page(command, context, width):
        console.print(line, soft_wrap=True)


def _render_page(command: Any, context: Any, width: int) -> Iterator[Text]:
    parameters = [each for each in command.get_params(context) if not each.hidden]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    yield from _render_usage(context.command_path, command, arguments, width)
    for paragraph in filter(None, _to_plain(command.help or "").split("\n\n")):
        yield Text()
        yield from (Text(line) for line in _wrap(" ".join(paragraph.split()), width))
    groups = _group_commands(command)
    widest = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
    sections = {
        **groups,
        "Arguments": [(_name_argument(each), _describe(each)) for each in arguments],
        "Options": [(_name_option(each, context), _describe(each)) for each in options],
    }
    for heading, rows in sections.items():
        least = widest if heading in groups else 0
        yield from _render_section(heading, rows, least, width)
    if command.epilog:
        yield Text("\nExamples:", style="bold")
        yield from (Text(f"  {line}") for line in textwrap.dedent(command.epilog).strip().splitlines())


def _render_usage(path: str, command: Any, arguments: list[Any], width: int) -> Iterator[Text]:
    pieces = [path, "[OPTIONS]"]
    pieces += [_name_argument(each) if each.required else f"[{_name_argument(each)}]" for each in arguments]
    pieces += ["COMMAND ..."] if hasattr(command, "commands") else []
    lines = _wrap(" ".join(pieces), width - len("Usage: "))
    for number, line in enumerate(lines):
        yield Text.assemble((" " * len("Usage: ") if number else "Usage: ", "bold"), line)


def _group_commands(command: Any) -> dict[str, list[Row]]:
    """Return the visible commands of a group by heading."""
    found: dict[str, list[Row]] = defaultdict(list)
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            found[each.rich_help_panel or "Commands"].append((name, _summarize(each)))
    return found


def _render_section(heading: str, rows: list[Row], least: int, width: int) -> Iterator[Text]:
    """Render the rows of a section, the names at least `least` columns wide."""
    if not rows:
        return
    yield Text(f"\n{heading}:", style="bold")
    left = min(_LEFT, max(least, *(len(name) for name, _ in rows)))
    for name, help_text in rows:
        begin = Text.assemble("  ", _colour(name))
        if len(name) > left:
            yield begin
            begin = Text("  ")
        begin.pad_right(left + 4 - len(begin))
        first, *others = _wrap(help_text, width - left - 4) or [""]
        yield begin + first
        yield from (Text(" " * (left + 4) + line) for line in others)


def _colour(name: str) -> Text:
    text = Text(name, style="cyan")
    text.highlight_regex(r"(?<=\s)[^-\s].*$", "yellow")
    return text


def _wrap(text: str, width: int) -> list[str]:
    """Wrap a text, but not within quoted words that fit into a line."""

    def hold_together(found: re.Match[str]) -> str:
        return found[0].replace(" ", _HARD_SPACE) if len(found[0]) <= width else found[0]

    held = _QUOTED.sub(hold_together, text)
    lines = textwrap.wrap(held, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_HARD_SPACE, " ") for line in lines]


def _summarize(command: Any) -> str:
    return " ".join(_to_plain(command.short_help or command.help or "").partition("\n\n")[0].split())


def _name_argument(argument: Any) -> str:
    shown = str(argument.metavar or argument.name.upper()).strip("[]").removesuffix("...").strip("[]")
    return f"{shown}..." if argument.nargs == -1 else shown


def _name_option(option: Any, context: Any) -> str:
    names = "/".join([", ".join(sorted(option.opts, key=len)), *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or _name_type(option, context)}"


def _name_type(option: Any, context: Any) -> str:
    kind = option.display_type(context).strip("<>").removeprefix("list[").removesuffix("]").removesuffix(" range")
    if option.type_descriptor.is_datetime:
        return "DATE"
    return str(_TYPES.get(kind, kind if option.type_descriptor.is_choice else kind.upper()))


def _describe(parameter: Any) -> str:
    """Return the help of a parameter, with notes in brackets: if it is required, its default, limits and variable."""
    notes = ["required"] if parameter.required else []
    default = _name_default(parameter)
    notes += [f"default: {default}"] * bool(default)
    notes += _describe_limits(parameter.min, parameter.max)
    notes += [f"env: {parameter.envvar}"] * bool(parameter.envvar and parameter.show_envvar)
    shown = [f"[{each}]".replace(" ", _HARD_SPACE) for each in notes]
    return " ".join([*_to_plain(parameter.help or "").split(), *shown])


def _name_default(parameter: Any) -> str:
    value = parameter.default
    if parameter.param_type_name == "option" and parameter.is_flag:
        return "" if not parameter.secondary_opts else str((parameter.opts if value else parameter.secondary_opts)[0])
    return "" if value is None else str(value)


def _describe_limits(least: float | None, most: float | None) -> list[str]:
    if least is None:
        return [] if most is None else [f"at most {most:g}"]
    return [f"at least {least:g}"] if most is None else [f"{least:g} to {most:g}"]


def _to_plain(text: str) -> str:
    """Return help as plain text: without the backslashes that keep Rich from reading markup."""
    return textwrap.dedent(text).replace("\\[", "[").strip()
