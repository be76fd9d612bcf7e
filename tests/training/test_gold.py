"""Demonstrations that are made from scenarios and their sources: searches, episodes, and their numbers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.environments.tools import Call, Toolbox
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.inference.policy_names import TINY, load_tokenizer
from gumshoe.mail.build import build_mail_index
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.synthesis.mailboxes import synthesize_mail
from gumshoe.training.run_spec import WARM_START_STATE, check_start
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import LoraSettings
from gumshoe.training.sft.demonstrations import to_demonstrations
from gumshoe.training.sft.gold_answers import shorten_answer
from gumshoe.training.sft.gold_demonstrations import (
    GoldReport,
    make_gold_episodes,
    start_warm_from_gold,
    write_gold_episodes,
)
from gumshoe.training.sft.gold_words import find_filters, find_keywords
from gumshoe.training.sft.scripted_expert import parse_hits
from gumshoe.training.sft.warm_start import DONE, WarmStartReport, _check_inputs, _FinishedWarmStart, _spec
from gumshoe.training.training_step import run_sft
from tests.conftest import CommandResult
from tests.documents.collection import make_index as make_documents
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.training.recorded_episodes import SETTINGS, settings_of

ANN, BOB = "ann@example.com", "bob@example.com"
SMALL = {"hits": 4, "hit_characters": 160, "message_characters": 400, "handles": True}
NO_DETOURS = {"warm_start__gold__failed_searches": 0, "warm_start__gold__other_reads": 0}


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with invented mail, its index, and questions about it."""
    directory = tmp_path_factory.mktemp("gold")
    mail = synthesize_mail(5, 3, 360, "normal")
    make_index(directory, mail.messages)
    scenarios = [each.model_copy(update={"split": "train"}) for each in mail.scenarios.scenarios[:40]]
    scenarios.append(mail.scenarios.scenarios[-1].model_copy(update={"split": "validation"}))
    (directory / "scenarios.jsonl").write_bytes(ScenarioSet.of(scenarios).to_jsonl())
    return directory


@pytest.fixture(scope="module")
def asked(company: Path) -> list[Scenario]:
    lines = (company / "scenarios.jsonl").read_text().splitlines()
    return [each for each in map(Scenario.model_validate_json, lines) if each.split == "train"]


def open_mail(directory: Path, **arguments: Any) -> EnvFactory:
    return open_env(directory / "index", EnvironmentSettings(name="email", arguments=arguments))


def make(env: EnvFactory, scenarios: Sequence[Scenario], **settings: Any) -> tuple[list[Trajectory], GoldReport]:
    return make_gold_episodes(env, scenarios, settings_of(rollouts__max_turns=10, **settings))


def calls_of(episode: Trajectory, *names: str) -> list[Call]:
    return [call for span in episode.spans for call in span.calls if not names or call.name in names]


# Words and answers.


@pytest.mark.parametrize(
    ("question", "keywords"),
    [
        ("When did Ann Lee sign the lease in Bergen?", ["Ann Lee", "Ann", "Lee", "sign", "lease", "Bergen"]),
        ("Which of Tom's 40 spare parts are on the list?", ["Tom", "40 spare", "40", "spare parts", "spare", "parts"]),
        ("What is in 'The Book of Hours'?", ["The Book of Hours", "Book", "Hours"]),
    ],
)
def test_keywords_are_names_and_content_words(question: str, keywords: list[str]) -> None:
    found = [each.text for each in find_keywords(question)]
    assert [each for each in found if each in keywords] == keywords
    assert not {"When", "did", "the", "in", "Which", "of", "What", "is"} & set(found)


@pytest.mark.parametrize(
    ("question", "filters"),
    [
        ("What did Ann Lee write about the lease?", [{"sender": "Ann Lee"}]),
        ("What did I tell Mark?", [{"sender": BOB}, {"recipient": "Mark"}]),
        ("What was due in March 2001?", [{"sent_after": "2001-03-01", "sent_before": "2001-04-01"}]),
        ("What was due in May?", [{"sent_after": "2000-05-01", "sent_before": "2000-06-01"}]),
        ("Who was the contractor as of 4 March 2001?", [{"sent_before": "2001-03-05"}]),
        ("Who was asked before February 3rd, 2001?", [{"sent_before": "2001-02-03"}]),
        ("What is planned for May 2009?", []),
    ],
)
def test_filters_are_the_people_and_dates_of_the_question(question: str, filters: list[dict[str, str]]) -> None:
    found = find_filters(question, BOB, date(2001, 4, 20))
    assert [dict(each.arguments) for each in found] == filters


