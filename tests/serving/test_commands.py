"""Output of `gumshoe ask`."""

import pytest

from gumshoe.rollouts.answer import AnswerStep
from gumshoe.serving.commands import _format_step

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
