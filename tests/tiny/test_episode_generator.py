"""Episodes of the scripted expert: proper calls, real results, and errors of several kinds."""

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call, ToolError
from gumshoe.rewards.exact_match import is_exact
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.synthesis.mailboxes import synthesize_mail
from gumshoe.synthesis.rng import Rng
from gumshoe.tiny.episode_generator import (
    EPISODES,
    MAX_TURNS,
    SKILLS,
    UNFAMILIAR,
    EpisodeExample,
    EpisodeFormat,
    EpisodeGenerator,
    MailboxAsDocuments,
    PracticeCompany,
    replace_ids,
)
from gumshoe.training.sft.scripted_expert import MAIL, ErrorKind, ScriptedExpert, parse_hits
from tests.tiny.conftest import PracticeEpisodes


class NeverRng(Rng):
    """Return False for every chance, so that the expert makes no error."""

    def chance(self, probability: float) -> bool:  # noqa: ARG002
        return False


TURN = re.compile(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", re.S)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.S)


def parse_calls(text: str) -> list[Call]:
    return [parse_call(turn) for turn in TURN.findall(text)]


def parse_call(turn: str) -> Call:
    (call,) = find_form("hermes").parse(turn, [])
    return call


def count_truncated_searches(episode: EpisodeExample, calls: list[Call]) -> int:
    """Return the number of searches for truncated words at the start of an episode."""
    words = set(re.findall(r"[\w'\u2019-]+", episode.scenario.question))
    keywords = [call.arguments.get("keywords", episode.scenario.question.split()) for call in calls]
    return next(place for place, found in enumerate(keywords) if words & set(" ".join(found).split()))


@pytest.mark.nightly
def test_every_turn_is_one_call_and_the_last_is_the_answer(practice: PracticeEpisodes) -> None:
    for _, text in practice.whole:
        calls = parse_calls(text)
        assert 2 <= len(calls) <= MAX_TURNS
        assert [call.name for call in calls].index("return_final_answer") == len(calls) - 1
        assert len(RESULT.findall(text)) == len(calls) - 1


def test_episodes_use_the_tools_of_mail_and_of_documents(practice: PracticeEpisodes) -> None:
    names = Counter(call.name for _, text in practice.whole for call in parse_calls(text))
    assert set(names) == {"search_inbox", "read_email", "search_documents", "read_document", "return_final_answer"}
    assert min(names.values()) > 30


def test_replacing_ids_changes_nothing_else() -> None:
    mail = synthesize_mail(11, 3, 120)
    other = replace_ids(mail, "#######.#############.JavaMail.root", Rng(1))
    assert all(re.fullmatch(r"<\d{7}\.\d{13}\.JavaMail\.root@[\w.]+>", each["message_id"]) for each in other.messages)
    assert len({each["message_id"] for each in other.messages}) == 120
    texts = [{each["message_id"]: {**each, "message_id": ""} for each in made.messages} for made in (mail, other)]
    assert list(texts[0].values()) == list(texts[1].values())
    for before, after in zip(mail.scenarios, other.scenarios, strict=True):
        assert after.message_ids != before.message_ids
        assert [texts[1][each] for each in after.message_ids] == [texts[0][each] for each in before.message_ids]
        assert after.model_copy(update={"message_ids": before.message_ids}) == before


@pytest.mark.ci
def test_some_companies_have_ids_of_another_pattern(tmp_path: Path) -> None:
    companies = [PracticeCompany.invent(seed, "easy", tmp_path / str(seed), messages=120) for seed in range(12)]
    of_a_word = [re.fullmatch(r"<[a-z]{8}@\S+>", each.mail.messages[0]["message_id"]) for each in companies]
    assert {bool(each) for each in of_a_word} == {True, False}
    for company in companies:
        for scenario in company.mail.scenarios:
            for source in scenario.message_ids:
                assert company.index.read(str(scenario.inbox_address), source).message_id == source


@pytest.mark.parametrize("episode_format", [*dict.fromkeys(SKILLS), *EPISODES])
def test_each_format_gets_its_share_of_questions(episode_format: EpisodeFormat, practice: PracticeEpisodes) -> None:
    """The prompt and the number of hits follow the format."""
    asked = sum(
        not episode_format.kinds or each.kind in episode_format.kinds for each in practice.company.mail.scenarios
    )
    for formats, every in ((SKILLS, practice.skills), (EPISODES, practice.episodes)):
        episodes = [episode for episode in every if episode.format == episode_format]
        wanted = formats.count(episode_format) * episode_format.share * asked
        if episode_format.part == "choice":  # many searches have one hit or none
            assert 0.4 * wanted <= len(episodes) <= 1.25 * wanted
        else:
            assert len(episodes) == pytest.approx(wanted, rel=0.25)
        assert all(not episode_format.kinds or episode.scenario.kind in episode_format.kinds for episode in episodes)
        for episode in episodes:
            text = practice.text(episode)
            context = (
                ""
                if episode_format.prompt == "question"
                else r"(?:I am \S+@\S+\. )?Today is \w+, \d{4}-\d\d-\d\d\.\n\n"
            )
            question = re.escape(episode.scenario.question)
            assert re.search(rf"<\|im_start\|>user\n{context}{question}<\|im_end\|>", text)
            assert ("<|im_start|>system" in text) == (episode_format.prompt != "question")
            assert ("# Tools" in text) == (episode_format.prompt == "whole")
            assert all(len(parse_hits(result)) <= episode_format.hits for result in RESULT.findall(text))


def tools_called(practice: PracticeEpisodes, episode: EpisodeExample) -> list[str]:
    """Return the tools that an episode calls, without turns that have stray tokens."""
    return re.findall(r'"name": "(\w+)", "arguments"', practice.text(episode).rpartition("</tools>")[2])


def test_skills_are_the_parts_of_their_formats(practice: PracticeEpisodes) -> None:
    parts = {
        part: [each for each in practice.skills if each.format.part == part]
        for part in {episode_format.part for episode_format in SKILLS}
    }
    assert all(len(each) > 30 for each in parts.values())
    truncated = 0
    for episode in parts["search"]:
        *before, last = tools_called(practice, episode)
        assert all(name == "search_inbox" for name in before), "truncated searches"
        assert last.startswith("search") or (last == "return_final_answer" and len(before) == 3)
        truncated += bool(before)
    assert 0.15 < truncated / len(parts["search"]) < 0.35
    chosen = Counter[str]()
    for episode in parts["choice"]:
        *searches, last = tools_called(practice, episode)
        assert all(name.startswith("search") for name in searches)
        chosen[last.partition("_")[0]] += 1
    assert chosen["read"] > 0.75 * len(parts["choice"]), "the others end with stray tokens, or found nothing"
    for episode in parts["answer"]:
        read, answer = tools_called(practice, episode)
        assert (read[:5], answer) == ("read_", "return_final_answer")
    assert not any(episode.errors for episode in practice.skills)


def test_some_tokens_of_results_have_a_small_weight(practice: PracticeEpisodes) -> None:
    for episode in practice.skills[:500]:
        weights = episode.example.weights
        assert set(weights) <= {0.0, 0.15, 1.0}
    read = sum(weight == 0.15 for episode in practice.skills for weight in episode.example.weights)
    given = sum(
        len(practice.tokenizer.encode(result, add_special_tokens=False))
        for episode in practice.skills
        for result in RESULT.findall(practice.text(episode))
    )
    assert 0.2 < read / given < 0.45


def test_a_company_has_another_domain_in_each_example(practice: PracticeEpisodes) -> None:
    domains = [episode.domain for episode in practice.skills]
    assert len(set(domains)) > 0.95 * len(domains)
    for episode in practice.skills[:200]:
        text = practice.tokenizer.decode(list(episode.example.ids), skip_special_tokens=False)
        assert practice.company.domain not in text
        assert "id: <" not in text or episode.domain in text


def test_only_proper_turns_of_the_expert_are_trained_on(practice: PracticeEpisodes) -> None:
    stop = practice.tokenizer.convert_tokens_to_ids("<|im_end|>")
    looked = truncated = 0
    for episode, text in practice.whole:
        example = episode.example
        spans: list[list[int]] = [[]]
        for token, weight in zip(example.ids, example.weights, strict=True):
            if weight == 1:
                spans[-1].append(token)
            elif spans[-1]:
                spans.append([])
        trained = [
            practice.tokenizer.decode(span, skip_special_tokens=False).replace(episode.domain, practice.company.domain)
            for span in spans
            if span
        ]
        turns = [f"{turn}<|im_end|>" for turn in TURN.findall(text)]
        assert all(each.endswith("<|im_end|>") for each in trained)
        assert [each for each in turns if each in trained] == trained
        names = {parse_call(each.removesuffix("<|im_end|>")).name for each in turns if each not in trained}
        looked += any(name.startswith("read") for name in names)
        truncated += "search_inbox" in names
        assert names <= {"search_inbox", "read_email", "read_document"}
        assert example.ids[-1] == stop
    assert 0.05 < looked / len(practice.whole) < 0.3
    assert 0.1 < truncated / len(practice.whole) < 0.35


@pytest.mark.nightly
def test_errors_are_of_all_kinds_and_balanced(practice_by_level: list[PracticeEpisodes]) -> None:
    whole = [episode for practice in practice_by_level for episode in practice.episodes if episode.is_whole]
    counts = Counter(kind for episode in whole for kind in episode.errors)
    assert set(counts) == set(get_args(ErrorKind))
    assert max(counts.values()) <= sum(counts.values()) / 3
    clean = sum(not episode.errors for episode in whole) / len(whole)
    assert 0.25 < clean < 0.6


def test_without_an_error_answer_and_source_are_correct(practice: PracticeEpisodes) -> None:
    """Exceptions: the expert's searches do not find the source, or it gave up after three truncated searches."""
    right = wrong = 0
    for episode, text in practice.whole:
        calls = parse_calls(text)
        if episode.errors or count_truncated_searches(episode, calls) == 3:
            continue
        given = calls[-1].arguments
        if is_exact(given["answer"], episode.scenario.answer):
            right += 1
            (source,) = given.get("message_ids") or given["document_ids"]
            assert source in episode.scenario.sources
        else:
            wrong += 1
            assert given["answer"] == "I don't know"
    assert wrong < right / 20


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("gave up early", lambda calls: calls[-1].arguments["answer"] == "I don't know"),
        ("first hit unread", lambda calls: not any(call.name.startswith("read") for call in calls)),
        ("few keywords", lambda calls: " " not in str(next(iter(calls[0].arguments.values())))),
        ("wrong person", lambda calls: any(call.name.startswith("read") for call in calls)),
    ],
)
def test_an_error_is_visible_in_the_calls(practice: PracticeEpisodes, kind: ErrorKind, shown: Any) -> None:
    texts = [text for episode, text in practice.whole if episode.errors == [kind]]
    assert texts
    assert all(shown(parse_calls(text)) for text in texts)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["older fact", "neighbouring field"])