@pytest.mark.parametrize(
    ("question", "answer", "text", "expected"),
    [
        ("When is the audit?", "The audit is on 3 May.", "It begins on 3 May, at ten.", "3 May"),
        ("What does the audit cost?", "The audit costs $4,170.", "It comes to $4,170 in all.", "$4,170"),
        ("When is the audit?", "The audit is on 3 May.", "It begins on the third.", "The audit is on 3 May."),
        ("Is there an audit?", "Yes.", "Yes, it is.", "Yes."),
    ],
)
def test_an_answer_is_shortened_to_what_stands_in_the_source(
    question: str, answer: str, text: str, expected: str
) -> None:
    assert shorten_answer(Scenario(id="1", question=question, answer=answer, document_ids=("d",)), text) == expected


# Episodes.


def check_replay(env: EnvFactory, episode: Trajectory, scenario: Scenario) -> None:
    """Check that an episode has the same results in a new environment, and is right."""
    environment = env.new_environment(scenario, 10)
    results = [environment.toolbox.run(call) for call in calls_of(episode)]
    assert [span.text for span in episode.spans if span.origin == "injected"] == results[:-1]
    assert environment.record == episode.record
    state = environment.record
    assert state.found
    assert state.read
    assert state.right_sources == state.sources
    assert state.answer == scenario.answer
    assert not state.invalid_ids
    assert not state.tool_errors
    assert episode.ending == "answer"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "reads", "answer"),
    [
        ({}, 1, "30 June 2024"),
        ({"message_characters": 200}, 4, "30 June 2024"),
        ({"attachments": False}, 1, "It is valid until 30 June 2024."),
    ],
    ids=["default", "pages", "without attachments"],
)
def test_an_answer_that_stands_in_an_attachment_is_read_there(
    tmp_path: Path, arguments: dict[str, Any], reads: int, answer: str
) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = ANN, BOB, "Bergen offer"
    message["Message-ID"], message["Date"] = "<1@example.com>", "Wed, 1 May 2024 12:00:00 +0000"
    message.set_content("See the file.")
    message.add_attachment(f"{'Prices are in euros. ' * 25}They hold until 30 June 2024.", filename="offer.txt")
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "1.eml").write_bytes(message.as_bytes())
    build_mail_index([f"eml:{tmp_path / 'mail'}"], tmp_path / "index")
    asked = Scenario(
        id="1",
        question="Until when is the Bergen offer valid?",
        answer="It is valid until 30 June 2024.",
        message_ids=("<1@example.com>",),
        inbox_address=BOB,
        query_date=date(2024, 5, 10),
    )
    (episode,), _ = make(open_mail(tmp_path, **arguments), [asked], **NO_DETOURS, warm_start__gold__answers="span")
    assert len(calls_of(episode, "read_email")) == reads
    (final,) = calls_of(episode, "return_final_answer")
    assert final.arguments == {"answer": answer, "message_ids": ["<1@example.com>"]}


@pytest.mark.ci
@pytest.mark.parametrize("arguments", [{}, EmailEnvironment.for_tiny, SMALL], ids=["default", "tiny", "small context"])
def test_every_episode_is_right_and_can_be_repeated(
    company: Path, asked: list[Scenario], arguments: dict[str, Any]
) -> None:
    env = open_mail(company, **arguments)
    episodes, report = make(env, asked)
    assert (report.scenarios, report.answered, report.without) == (len(asked), len(asked), {})
    assert report.from_question >= 0.95 * len(asked)
    for episode, scenario in zip(episodes, asked, strict=True):
        assert episode.scenario == scenario.id
        check_replay(env, episode, scenario)
        for call in calls_of(episode, "search_inbox") if episode.settings["difficulty"] == "easy" else ():
            assert all(keyword.casefold() in scenario.question.casefold() for keyword in call.arguments["keywords"])


