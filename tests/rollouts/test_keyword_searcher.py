"""The policy `keywords` in environments that it knows, and in others."""

import asyncio
from pathlib import Path

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.rollouts.keyword_searcher import KeywordSearcher
from tests.environments.own_environments import Notes, NotesEnvironment
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import scenario


@pytest.fixture
def searcher(tmp_path: Path) -> KeywordSearcher:
    """Return a searcher of notes, whose tools have other names."""
    return KeywordSearcher(NotesEnvironment(Notes(tmp_path), scenario(1), 5))


def test_it_searches_reads_and_answers(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1, body="The lamp is blue. The chair is red.")])
    environment = EmailEnvironment(index, scenario(1, question="Which color is the chair?"), 5)
    session = KeywordSearcher(environment)

    async def play() -> None:
        while turn := await session.next_turn():
            (call,) = turn.parsed.calls
            session.add_results([call], [environment.toolbox.run(call)])

    asyncio.run(play())
    assert environment.record.answer == "The chair is red."
    assert environment.record.right_sources == ["<1@example.com>"]


def test_other_tools_are_refused(searcher: KeywordSearcher) -> None:
    with raises("rollouts.keywords-tools", "search_, read_, return_final_answer", "look_up"):
        asyncio.run(searcher.next_turn())