def test_a_wrong_value_occurs_in_the_mail(practice_by_level: list[PracticeEpisodes], kind: ErrorKind) -> None:
    found = 0
    for episode, text in (each for practice in practice_by_level for each in practice.whole):
        if episode.errors == [kind]:
            answer = parse_calls(text)[-1].arguments["answer"]
            assert not is_exact(answer, episode.scenario.answer)
            assert any(answer in result for result in RESULT.findall(text))
            found += 1
    assert found > 5


def test_the_expert_gives_up_after_three_truncated_searches(practice: PracticeEpisodes) -> None:
    seen = Counter[int]()
    nothing = 0
    for episode, text in practice.whole:
        calls, results = parse_calls(text), RESULT.findall(text)
        count = count_truncated_searches(episode, calls)
        if count == 3:
            assert [each.name for each in calls[3:]] == ["return_final_answer"]
            assert calls[3].arguments == {"answer": "I don't know", "message_ids": []}
        elif count:
            assert calls[count].name == "search_inbox"
        nothing += results[:count].count("Nothing found.")
        seen[count] += 1
    assert seen[0] > seen[1] > seen[2] > seen[3] > 0
    assert nothing > 0.6 * sum(count * times for count, times in seen.items()), "a letter or two finds something"


def test_search_words_come_from_the_question(practice: PracticeEpisodes) -> None:
    for episode, text in practice.whole:
        for call in parse_calls(text):
            words = call.arguments.get("keywords", call.arguments.get("query", "").split())
            assert all(word in episode.scenario.question for word in words)