@pytest.mark.ci
def test_episodes_depend_only_on_scenarios_and_settings(company: Path, asked: list[Scenario]) -> None:
    some, env = asked[:20], open_mail(company)
    episodes, _ = make(env, some)
    again, _ = make(open_mail(company), some[::-1])
    assert [each.to_json() for each in again[::-1]] == [each.to_json() for each in episodes]
    other, _ = make(env, some, data__seed=4)
    assert [each.spans for each in other] != [each.spans for each in episodes]


@pytest.mark.ci
def test_detours_have_their_shares_and_are_not_trained_on(company: Path, asked: list[Scenario]) -> None:
    env = open_mail(company)
    plain, report = make(env, asked, **NO_DETOURS)
    assert not [each for each in plain if each.untrained]
    assert not sum(each.record.read_others for each in plain)
    assert report.searches == 1
    failing, report = make(env, asked, **{**NO_DETOURS, "warm_start__gold__failed_searches": 1})
    assert report.searches > 1.5
    for episode in failing:
        assert episode.untrained == [1] * (episode.record.searches > 1)
        first = episode.spans[2].text
        assert not episode.untrained or not any(source in first for source in episode.record.sources)
    reading, _ = make(env, asked, **{**NO_DETOURS, "warm_start__gold__other_reads": 1})
    others = [each for each in reading if each.record.read_others]
    assert others
    assert all(each.untrained == [2] for each in others)
    _, half = make(env, asked, **{**NO_DETOURS, "warm_start__gold__failed_searches": 0.5})
    assert 0.3 < (half.searches - 1) / (report.searches - 1) < 0.7


@pytest.mark.ci
def test_a_share_of_the_searches_lists_the_source_below_the_first_hit(company: Path, asked: list[Scenario]) -> None:
    env = open_mail(company, **SMALL)
    shares = {}
    for share in (0, 0.5, 1):
        episodes, _ = make(env, asked, **NO_DETOURS, warm_start__gold__later_hits=share)
        for episode, scenario in zip(episodes, asked, strict=True):
            check_replay(env, episode, scenario)
        shares[share] = sum((each.record.best_rank or 0) > 1 for each in episodes) / len(episodes)
    assert shares[0] < shares[0.5] < shares[1]
    assert shares[1] > 2 * shares[0]


@pytest.mark.ci
@pytest.mark.parametrize("reads", ["in-order", "all"])
def test_hits_are_read_in_order_to_the_source_or_the_last(company: Path, asked: list[Scenario], reads: str) -> None:
    env = open_mail(company, **SMALL)
    settings = {**NO_DETOURS, "warm_start__gold__other_reads": 1, "warm_start__gold__later_hits": 1}
    episodes, _ = make(env, asked, **settings, warm_start__gold__reads=reads)
    later = 0
    for episode, scenario in zip(episodes, asked, strict=True):
        check_replay(env, episode, scenario)
        assert all(turn <= episode.record.searches for turn in episode.untrained)
        calls = [str(call) for call in calls_of(episode, "read_email")]
        assert len(set(calls)) == len(calls)
        if scenario.needs_all or episode.record.searches > 1:
            continue
        listed = [each.source for each in parse_hits(episode.spans[2].text)]
        read = list(dict.fromkeys(call.arguments["message_id"] for call in calls_of(episode, "read_email")))
        assert read == listed[: episode.record.best_rank if reads == "in-order" else None]
        later += len(read) > 1
    assert later > 10


@pytest.mark.parametrize("reads", ["in-order", "all"])
def test_the_source_is_read_at_once_if_there_are_too_few_turns_to_read_more(
    company: Path, asked: list[Scenario], reads: str
) -> None:
    settings = {"rollouts__max_turns": 3, "warm_start__gold__later_hits": 1, "warm_start__gold__reads": reads}
    episodes, _ = make_gold_episodes(open_mail(company, **SMALL), asked, settings_of(**settings))
    below = [each for each in episodes if (each.record.best_rank or 0) > 1]
    assert len(below) > 10
    assert {each.turns for each in episodes} == {3}
    assert not any(each.record.read_others for each in below)


def test_several_episodes_of_a_scenario_have_other_keywords(company: Path, asked: list[Scenario]) -> None:
    episodes, report = make(open_mail(company), asked[:10], warm_start__gold__episodes=3, **NO_DETOURS)
    assert (report.answered, report.episodes) == (10, len(episodes))
    assert report.episodes > 20
    for scenario in asked[:10]:
        own = [each for each in episodes if each.scenario == scenario.id]
        assert [each.sample for each in own] == list(range(len(own)))
        assert len({str(calls_of(each, "search_inbox")) for each in own}) == len(own)


