"""Print results on standard output, and everything else on standard error."""

import errno
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.filesize import decimal
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

from gumshoe.json_text import escape_unprintable
from gumshoe.redaction import escape_control_characters, redact

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Column, Table


_MARKUP = re.compile(r"\\+(?=\[|\Z)|\[")
_LOST = {errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF}  # of a reader that has ended, or a terminal that was closed


class _MessageConsole(Console):
    """Console for messages: credentials in text are masked. Results, e.g. mail, are printed on `out` as they are.

    A message that cannot be written does not end the work that it is about. If nobody can read messages any more, the
    console is silent from then on.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text as it is shown, with credentials masked. Masked text has no styles."""
        shown = super().render_str(text, **options)
        masked = redact(shown.plain)
        return shown if masked == shown.plain else Text(masked)

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        """Write what was printed in the block; each `print` is one."""
        try:
            super().__exit__(exc_type, exc_value, traceback)
        except OSError as error:
            if error.errno in _LOST:
                self.on_broken_pipe()
            else:  # e.g. a disk that is full for now: only this message is lost
                del self._buffer[:]

    def on_broken_pipe(self) -> None:
        """Be silent from now on, because nobody reads messages. Rich would exit, and silence the results instead."""
        self.quiet = True
        # What is still buffered must go somewhere: if it cannot be written at exit, the exit status is 120.
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


# Names such as `maildir:M:` contain no emoji.
out = Console(highlight=False, emoji=False)
err = _MessageConsole(stderr=True, highlight=False, emoji=False)
PRINT_INTERVAL = 10.0
"""Minimum number of seconds between two lines of progress."""
_is_quiet = ContextVar("is_quiet", default=False)
_has_printed_json = ContextVar("has_printed_json", default=False)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(result: "BaseModel | list[Any] | dict[str, Any]") -> None:
    """Print one JSON document on standard output, with escapes for what could change how a terminal shows it.

    Numbers that JSON does not have (NaN and infinite ones) are printed as null.
    """
    _has_printed_json.set(True)
    document = result if isinstance(result, list | dict) else result.model_dump(mode="json")
    document = json.loads(json.dumps(document), parse_constant=lambda _: None)
    text = escape_unprintable(json.dumps(document, indent=2, ensure_ascii=False))
    print(text)  # noqa: T201 - rich would wrap long lines


def reset_printed_json() -> None:
    """Forget that a JSON document was printed. Call it at the start of each command."""
    _has_printed_json.set(False)


def has_printed_json() -> bool:
    """Return True if this command has printed its JSON document."""
    return _has_printed_json.get()


def printable(text: object) -> str:
    """Return text that is safe to print with rich: without control characters, and with markup escaped."""
    return _MARKUP.sub(_escape_markup, escape_control_characters(text))


def _escape_markup(found: re.Match[str]) -> str:
    # Rich halves backslashes before a tag, removes one before any other bracket, and keeps those before other text.
    # With a tag without effect behind them, there is only one case.
    return r"\[" if found[0] == "[" else f"{found[0] * 2}[none][/none]"


def print_next(*words: object) -> None:
    """Print the command that continues the work, as one dim line on standard error.

    >>> print_next("gumshoe", "mail", "stats", "--index", Path("my mail"))
    Next: gumshoe mail stats --index 'my mail'
    """
    err.print(f"[dim]Next: {printable(shlex.join(map(str, words)))}[/]", soft_wrap=True)


def repeat_command(context: typer.Context, **changes: object) -> list[str]:
    """Return the words of the command that runs now, as they were given.

    `changes` are other values of parameters that were given; None leaves one out.
    """
    words, arguments = context.command_path.split(), list[str]()
    for parameter in context.command.params:
        name = str(parameter.name)
        source, value = context.get_parameter_source(name), changes.get(name, context.params.get(name))
        if value is None or source is None or source.name != "COMMANDLINE":
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            arguments += map(str, values)
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            words += [word for each in values for word in (parameter.opts[0], str(each))]
    return [*words, *arguments]


def create_table(*headers: "Column | str", **options: Any) -> "Table":
    """Return a table without rows (see `rich.table.Table`). Words longer than a column are folded, not cut off."""
    from rich.table import Column, Table

    columns = [each if isinstance(each, Column) else Column(each) for each in headers]
    for each in columns:
        each.overflow = "fold"
    return Table(*columns, **options)