def test_the_first_search_finds_the_topic_of_the_question(practice: PracticeEpisodes) -> None:
    """Its words are whole phrases of the question."""
    found = phrases = 0
    for scenario in practice.company.mail.scenarios:
        background = practice.company.mail.backgrounds[scenario.id]
        environment = EmailEnvironment(practice.company.index, scenario, MAX_TURNS, **EmailEnvironment.for_tiny)
        expert = ScriptedExpert(scenario, background, frozenset(scenario.message_ids), MAIL, NeverRng(1))
        first = next(expert.play()).call
        phrases += background.about in first.arguments["keywords"]
        environment.toolbox.run(first)
        found += bool(environment.record.found)
    asked = len(practice.company.mail.scenarios)
    assert phrases > 0.8 * asked
    assert found > 0.9 * asked


@pytest.mark.ci
def test_unfamiliar_questions_are_searched_with_fewer_words_each_time(practice: PracticeEpisodes) -> None:
    episodes = list(EpisodeGenerator(practice.tokenizer, 1).generate_unfamiliar(practice.company, UNFAMILIAR))
    assert len(episodes) > 100
    assert {episode.format for episode in episodes} == set(UNFAMILIAR)
    own = {scenario.question for scenario in practice.company.mail.scenarios}
    nothing_found = fewer_words = ended = unknown = 0
    for episode in episodes:
        text, question = practice.text(episode), episode.scenario.question
        assert question not in own
        calls = tools_called(practice, episode)
        assert set(calls[:-1]) <= {"search_inbox"}
        if calls[-1] != "search_inbox":
            ended += 1
            unknown += "Nothing found." in RESULT.findall(text)[-1] and "I don't know" in text  # no stray tokens
        searches = [json.loads(each) for each in re.findall(r'"keywords": (\[.*?\])\}', text)]
        *before, last = searches or [[]]
        if all(word in question for word in last):  # no stray tokens
            nothing_found += "Nothing found." in text
            fewer_words += any(word in " ".join(each) and word not in each for each in before for word in last)
    assert unknown > 0.85 * ended > 0
    assert nothing_found > 0.3 * len(episodes)
    assert fewer_words > 0.15 * len(episodes)


