"""Print results on standard output, and everything else on standard error."""

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Protocol

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
_is_quiet = ContextVar("is_quiet", default=False)
_has_printed_json = ContextVar("has_printed_json", default=False)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(result: BaseModel | list[Any] | dict[str, Any]) -> None:
    """Print one JSON document on standard output."""
    _has_printed_json.set(True)
    document = result.model_dump(mode="json") if isinstance(result, BaseModel) else result
    print(json.dumps(document, indent=2, ensure_ascii=False))  # noqa: T201 - rich would wrap long lines


def reset_printed_json() -> None:
    """Forget that a JSON document was printed. Call it at the start of each command."""
    _has_printed_json.set(False)


def has_printed_json() -> bool:
    """Return True if this command has printed its JSON document."""
    return _has_printed_json.get()


def escape_control_characters(text: object) -> str:
    """Return text that is safe to show in a terminal, with control characters written out."""
    return "".join(map(_visible, str(text)))


def printable(text: object) -> str:
    """Return text that is safe to print with rich: as `plain`, and with markup escaped."""
    return escape(escape_control_characters(text))


def print_counts(title: str, counts: Mapping[str, int]) -> None:
    """Print counts by reason on one line, or nothing without counts."""
    if counts:
        listed = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        out.print(f"{title}: {listed}", soft_wrap=True)


def print_unreadable(found: Iterable[tuple[str, str, str]], *, json: bool) -> None:
    """Print what an index could not read: place, reason and detail of each."""
    if json:
        print_json([{"place": place, "reason": reason, "detail": detail} for place, reason, detail in found])
        return
    for place, reason, detail in found:
        out.print(f"{printable(place)}: {printable(reason)} [dim]{printable(detail)}[/]", soft_wrap=True)


def print_origin(facts: Mapping[str, Any]) -> None:
    """Print the sources, date and options of an index. `facts` are its `stats`."""
    for source in facts["sources"]:
        out.print(f"from {printable(source)}", soft_wrap=True)
    options = ", ".join(f"{name} {printable(value)}" for name, value in facts["options"].items())
    out.print(f"built {facts['built']} with {options}, schema {facts['schema']}", soft_wrap=True)
    out.print(f"content {facts['content']}", soft_wrap=True)


def _visible(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if unicodedata.category(character) in {"Zs", "Cf"}:  # unusual spaces; invisible marks, which can reverse text
        return " " if character.isspace() else ""
    return f"\\x{ord(character):02x}"


class _RateColumn(ProgressColumn):
    """Column with the completed units per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        shown = f"{speed:,.{0 if speed >= 10 else 1}f}/s" if speed else ""
        return Text(shown, style="progress.data.speed")


class Advance(Protocol):
    """Report progress: add `amount`, show `note` beside the bar, and set the total."""

    def __call__(self, amount: float = 0, *, note: str | None = None, total: float | None = None) -> None: ...


@contextmanager
def hide_progress() -> Iterator[None]:
    """Hide progress bars in the block, e.g. because other work shows its own."""
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


@contextmanager
def progress(description: str, *, total: float | None = None, in_bytes: bool = False) -> Iterator[Advance]:
    """Show a progress bar on standard error while the block runs, if that is a terminal.

    The bar counts items, or bytes with `in_bytes`. Without a total it shows count and rate only.
    """
    measure: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), _RateColumn())
    if in_bytes:
        measure = (DownloadColumn(), TransferSpeedColumn())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *measure,
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal or _is_quiet.get()) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:
            bar.update(task, advance=amount, total=total)
            if note is not None:
                bar.update(task, note=escape_control_characters(note))

        yield advance
