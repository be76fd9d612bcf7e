"""The help of every command: readable on a narrow terminal."""

import re
import shlex
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import typer

from gumshoe.cli import COMMANDS
from gumshoe.help_pages import print_help
from tests.conftest import CommandResult

Run = Callable[..., CommandResult]


def load(name: str) -> Any:
    module, _, attribute = COMMANDS[name][0].partition(":")
    return typer.main.get_command(getattr(import_module(module), attribute or "app"))


def list_pages(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of each help page."""
    yield " ".join(words), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from list_pages(inner, (*words, name))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_too_long_and_no_name_is_cut(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for path, command in list_pages(load(name), ("gumshoe", name)):
        print_help(command, typer.Context(command, info_name=path))
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > width] == [], path
        words = set(re.split(r"[\s,/]+", "\n".join(lines)))
        names = {
            each for option in command.get_params(typer.Context(command)) for each in option.opts if each[0] == "-"
        }
        assert names <= words, path
        for line in (command.epilog or "").strip().splitlines():
            assert f"  {line.strip()}" in "\n".join(lines), path


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_name_existing_options(name: str) -> None:
    for path, command in list_pages(load(name), ("gumshoe", name)):
        for example in (command.epilog or "").replace("\\\n", " ").strip().splitlines():
            program, *words = shlex.split(example)
            assert [program, *words][: len(path.split())] == path.split()
            assert command.make_context(path, words[len(path.split()) - 1 :])


def test_commands_have_headings_and_one_line_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = run("--help").out
    headings = re.findall(r"^(\w+):$", printed, re.M)
    assert headings == ["Data", "Agent", "Train", "Evaluate", "Serve", "Cluster", "Other", "Options"]
    listed = re.findall(r"^  ([a-z-]+) +\S", printed.partition("\nOptions:")[0], re.M)
    assert listed == list(COMMANDS)


def test_notes_and_quoted_words_are_not_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = run("documents", "scrape", "--help").out
    for whole in ("[1 to 100]", "[env: GUMSHOE_USER_AGENT]", "`gumshoe documents index jsonl:FILE`"):
        assert whole in printed
    assert "'{email: {hits: 4, handles: true}}'" in run("ask", "--help").out


def test_a_group_without_a_command_prints_its_help(run: Run) -> None:
    assert "check" in run("scenarios").out