def test_a_shortened_result_keeps_a_correct_source(practice: PracticeEpisodes) -> None:
    """Otherwise a model would learn that the correct hit is missing."""
    kept = clean = 0
    for episode, text in practice.whole:
        if episode.errors or "search_documents" in text or count_truncated_searches(episode, parse_calls(text)) == 3:
            continue
        hits = [hit.source for result in RESULT.findall(text) for hit in parse_hits(result)]
        kept += any(source in hits for source in episode.scenario.message_ids)
        clean += 1
    assert kept > 0.95 * clean


@pytest.mark.ci
def test_episodes_depend_on_the_seed(practice: PracticeEpisodes) -> None:
    def play(seed: int) -> list[list[int]]:
        episodes = EpisodeGenerator(practice.tokenizer, seed).generate(practice.company, EPISODES, makes_errors=True)
        return [list(each.example.ids) for each in islice(episodes, 100)]

    assert play(1) == [list(episode.example.ids) for episode in practice.episodes[:100]]
    assert play(2) != play(1)


def test_examples_have_the_tokens_of_the_agent(practice: PracticeEpisodes) -> None:
    """Prompts and tool results are those of `ChatFormat`, the same as in serving."""
    chat = ChatFormat(practice.tokenizer)
    seen = 0
    for episode, text in practice.whole:
        if "# Tools" not in text or "search_documents" in text:
            continue
        environment = EmailEnvironment(practice.company.index, episode.scenario, MAX_TURNS, **EmailEnvironment.for_tiny)
        schemas = environment.toolbox.schemas()

        def renamed(text: str, domain: str = episode.domain) -> str:
            return text.replace(practice.company.domain, domain)

        prompt = chat.encode_prompt(environment.system_prompt(), renamed(environment.user_prompt()), schemas).ids
        ids = list(episode.example.ids)
        assert tuple(ids[: len(prompt)]) == prompt
        glue = chat.encode_results(
            parse_calls(text)[:1], [renamed(environment.toolbox.run(parse_calls(text)[0]))], chat.stop_ids[0]
        ).ids
        first_turn = ids.index(chat.stop_ids[0], len(prompt)) + 1
        assert tuple(ids[first_turn : first_turn + len(glue)]) == glue
        seen += 1
    assert seen > 20


def test_a_mailbox_works_as_documents(practice: PracticeEpisodes) -> None:
    scenario = practice.company.mail.scenarios.scenarios[0]
    collection = MailboxAsDocuments.environment(practice.company.index, scenario)
    about = practice.company.mail.backgrounds[scenario.id].about
    hits = parse_hits(collection.search_documents(f"{about} xyzzy"))
    assert hits, "unknown words at the end are ignored"
    assert collection.search_documents("xyzzy") == "Nothing found."
    assert collection.read_document(hits[0].source).startswith(hits[0].head)
    with pytest.raises(ToolError, match=r"there is no document 'doc-0'; use an id as a search lists it"):
        collection.read_document("doc-0")
    collection.return_final_answer("It is.", [hits[0].source])
    assert collection.finished
    assert "document_ids" in json.dumps(collection.toolbox.schemas())


def test_a_question_without_the_topic_is_searched_by_its_names(practice: PracticeEpisodes) -> None:
    scenario = next(each for each in practice.company.mail.scenarios if "that" in each.question.split())
    background = practice.company.mail.backgrounds[scenario.id]
    expert = ScriptedExpert(scenario, background, frozenset(scenario.message_ids), MAIL, Rng(1))
    first = next(expert.play())
    assert first.call.arguments["keywords"]