@pytest.mark.ci
def test_a_turn_that_is_not_trained_on_is_masked(company: Path, asked: list[Scenario]) -> None:
    env, chat = open_mail(company), ChatFormat(load_tokenizer(str(TINY)))
    episodes, _ = make(env, asked, warm_start__gold__failed_searches=1)
    episode = next(each for each in episodes if each.untrained)
    by_id = {each.id: each for each in asked}

    def count(each: Trajectory) -> tuple[int, int]:
        (found,) = to_demonstrations(each, env.new_environment(by_id[each.scenario], 10), chat)
        return len(found.ids), sum(found.mask)

    length, trained = count(replace(episode, untrained=[]))
    assert count(episode)[0] == length
    assert 0 < count(episode)[1] < trained


# A small mailbox, to know every step.


LEASE = "Hello, the yard costs 412 pounds a month. " + "Nothing else is new here. " * 20 + "Regards to Priya."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an index: 1 to 14 are about vans, 20 has the price of the yard, 21 is not Bob's."""
    directory = tmp_path_factory.mktemp("small")
    vans = [record(number, subject="Vans", body=f"About the vans, part {number}.") for number in range(1, 15)]
    lease = record(20, sender="carol@example.com", subject="Harrow", body=LEASE, date="2001-05-01T12:00:00+00:00")
    late = record(22, subject="Gate", body="The gate sticks.", date="2001-06-09T12:00:00+00:00")
    make_index(directory, [*vans, lease, record(21, to=["eve@example.com"], body="The secret is 7."), late])
    return directory


def ask(question: str, answer: str, *sources: int, **fields: Any) -> Scenario:
    ids = tuple(f"<{each}@example.com>" for each in sources)
    known = {"id": "q", "inbox_address": BOB, "query_date": date(2001, 6, 1), "split": "train", **fields}
    return Scenario(question=question, answer=answer, message_ids=ids, **known)


def test_a_filter_is_used_if_it_is_needed(small: Path) -> None:
    (episode,), _ = make(open_mail(small), [ask("What did Carol write in May 2001?", "412 pounds", 20)], **NO_DETOURS)
    (search,) = calls_of(episode, "search_inbox")
    assert search.arguments == {"keywords": ["Carol"]}
    scenario = ask("What about the vans before 3 May 2001?", "About the vans.", 1)
    (episode,), _ = make(open_mail(small, hits=1), [scenario], **NO_DETOURS)
    check_replay(open_mail(small, hits=1), episode, scenario)
    (search,) = calls_of(episode, "search_inbox")
    assert search.arguments == {"keywords": ["vans"], "sent_before": "2001-05-03"}


def test_long_messages_are_read_to_the_page_with_the_answer(small: Path) -> None:
    env = open_mail(small, **SMALL)
    (episode,), _ = make(env, [ask("Who is greeted about Harrow?", "Priya", 20)], **NO_DETOURS)
    reads = [each.arguments for each in calls_of(episode, "read_email")]
    assert reads == [{"message_id": "m1"}, {"message_id": "m1", "page": 2}]
    (answer,) = calls_of(episode, "return_final_answer")
    assert answer.arguments == {"answer": "Priya", "message_ids": ["m1"]}
    assert episode.record.sources == ["<20@example.com>"]
    (episode,), _ = make(env, [ask("What does Harrow cost?", "412 pounds", 20)], **NO_DETOURS)
    assert len(calls_of(episode, "read_email")) == 1


def test_all_sources_are_found_and_read_if_all_are_needed(small: Path) -> None:
    scenario = ask("What costs the yard at Harrow, and what are the Vans?", "412 and vans", 20, 14, needs_all=True)
    (episode,), report = make(open_mail(small), [scenario], **NO_DETOURS)
    assert sorted(episode.record.right_sources) == sorted(scenario.message_ids)
    assert sorted(episode.record.read) == sorted(scenario.message_ids)
    assert report.searches == 1
    missing = scenario.model_copy(update={"message_ids": (*scenario.message_ids, "<99@example.com>")})
    _, report = make(open_mail(small), [missing])
    assert report.without == {"not all sources are in the index": 1}