def print_list(table: "Table") -> None:
    """Print a table with one line for each row, for `grep` and for copying, even if the terminal is narrower."""
    width = out.measure(table, options=out.options.update(width=10_000)).maximum
    Console(width=max(width, out.width), highlight=False, emoji=False).print(table)


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
        shown = source if isinstance(source, str) else _describe_source(source)
        uri = source if isinstance(source, str) else source["source"]
        commit = facts.get("revisions", {}).get(uri)
        out.print(f"from {printable(shown)}{f' at commit {commit}' if commit else ''}", soft_wrap=True)
    options = ", ".join(f"{name} {printable(value)}" for name, value in facts["options"].items())
    out.print(f"built {facts['built']} with {options}, schema {facts['schema']}", soft_wrap=True)
    out.print(f"content {facts['content']}", soft_wrap=True)


def _describe_source(source: Mapping[str, Any]) -> str:
    if "collection" in source:
        return f"{source['source']}, collection {source['collection']}"
    known = [str(source["source"])]
    if "owner" in source:
        known.append(f"mailbox of {source['owner']}")
    if "trust_from" in source:
        known.append("all senders trusted")
    if "trust_authserv" in source:
        known.append(f"senders confirmed by {' or '.join(source['trust_authserv'])}")
    return ", ".join(known)


class _RateColumn(ProgressColumn):
    """Column with the completed units per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(_format_rate(speed) if speed else "", style="progress.data.speed")


class Advance(Protocol):
    """Report progress: add `amount`, show `note` beside the bar, and set the total."""

    def __call__(self, amount: float = 0, *, note: str | None = None, total: float | None = None) -> None: ...


class ProgressLines:
    """Print the progress of long work on standard error, a line at most every `PRINT_INTERVAL` seconds.

    For output that is not a terminal, e.g. the log of a pod, and for work that cannot hold a progress bar.
    """

    def __init__(
        self,
        description: str,
        *,
        total: float | None = None,
        in_bytes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._description, self._total, self._in_bytes, self._clock = description, total, in_bytes, clock
        self._done, self._note = 0.0, ""
        self._started = self._printed = clock()

    def advance(self, amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:
        """Report progress as `Advance` does."""
        self._done += amount
        self._note = self._note if note is None else note
        self._total = self._total if total is None else total
        now = self._clock()
        if now - self._printed >= PRINT_INTERVAL:
            self._printed = now
            err.print(printable(self._describe(now - self._started)), soft_wrap=True)

    def _describe(self, seconds: float) -> str:
        size = decimal if self._in_bytes else _format_count
        parts = [size(int(self._done))]
        if self._total:
            parts = [f"{size(int(self._done))} of {size(int(self._total))} ({self._done / self._total:.0%})"]
        if self._done:
            rate = self._done / seconds
            parts.append(f"{decimal(int(rate))}/s" if self._in_bytes else _format_rate(rate))
            if self._total and self._total > self._done:
                parts.append(f"{_format_duration((self._total - self._done) / rate)} left")
        return f"{self._description}: {', '.join(filter(None, [*parts, self._note]))}"


def _format_count(number: int) -> str:
    return f"{number:,}"


def _format_rate(rate: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60)):
        if rate * seconds >= 0.1:
            return f"{rate * seconds:,.{0 if rate * seconds >= 10 else 1}f}/{unit}"
    return f"{rate * 3600:,.1f}/h"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def hide_progress() -> Iterator[None]:
    """Hide progress bars in the block, e.g. because other work shows its own."""
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


@contextmanager
def progress(
    description: str, *, total: float | None = None, in_bytes: bool = False, is_transient: bool = False
) -> Iterator[Advance]:
    """Show a progress bar on standard error while the block runs; a line now and then if that is not a terminal.

    The bar counts items, or bytes with `in_bytes`. Without a total it shows count and rate only. A transient bar is
    removed at the end.
    """
    if not err.is_terminal and not _is_quiet.get():
        yield ProgressLines(description, total=total, in_bytes=in_bytes).advance
        return
    measure: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), _RateColumn())
    if in_bytes:
        measure = (DownloadColumn(), TransferSpeedColumn())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *measure,
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=_is_quiet.get(), transient=is_transient) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:
            bar.update(task, advance=amount, total=total)
            if note is not None:
                bar.update(task, note=escape_control_characters(note))

        yield advance
