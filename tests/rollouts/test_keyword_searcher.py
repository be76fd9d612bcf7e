"""The policy that searches without a model."""

import asyncio
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.keyword_searcher import closest_sentence, find_keywords
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from tests.documents.collection import DISEASES
from tests.documents.collection import make_index as make_document_index
from tests.errors import raises
from tests.mail.mailbox import make_index, record


def run(env: EnvFactory, scenario: Scenario, max_turns: int = 6) -> Trajectory:
    async def play() -> Trajectory:
        environment, limits = env.new_environment(scenario, max_turns), EpisodeLimits(max_turns)
        opened = open_policy(PolicyName.parse("keywords"), None, Sampling(), limits)
        async with opened as run, ToolThreads() as threads:
            return await run(EpisodeStart(environment, "seed", limits, threads))

    return asyncio.run(play())


def calls(episode: Trajectory) -> Sequence[tuple[str, object]]:
    return [(call.name, next(iter(call.arguments.values()))) for span in episode.spans for call in span.calls]


def test_names_and_numbers_are_searched_for_before_other_words() -> None:
    assert find_keywords("When did Ann Lee sign the lease in Bergen?") == ["Ann", "Lee", "Bergen", "lease"]
    assert find_keywords("What is it about?") == []


def test_the_closest_sentence_is_quoted() -> None:
    text = "Dear Bob,\nthe fee was paid. Now the lease begins on 3 May! Regards"
    assert closest_sentence(text, "When does the lease begin?") == "Now the lease begins on 3 May!"
    assert closest_sentence("", "When?") == ""


def test_a_message_is_found_read_and_quoted(tmp_path: Path) -> None:
    mail = [record(1, body="The lease in Bergen begins on 3 May. Bring keys."), record(2, body="Bergen is rainy.")]
    make_index(tmp_path, mail)
    question = Scenario(
        id="1",
        question="When does the lease in Bergen begin?",
        answer="3 May",
        message_ids=("<1@example.com>",),
        inbox_address="bob@example.com",
        query_date=date(2001, 6, 1),
    )
    episode = run(open_env(tmp_path / "index"), question)
    assert calls(episode) == [
        ("search_inbox", ["Bergen", "lease", "begin"]),
        ("read_email", "<1@example.com>"),
        ("return_final_answer", "The lease in Bergen begins on 3 May."),
    ]
    assert (episode.record.found, episode.record.right_sources) == ([*question.message_ids], [*question.message_ids])
    assert episode.policy == "keywords"


def test_fewer_words_are_searched_for_until_there_is_a_hit(tmp_path: Path) -> None:
    make_index(tmp_path, [record(1, body="Bergen is rainy.")])
    asked = Scenario.from_question("Which lawyer in Bergen bought umbrellas?", "bob@example.com", date(2001, 6, 1))
    env = open_env(tmp_path / "index").for_tiny()  # a search without partial matches
    assert [value for name, value in calls(run(env, asked)) if name == "search_inbox"] == [
        ["Bergen", "umbrellas", "lawyer", "bought"],
        ["Bergen", "umbrellas", "lawyer"],
        ["Bergen", "umbrellas"],
        ["Bergen"],
    ]


def test_without_a_hit_it_does_not_know(tmp_path: Path) -> None:
    make_index(tmp_path, [record(1)])
    asked = Scenario.from_question("What is it about?", "bob@example.com", date(2001, 6, 1))
    episode = run(open_env(tmp_path / "index"), asked)
    assert (episode.ending, episode.record.does_not_know) == ("answer", True)


def test_documents_are_searched_with_a_text(tmp_path: Path) -> None:
    make_document_index(tmp_path, DISEASES)
    episode = run(open_env(tmp_path / "index"), Scenario.from_question("What causes the pain of gout?", None, None))
    assert calls(episode)[:2] == [("search_documents", "causes pain gout"), ("read_document", "gout")]
    assert episode.record.answer == "Gout is caused by crystals of uric acid."


def test_a_document_is_read_whose_id_has_spaces(tmp_path: Path) -> None:
    make_document_index(tmp_path, [{"id": "HR policies/Leave.pdf", "title": "Leave", "text": "Leave is 40 days."}])
    episode = run(open_env(tmp_path / "index"), Scenario.from_question("How long is leave?", None, None))
    assert calls(episode)[1] == ("read_document", "HR policies/Leave.pdf")
    assert episode.record.answer == "Leave is 40 days."


def test_other_tools_are_refused(tmp_path: Path) -> None:
    env = open_env(tmp_path, EnvironmentSettings.parse("tests.environments.own_environments:NotesEnvironment"))
    with raises("rollouts.keywords-tools", "search_, read_, return_final_answer", "look_up"):
        run(env, Scenario.from_question("Which color is the chair?", None, None))