def test_words_that_the_policy_cannot_know_are_not_trained_on(small: Path) -> None:
    scenario = ask("How expensive is our place?", "412 pounds", 20)
    (episode,), report = make(open_mail(small), [scenario])
    assert (report.from_question, report.difficulties) == (0, {"hard": 1})
    searches = calls_of(episode, "search_inbox")
    assert episode.untrained[: len(searches)] == list(range(1, len(searches) + 1))
    assert episode.record.answer == "412 pounds"
    _, report = make(open_mail(small), [scenario], warm_start__gold__difficulty="normal")
    assert (report.episodes, report.without) == (0, {"too difficult": 1})


def test_the_wall_holds(small: Path) -> None:
    """Other inboxes and later messages cannot be sources, and no result shows them."""
    asked = [
        ask("What is the secret?", "7", 21, id="other"),
        ask("What sticks at the gate?", "the gate", 22, id="late"),
    ]
    episodes, report = make(open_mail(small), asked, warm_start__gold__unknown=0)
    assert (episodes, report.without) == ([], {"no source in the index": 2})
    episodes, report = make(open_mail(small), asked)
    assert report.answered == 2
    for episode in episodes:
        assert (episode.record.does_not_know, episode.record.sources) == (True, [])
        assert "<21@example.com>" not in "".join(span.text for span in episode.spans)
        assert "<22@example.com>" not in "".join(span.text for span in episode.spans)


def test_an_unanswerable_question_is_demonstrated_whatever_its_answer_shares_with_mail(small: Path) -> None:
    asked = ask("Which colour do the vans have?", "I don't know", unanswerable=True)
    episodes, _ = make(open_mail(small), [asked])
    assert [each.record.does_not_know for each in episodes] == [True]


@pytest.mark.parametrize(
    ("reads", "turns", "calls"),
    [
        ("source", 10, "srsa"),
        ("in-order", 10, "srrrrsa"),
        ("all", 10, "srrrrsa"),
        ("all", 6, "srrrra"),
        ("all", 5, "srsa"),
    ],
)
def test_as_many_hits_as_wanted_are_read_before_a_question_is_given_up(
    small: Path, reads: str, turns: int, calls: str
) -> None:
    asked = ask("Which colour do the vans have?", "I don't know", unanswerable=True)
    settings = settings_of(rollouts__max_turns=turns, warm_start__gold__reads=reads)
    (episode,), _ = make_gold_episodes(open_mail(small, **SMALL), [asked], settings)
    letters = {"search_inbox": "s", "read_email": "r", "return_final_answer": "a"}
    assert "".join(letters[call.name] for call in calls_of(episode)) == calls


def test_nothing_is_unknown_if_another_message_may_have_the_answer(small: Path) -> None:
    _, report = make(open_mail(small), [ask("What does the yard cost a month?", "412 pounds", 99)])
    assert report.without == {"no source in the index": 1}


def test_detours_are_left_out_if_there_are_too_few_turns(small: Path) -> None:
    scenario = ask("What does the yard at Harrow cost for the vans?", "412 pounds", 20)
    detours = {"warm_start__gold__failed_searches": 1, "warm_start__gold__other_reads": 1}
    (episode,), _ = make_gold_episodes(open_mail(small), [scenario], settings_of(rollouts__max_turns=10, **detours))
    assert episode.turns > 3
    (episode,), _ = make_gold_episodes(open_mail(small), [scenario], settings_of(rollouts__max_turns=3, **detours))
    assert episode.turns == 3
    _, report = make_gold_episodes(open_mail(small), [scenario], settings_of(rollouts__max_turns=2, **detours))
    assert report.without == {"too many turns": 1}


class OtherTools(EmailEnvironment):
    """An environment with a tool of another name."""

    def __init__(self, index: Any, scenario: Scenario, max_turns: int) -> None:
        super().__init__(index, scenario, max_turns)
        self.toolbox = Toolbox([self.read_email, self.return_final_answer])


def test_an_environment_with_other_tools_is_rejected(small: Path) -> None:
    env = open_env(small / "index", EnvironmentSettings(name=f"{__name__}:OtherTools"))
    with raises("training.gold-environment", "read_email"):
        make(env, [ask("What does the yard cost?", "412 pounds", 20)])


