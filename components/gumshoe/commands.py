"""Explain error codes: `gumshoe explain`."""

from dataclasses import asdict
from difflib import get_close_matches
from typing import Annotated

import typer

from gumshoe.error_codes import load_error_codes
from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, out, print_json, printable

explain = typer.Typer()


def _complete_code() -> list[tuple[str, str]]:
    return [(code, entry.cause) for code, entry in load_error_codes().items()]


@explain.command(epilog="gumshoe explain cli.usage")
def _explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            autocompletion=_complete_code,
            help="An error code, e.g. cli.usage, or the prefix of several, e.g. mail. Default: list all codes.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Explain an error code: its cause and its remedy. With a prefix, list the codes that begin with it."""
    known = load_error_codes()
    code = code or ""
    prefix = f"{code.rstrip('.')}." if code else ""
    listed = [each for name, each in known.items() if name.startswith(prefix)]
    if listed:
        if json:
            print_json([asdict(each) for each in listed])
        else:
            for each in listed:
                out.print(f"[bold]{each.code}[/] {printable(each.cause)}", soft_wrap=True)
        return
    entry = known.get(code.strip("[]"))
    if entry is None:
        near = ", ".join(get_close_matches(code, known))
        hint = f"did you mean {near}?" if near else "run `gumshoe explain` to list all of them"
        raise UsageError("cli.unknown-error-code", f"unknown error code: {code}; {hint}")
    if json:
        print_json(asdict(entry))
    else:
        out.print(f"[bold]{entry.code}[/]\n{printable(entry.cause)}\nRemedy: {printable(entry.remedy)}", soft_wrap=True)
