"""Options and output of `gumshoe ask`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rollouts.answer import AnswerStep
from gumshoe.serving.commands import _format_step
from tests.conftest import CommandResult
from tests.documents.pages import make_collection, page
from tests.scenarios.questions import about_documents, question, write_questions

HIT = "2001-05-01 ann@example.com: Due\n  On Friday.\n  id: <1@example.com> (thread <1@example.com>, 2 messages)"


@pytest.mark.parametrize(
    ("tool", "result", "line"),
    [
        ("search_inbox", f"{HIT}\n{HIT}", "search_inbox(keywords=['due']): 2 found"),
        ("search_inbox", "Nothing found.", "search_inbox(keywords=['due']): 0 found"),
        ("search_inbox", f"No message has all keywords.\n{HIT}", "search_inbox(keywords=['due']): 1 found in part"),
        ("read_email", HIT, "read_email(keywords=['due'])"),
    ],
)
def test_a_step_is_printed_with_the_number_of_hits(tool: str, result: str, line: str) -> None:
    assert _format_step(AnswerStep(1, tool, {"keywords": ["due"], "sender": None}, "", result)) == line


@pytest.mark.parametrize(
    ("fields", "words", "code", "value"),
    [
        ({"split": "train"}, [], "serving.no-test-question", "train"),
        ({}, [], "serving.no-test-question", "no split"),
        ({"split": "test"}, ["When?"], "serving.option-conflict", "QUESTION"),
        ({"split": "test"}, ["--inbox", "ann@example.com"], "serving.option-conflict", "--inbox"),
        ({"split": "test"}, ["--date", "2001-05-02"], "serving.option-conflict", "2001-06-01"),
    ],
)
def test_options_without_an_effect_beside_scenarios_are_refused(
    run: Callable[..., CommandResult], tmp_path: Path, fields: dict[str, Any], words: list[str], code: str, value: str
) -> None:
    file = write_questions(tmp_path / "questions.jsonl", [question(1, **fields)])
    done = run("ask", *words, "--scenarios", file, "--index", tmp_path)
    assert (done.status, done.code) == (2, code), done.err
    assert value in done.err


def test_scenarios_without_collections_take_those_of_the_option(
    run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    """The command gets as far as the model, which does not exist."""
    index = make_collection(tmp_path, [page(1, collection="hr"), page(2, collection="eng")])
    words = ["ask", "--index", index, "--model", tmp_path / "no-model", "--scenarios"]
    plain = write_questions(tmp_path / "plain.jsonl", [about_documents(1, split="test")])
    own = write_questions(tmp_path / "own.jsonl", [about_documents(1, split="test", collections=["hr"])])
    codes = {
        name: run(*words, *given).code
        for name, given in {
            "none": [plain],
            "option": [plain, "--collections", "*"],
            "scenario": [own],
            "both": [own, "--collections", "*"],
        }.items()
    }
    assert codes == {
        "none": "documents.collections-required",
        "option": "sources.no-such-model-directory",
        "scenario": "sources.no-such-model-directory",
        "both": "serving.option-conflict",
    }
