"""Progress of long work where there is no terminal: a line now and then."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from gumshoe.terminal import (
    PRINT_INTERVAL,
    ProgressLines,
    create_table,
    err,
    hide_progress,
    out,
    print_json,
    print_list,
    print_next,
    printable,
    progress,
    repeat_command,
)


class Clock:
    """A clock that a test moves forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("total", "in_bytes", "expected"),
    [
        (40, False, "Reading: 10 of 40 (25%), 1.0/s, 0:30 left, b.mbox\n"),
        (None, False, "Reading: 10, 1.0/s, b.mbox\n"),
        (4000, True, "Reading: 10 bytes of 4.0 kB (0%), 1 byte/s, 1:06:30 left, b.mbox\n"),
    ],
)
def test_a_line_is_printed_at_most_every_ten_seconds(
    total: float | None, in_bytes: bool, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    lines = ProgressLines("Reading", total=total, in_bytes=in_bytes, clock=clock)
    lines.advance(4, note="a.mbox")
    assert capsys.readouterr().err == ""
    clock.now = PRINT_INTERVAL
    lines.advance(6, note="b.mbox")
    assert capsys.readouterr().err == expected
    lines.advance(5)
    assert capsys.readouterr().err == ""


def test_slow_work_has_a_rate_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = ProgressLines("Passes", total=4, clock=clock)
    clock.now = 3600
    lines.advance(1)
    assert capsys.readouterr().err == "Passes: 1 of 4 (25%), 1.0/h, 3:00:00 left\n"


def test_progress_can_be_hidden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.terminal.PRINT_INTERVAL", 0)
    with hide_progress(), progress("Reading") as advance:
        advance(1)
    assert capsys.readouterr().err == ""
    with progress("Reading") as advance:
        advance(1)
    assert capsys.readouterr().err.startswith("Reading: 1, ")


def test_the_next_command_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    print_next("gumshoe", "gate", "--candidate", "out#b", "--baseline", Path("my [dir]"))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Next: gumshoe gate --candidate 'out#b' --baseline 'my [dir]'\n")


def test_a_command_is_repeated_with_changed_parameters() -> None:
    app, repeated = typer.Typer(), list[str]()

    @app.command()
    def measure(
        context: typer.Context,
        place: str,
        policy: Annotated[list[str], typer.Option()],
        limit: int = 0,
        out: Annotated[str, typer.Option("--out", "-o")] = "here",
        verbose: Annotated[bool, typer.Option("--verbose/--quiet")] = True,
    ) -> None:
        del place, policy, limit, out, verbose
        repeated.extend(repeat_command(context, limit=None, out="there"))

    words = ["index", "--policy", "a=x", "--limit", "3", "--policy", "b", "-o", "x", "--quiet"]
    CliRunner().invoke(app, words, prog_name="measure")
    assert repeated == ["measure", "--policy", "a=x", "--policy", "b", "--out", "there", "--quiet", "index"]


def test_a_narrow_table_cuts_no_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    digest, reference = "0123456789abcdef" * 4, f"runs/{'r' * 63}/canary/20261130-213251-123456"
    table = create_table("digest", "artifact", box=None)
    table.add_row(digest, reference)
    out.print(table)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(map(len, lines)) <= 60
    assert "".join(line.split()[0] for line in lines).startswith(digest[:20])
    assert sum(len("".join(line.split())) for line in lines) == len(digest + reference)
    print_list(table)
    assert capsys.readouterr().out.splitlines()[1].split() == [digest, reference]


@pytest.mark.parametrize(
    "text",
    [
        "maildir:M: is read",
        ":smile: [red]",
        "a:+1:b",
        "[bold]:warning:[/]",
        "[",
        "x]",
        "C:\\",
        "C:\\\\",
        r"\[0-9]",
        r"\[E=mc^2\]",
        r"\[red]",
        r"\\[red]\\\[/]",
        r"\a\\b",
    ],
)
def test_text_is_printed_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for console in (out, err):
        console.print(printable(text))
        console.print(text, markup=False)
        table = Table("name")
        table.add_row(printable(text))
        console.print(table)
        console.print(f"[bold]{printable(text)}[/]|{printable(text)}|{printable('[red')}{printable(text)}")
    for printed in capsys.readouterr():
        *others, last = printed.splitlines()
        assert "\n".join(others).count(text) == 3
        assert last == f"{text}|{text}|[red{text}"


def test_json_has_no_character_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"subject": "\x9d0;owned\x9c \x1b[2J \u202e \ud800 \U000e0041 äö\n", "sources": [{"id": "日本"}]}
    print_json(document)
    printed = capsys.readouterr().out
    assert json.loads(printed) == document
    assert all(line.isprintable() for line in printed.splitlines())
    assert "äö" in printed
    assert "日本" in printed


def test_printed_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reward": math.nan, "per": [math.inf, -math.inf, 1.5]})
    assert capsys.readouterr().out == '{\n  "reward": null,\n  "per": [\n    null,\n    null,\n    1.5\n  ]\n}\n'


def test_log_records_are_written_without_escape_sequences() -> None:
    code = (
        "import logging, gumshoe; logging.getLogger('x').warning('it said %s', chr(27) + ']0;owned' + chr(7) + '[red]')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "it said \\x1b]0;owned\\x07[red]\n"


@pytest.mark.parametrize("text", ["password=abc\\[1]", "password=abc\\", "x [/] password=a[b]"])
def test_credentials_beside_brackets_are_masked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    err.print(f"[dim]{printable(text)}[/] and more")
    printed = capsys.readouterr().err
    assert "password=***" in printed
    assert "abc" not in printed


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_messages_that_nobody_reads_end_neither_the_command_nor_its_results(is_terminal: bool) -> None:
    """The reader of a pipe has ended, e.g. `tee` after Ctrl-C, or the terminal of the messages was closed."""
    code = "from gumshoe.terminal import err, out; err.print('one'); err.print('two'); out.print('result')"
    reader, writer = os.openpty() if is_terminal else os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stdout) == (0, b"result\n")


def test_a_message_that_cannot_be_written_for_now_does_not_silence_later_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, faults = sys.stderr.write, [OSError(errno.ENOSPC, "No space left on device")]

    def fail_once(text: str) -> int:
        if faults:
            raise faults.pop()
        return write(text)

    monkeypatch.setattr(sys.stderr, "write", fail_once)
    err.print("one")
    err.print("two")
    assert capsys.readouterr().err == "two\n"