# Documents.


def test_documents_are_found_by_the_words_of_the_question(documents: Path) -> None:
    env = open_env(documents, EnvironmentSettings(name="documents", arguments={"reasoning": False}))
    scenario = Scenario(id="1", question="How high is the Alder tower?", answer="40 m", document_ids=("tower",))
    (episode,), report = make(env, [scenario], **NO_DETOURS)
    check_replay(env, episode, scenario)
    (search,) = calls_of(episode, "search_documents")
    assert search.arguments == {"query": "high Alder tower"}
    assert report.difficulties == {"easy": 1}


def test_ids_with_spaces_and_parentheses_are_read_and_cited(tmp_path: Path) -> None:
    texts = {
        "HR policies/Leave policy.pdf": "The Alder leave is 40 days.",
        "Plan (thread x).pdf": "The Birch plan costs 12 pounds.",
        "see [[b]].txt": "The Cedar is red.",
    }
    make_documents(tmp_path, [{"id": name, "title": "Note", "text": text} for name, text in texts.items()])
    env = open_env(tmp_path / "index", EnvironmentSettings(name="documents", arguments={"neighbours": 1}))
    asked = [
        Scenario(id="1", question="How long is the Alder leave?", answer="40 days", document_ids=[*texts][:1]),
        Scenario(id="2", question="What does the Birch plan cost?", answer="12 pounds", document_ids=[*texts][1:2]),
        Scenario(id="3", question="Which colour is the Cedar?", answer="red", document_ids=[*texts][2:]),
        Scenario(id="4", question="How old is the Cedar?", answer="9 years", document_ids=["not there"]),
    ]
    episodes, report = make(env, asked, **NO_DETOURS)
    for episode, scenario in zip(episodes, asked, strict=False):
        check_replay(env, episode, scenario)
    assert report.answered == 2
    assert report.without == {"no listed source can be read": 1, "a hit cannot be read": 1}  # the marks change the id


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an index of three documents, without vectors."""

    directory = tmp_path_factory.mktemp("documents")
    texts = {"tower": "The Alder tower is 40 m high.", "bridge": "The Birch bridge is long.", "mill": "An old mill."}
    records = [{"id": name, "title": name, "text": text} for name, text in texts.items()]
    make_documents(directory, records)
    return directory / "index"


# The command, and the step of a pipeline.


def words(company: Path, **settings: Any) -> list[object]:
    known = ["--index", company / "index", "--scenarios", company / "scenarios.jsonl", "--model", "tiny"]
    flags = {name: value for name, value in {**SETTINGS, **settings}.items() if name != "model.name"}
    return [*known, *(word for name, value in flags.items() for word in ("--set", f"{name}={value}"))]


def test_the_command_only_writes_the_episodes(company: Path, tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    file = tmp_path / "gold.jsonl"
    limited = words(company, **{"data.train_size": 5})
    typed = ["warm-start", "--from-gold", "--demonstrations-only", file, *limited]
    done = run(*typed, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["answered"] == 5
    assert len(list(read_trajectories(file))) == 5
    before = file.read_bytes()
    assert "5 of 5" in run(*typed).out
    assert file.read_bytes() == before
    for wrong, code, found in (
        ([file, "--from-gold", "--out", tmp_path], "training.warm-start-input", "both were given"),
        (["--out", tmp_path], "training.warm-start-input", "neither was given"),
        ([file, "--demonstrations-only", file], "training.warm-start-input", "requires --from-gold"),
        (["--from-gold"], "training.warm-start-output", "--out"),
        (["--from-gold", "--out", tmp_path, "--demonstrations-only", file], "training.warm-start-output", "--out"),
        (["--from-gold", "--out", tmp_path, "--judge", "exact"], "training.warm-start-unused", "--judge"),
        (["--from-gold", "--demonstrations-only", file, "--full"], "training.warm-start-unused", "--full"),
        (["--from-gold", "--demonstrations-only", file, "--resume"], "training.warm-start-unused", "--resume"),
    ):
        ended = run("warm-start", *wrong, *limited)
        assert (ended.status, ended.code) == (2, code)
        assert found in ended.err


def finish_warm_start(company: Path, directory: Path, settings: TrainSettings) -> WarmStartReport:
    """Write what a finished warm start leaves, without training."""
    inputs = _check_inputs(settings, company / "index", str(company / "scenarios.jsonl"))
    spec = _spec(settings, None, inputs).model_copy(update={"trajectories": "0"})
    report = WarmStartReport(episodes=5, right=5, too_long=0, tokens=9, steps=1, loss=1, seconds=1)
    directory.mkdir()
    (directory / "adapter_config.json").touch()
    (directory / DONE).write_text(_FinishedWarmStart(spec=spec, report=report).model_dump_json())
    return report


def test_everything_else_is_checked_before_episodes_are_played(
    company: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gumshoe.training.sft.gold_demonstrations.make_gold_episodes", None)
    asked, full, start = str(company / "scenarios.jsonl"), tmp_path / "full", tmp_path / "start"
    finished = finish_warm_start(company, full, settings_of())
    start.mkdir()
    (start / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}')
    new = tmp_path / "new"
    new.mkdir()

    def begin(directory: Path, *, resume: bool = False, **more: Any) -> WarmStartReport:
        return start_warm_from_gold(settings_of(**more), company / "index", asked, directory, resume=resume)

    (full / WARM_START_STATE).mkdir()  # left by a process that was killed at its end
    assert begin(full, resume=True) == finished
    assert not (full / WARM_START_STATE).exists()
    quantized: dict[str, Any] = {"warm_start__weights": "full", "model__quantization": "nf4"}
    for code, directory, more in (
        ("training.directory-not-empty", full, {}),
        ("training.other-settings", full, {"resume": True, "warm_start__epochs": 3}),
        ("settings.full-quantized", new, quantized),
        ("adapters.other-lora-settings", new, {"lora__start": str(start)}),
        ("training.context-exceeds-model", new, {"model__max_context": 100_000}),
    ):
        with raises(code):
            begin(directory, **more)
    for name, value in {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    with raises("training.warm-start-multi-node"):
        begin(new)
    missing = tmp_path / "missing"
    for file, code, named in ((missing / "x.jsonl", "store.not-found", missing), (new, "store.is-a-directory", new)):
        with raises(code, f"{named} "):
            write_gold_episodes(settings_of(), company / "index", asked, file)


def test_episodes_are_kept_with_the_state_of_their_warm_start(
    company: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the directory of temporary files, where a killed process would leave them for ever."""

    def stop(*arguments: Any, **_: Any) -> None:
        assert len(list(read_trajectories(arguments[3]))) == 2
        raise errors.pop()

    errors: list[Exception] = [UsageError("training.episodes-too-long", ""), UnavailableError("training.killed", "")]
    monkeypatch.setattr("gumshoe.training.sft.warm_start.start_warm", stop)
    settings, asked = settings_of(data__train_size=2), str(company / "scenarios.jsonl")
    with raises("training.killed"):
        start_warm_from_gold(settings, company / "index", asked, tmp_path)
    assert [each.name for each in (tmp_path / WARM_START_STATE).iterdir()] == ["gold.jsonl"]
    with raises("training.episodes-too-long"):
        start_warm_from_gold(settings, company / "index", asked, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_episodes_are_an_error(company: Path, tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    short = words(company, **{"data.train_size": 2, "rollouts.max_turns": 2})
    ended = run("warm-start", "--from-gold", "--demonstrations-only", tmp_path / "none.jsonl", *short)
    assert (ended.status, ended.code) == (2, "training.no-gold-episodes")
    assert "2 too many turns" in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.usefixtures("train_in_process")
def test_the_pipeline_step_makes_the_episodes(company: Path, tmp_path: Path) -> None:
    """No judge is asked: this one does not exist."""
    settings = {name: value for name, value in SETTINGS.items() if name != "model.name"}
    settings |= {"warm_start.epochs": 0.2, "data.train_size": 8}
    out, store = tmp_path / "out", (tmp_path / "store").as_uri()
    out.mkdir()
    inputs = (company / "index", company, "tiny", "", settings, "gold", "openai:none@http://127.0.0.1:9")
    report = run_sft(*inputs, out, store, "")
    assert (report["episodes"], report["right"]) == (8, 8)
    check_start(LoraSettings(rank=4, alpha=8, start=out))
    (kept,) = Store(store).list()
    assert kept.version.startswith("001-"), "the last checkpoint is left in the store"
