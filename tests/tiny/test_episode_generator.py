"""The expert's episodes: proper calls, real results, and errors of several kinds."""

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
from gumshoe.rollouts.chat_format import ChatFormat, parse_call
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
from tests.tiny.conftest import Played

pytestmark = pytest.mark.group("practice")  # it takes seconds to play


class Never(Rng):
    """Nothing ever goes wrong."""

    def chance(self, probability: float) -> bool:  # noqa: ARG002
        return False


TURN = re.compile(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>", re.S)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.S)


def calls_in(text: str) -> list[Call]:
    return [parse_call(turn) for turn in TURN.findall(text)]


def in_vain(lesson: EpisodeExample, calls: list[Call]) -> int:
    """How many searches for words cut short an episode begins with."""
    words = set(re.findall(r"[\w'\u2019-]+", lesson.scenario.question))
    keywords = [call.arguments.get("keywords", lesson.scenario.question.split()) for call in calls]
    return next(place for place, found in enumerate(keywords) if words & set(" ".join(found).split()))


def test_every_turn_is_one_call_that_a_tool_takes_and_the_last_is_the_answer(played: Played) -> None:
    for _, text in played.whole:
        calls = calls_in(text)
        assert 2 <= len(calls) <= MAX_TURNS
        assert [call.name for call in calls].index("return_final_answer") == len(calls) - 1
        assert len(RESULT.findall(text)) == len(calls) - 1


def test_the_tools_of_mail_and_of_documents_are_practised(played: Played) -> None:
    names = Counter(call.name for _, text in played.whole for call in calls_in(text))
    assert set(names) == {"search_inbox", "read_email", "search_documents", "read_document", "return_final_answer"}
    assert min(names.values()) > 30


def test_ids_of_another_form_change_nothing_else_and_lead_to_the_same_messages() -> None:
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


def test_some_companies_have_ids_of_another_form(tmp_path: Path) -> None:
    companies = [PracticeCompany.invent(seed, "easy", tmp_path / str(seed), messages=120) for seed in range(12)]
    of_a_word = [re.fullmatch(r"<[a-z]{8}@\S+>", each.mail.messages[0]["message_id"]) for each in companies]
    assert {bool(each) for each in of_a_word} == {True, False}
    for company in companies:
        for scenario in company.mail.scenarios:
            for source in scenario.message_ids:
                assert company.index.read(str(scenario.inbox_address), source).message_id == source


@pytest.mark.parametrize("form", [*dict.fromkeys(SKILLS), *EPISODES])
def test_each_question_is_practised_in_its_forms(form: EpisodeFormat, played: Played) -> None:
    """With all that the agent would see, or less."""
    asked = sum(not form.kinds or each.kind in form.kinds for each in played.company.mail.scenarios)
    for forms, every in ((SKILLS, played.skills), (EPISODES, played.lessons)):
        lessons = [lesson for lesson in every if lesson.format == form]
        wanted = forms.count(form) * form.share * asked
        if form.part == "choice":  # many a search has one hit or none
            assert 0.4 * wanted <= len(lessons) <= 1.25 * wanted
        else:
            assert len(lessons) == pytest.approx(wanted, rel=0.25)
        assert all(not form.kinds or lesson.scenario.kind in form.kinds for lesson in lessons)
        for lesson in lessons:
            text = played.text(lesson)
            told = "" if form.prompt == "question" else r"(?:I am \S+@\S+\. )?Today is \w+, \d{4}-\d\d-\d\d\.\n\n"
            question = re.escape(lesson.scenario.question)
            assert re.search(rf"<\|im_start\|>user\n{told}{question}<\|im_end\|>", text)
            assert ("<|im_start|>system" in text) == (form.prompt != "question")
            assert ("# Tools" in text) == (form.prompt == "whole")
            assert all(len(parse_hits(result)) <= form.hits for result in RESULT.findall(text))


def called(played: Played, lesson: EpisodeExample) -> list[str]:
    """The tools that a lesson calls, but for a turn with a blot in it."""
    return re.findall(r'"name": "(\w+)", "arguments"', played.text(lesson).rpartition("</tools>")[2])


def test_a_skill_is_one_part_of_an_episode(played: Played) -> None:
    parts = {
        part: [each for each in played.skills if each.format.part == part] for part in {form.part for form in SKILLS}
    }
    assert all(len(each) > 30 for each in parts.values())
    in_vain = 0
    for lesson in parts["search"]:
        *before, last = called(played, lesson)
        assert all(name == "search_inbox" for name in before), "in vain"
        assert last.startswith("search") or (last == "return_final_answer" and len(before) == 3)
        in_vain += bool(before)
    assert 0.15 < in_vain / len(parts["search"]) < 0.35
    chosen = Counter[str]()
    for lesson in parts["choice"]:
        *searches, last = called(played, lesson)
        assert all(name.startswith("search") for name in searches)
        chosen[last.partition("_")[0]] += 1
    assert chosen["read"] > 0.75 * len(parts["choice"]), "the others end with a blot, or found nothing"
    for lesson in parts["answer"]:
        read, answer = called(played, lesson)
        assert (read[:5], answer) == ("read_", "return_final_answer")
    assert not any(lesson.errors for lesson in played.skills)


def test_some_of_what_the_tools_give_is_learned_too_and_counts_little(played: Played) -> None:
    for lesson in played.skills[:500]:
        weights = lesson.example.weights
        assert set(weights) <= {0.0, 0.15, 1.0}
    read = sum(weight == 0.15 for lesson in played.skills for weight in lesson.example.weights)
    given = sum(
        len(played.tokenizer.encode(result, add_special_tokens=False))
        for lesson in played.skills
        for result in RESULT.findall(played.text(lesson))
    )
    assert 0.2 < read / given < 0.45


def test_a_company_has_another_domain_in_each_lesson(played: Played) -> None:
    domains = [lesson.domain for lesson in played.skills]
    assert len(set(domains)) > 0.95 * len(domains)
    for lesson in played.skills[:200]:
        text = played.tokenizer.decode(list(lesson.example.ids), skip_special_tokens=False)
        assert played.company.domain not in text
        assert "id: <" not in text or lesson.domain in text


def test_only_what_the_expert_says_is_learned_and_a_second_look_or_a_search_in_vain_is_not(played: Played) -> None:
    stop = played.tokenizer.convert_tokens_to_ids("<|im_end|>")
    looked = in_vain = 0
    for lesson, text in played.whole:
        example = lesson.example
        spans: list[list[int]] = [[]]
        for token, weight in zip(example.ids, example.weights, strict=True):
            if weight == 1:
                spans[-1].append(token)
            elif spans[-1]:
                spans.append([])
        said = [
            played.tokenizer.decode(span, skip_special_tokens=False).replace(lesson.domain, played.company.domain)
            for span in spans
            if span
        ]
        turns = [f"{turn}<|im_end|>" for turn in TURN.findall(text)]
        assert all(each.endswith("<|im_end|>") for each in said)
        assert [each for each in turns if each in said] == said
        names = {parse_call(each.removesuffix("<|im_end|>")).name for each in turns if each not in said}
        looked += any(name.startswith("read") for name in names)
        in_vain += "search_inbox" in names
        assert names <= {"search_inbox", "read_email", "read_document"}
        assert example.ids[-1] == stop
    assert 0.05 < looked / len(played.whole) < 0.3
    assert 0.1 < in_vain / len(played.whole) < 0.35


@pytest.mark.nightly
def test_errors_are_of_every_kind_and_none_is_more_than_a_third_of_them(taught: list[Played]) -> None:
    whole = [lesson for played in taught for lesson in played.lessons if lesson.is_whole]
    counts = Counter(slip for lesson in whole for slip in lesson.errors)
    assert set(counts) == set(get_args(ErrorKind))
    assert max(counts.values()) <= sum(counts.values()) / 3
    clean = sum(not lesson.errors for lesson in whole) / len(whole)
    assert 0.25 < clean < 0.6


def test_without_an_error_the_answer_is_right_and_its_source_too(played: Played) -> None:
    """But for questions whose source no search of the expert's lists, or that it gave up after three in vain."""
    right = wrong = 0
    for lesson, text in played.whole:
        calls = calls_in(text)
        if lesson.errors or in_vain(lesson, calls) == 3:
            continue
        given = calls[-1].arguments
        if is_exact(given["answer"], lesson.scenario.answer):
            right += 1
            (source,) = given.get("message_ids") or given["document_ids"]
            assert source in lesson.scenario.sources
        else:
            wrong += 1
            assert given["answer"] == "I don't know"
    assert wrong < right / 20


@pytest.mark.parametrize(
    ("slip", "shown"),
    [
        ("gave up early", lambda calls: calls[-1].arguments["answer"] == "I don't know"),
        ("first hit unread", lambda calls: not any(call.name.startswith("read") for call in calls)),
        ("few keywords", lambda calls: " " not in str(next(iter(calls[0].arguments.values())))),
        ("wrong person", lambda calls: any(call.name.startswith("read") for call in calls)),
    ],
)
def test_an_error_shows(played: Played, slip: ErrorKind, shown: Any) -> None:
    alone = [text for lesson, text in played.whole if lesson.errors == [slip]]
    assert alone
    assert all(shown(calls_in(text)) for text in alone)


@pytest.mark.nightly
@pytest.mark.parametrize("slip", ["older fact", "neighbouring field"])
def test_a_wrong_value_is_one_that_the_mail_holds(taught: list[Played], slip: ErrorKind) -> None:
    found = 0
    for lesson, text in (each for played in taught for each in played.whole):
        if lesson.errors == [slip]:
            answer = calls_in(text)[-1].arguments["answer"]
            assert not is_exact(answer, lesson.scenario.answer)
            assert any(answer in result for result in RESULT.findall(text))
            found += 1
    assert found > 5


def test_searches_in_vain_are_followed_by_a_proper_one_and_after_three_it_is_given_up(played: Played) -> None:
    seen = Counter[int]()
    nothing = 0
    for lesson, text in played.whole:
        calls, results = calls_in(text), RESULT.findall(text)
        count = in_vain(lesson, calls)
        if count == 3:
            assert [each.name for each in calls[3:]] == ["return_final_answer"]
            assert calls[3].arguments == {"answer": "I don't know", "message_ids": []}
        elif count:
            assert calls[count].name == "search_inbox"
        nothing += results[:count].count("Nothing found.")
        seen[count] += 1
    assert seen[0] > seen[1] > seen[2] > seen[3] > 0
    assert nothing > 0.7 * sum(count * times for count, times in seen.items()), "a letter or two finds something"


def test_what_is_searched_for_stands_in_the_question(played: Played) -> None:
    for lesson, text in played.whole:
        for call in calls_in(text):
            words = call.arguments.get("keywords", call.arguments.get("query", "").split())
            assert all(word in lesson.scenario.question for word in words)


def test_a_search_names_what_the_question_is_about_and_what_it_asks(played: Played) -> None:
    """In whole phrases, which find the right message nearly always."""
    found = phrases = 0
    for scenario in played.company.mail.scenarios:
        background = played.company.mail.backgrounds[scenario.id]
        environment = EmailEnvironment(played.company.index, scenario, MAX_TURNS)
        teacher = ScriptedExpert(scenario, background, frozenset(scenario.message_ids), MAIL, Never(1))
        first = next(teacher.play()).call
        phrases += background.about in first.arguments["keywords"]
        environment.toolbox.run(first)
        found += bool(environment.record.found)
    asked = len(played.company.mail.scenarios)
    assert phrases > 0.8 * asked
    assert found > 0.9 * asked


def test_a_question_in_anybody_s_words_is_searched_by_what_it_names_and_then_by_less_of_it(played: Played) -> None:
    lessons = list(EpisodeGenerator(played.tokenizer, 1).generate_unfamiliar(played.company, UNFAMILIAR))
    assert len(lessons) > 300
    assert {lesson.format for lesson in lessons} == set(UNFAMILIAR)
    own = {scenario.question for scenario in played.company.mail.scenarios}
    nobody_s = less = ended = unknown = 0
    for lesson in lessons:
        text, question = played.text(lesson), lesson.scenario.question
        assert question not in own
        calls = called(played, lesson)
        assert set(calls[:-1]) <= {"search_inbox"}
        if calls[-1] != "search_inbox":
            ended += 1
            unknown += "Nothing found." in RESULT.findall(text)[-1] and "I don't know" in text  # and not with a blot
        searches = [json.loads(each) for each in re.findall(r'"keywords": (\[.*?\])\}', text)]
        *before, last = searches or [[]]
        if all(word in question for word in last):  # it does not end with a blot
            nobody_s += "Nothing found." in text
            less += any(word in " ".join(each) and word not in each for each in before for word in last)
    assert unknown > 0.85 * ended > 0
    assert nobody_s > 0.3 * len(lessons)
    assert less > 0.15 * len(lessons)


def test_a_shortened_result_keeps_a_right_source(played: Played) -> None:
    """What is learned from fewer hits must not teach that the right one is missing."""
    kept = clean = 0
    for lesson, text in played.whole:
        if lesson.errors or "search_documents" in text or in_vain(lesson, calls_in(text)) == 3:
            continue
        hits = [hit.source for result in RESULT.findall(text) for hit in parse_hits(result)]
        kept += any(source in hits for source in lesson.scenario.message_ids)
        clean += 1
    assert kept > 0.95 * clean


def test_the_same_seed_plays_the_same_episodes_and_another_seed_others(played: Played) -> None:
    def play(seed: int) -> list[list[int]]:
        lessons = EpisodeGenerator(played.tokenizer, seed).generate(played.company, EPISODES, errs=True)
        return [list(each.example.ids) for each in islice(lessons, 100)]

    assert play(1) == [list(lesson.example.ids) for lesson in played.lessons[:100]]
    assert play(2) != play(1)


def test_an_episode_is_the_tokens_that_the_agent_would_see(played: Played) -> None:
    """Prompt and glue are those of `ChatFormat`, so that practice looks as service does."""
    chat = ChatFormat(played.tokenizer)
    seen = 0
    for lesson, text in played.whole:
        if "# Tools" not in text or "search_documents" in text:
            continue
        environment = EmailEnvironment(played.company.index, lesson.scenario, MAX_TURNS)
        schemas = environment.toolbox.schemas()

        def renamed(text: str, domain: str = lesson.domain) -> str:
            return text.replace(played.company.domain, domain)

        prompt = chat.encode_prompt(environment.system_prompt(), renamed(environment.user_prompt()), schemas).ids
        ids = list(lesson.example.ids)
        assert tuple(ids[: len(prompt)]) == prompt
        glue = chat.encode_tool_result(renamed(environment.toolbox.run(calls_in(text)[0]))).ids
        first_turn = ids.index(chat.stop_ids[0], len(prompt)) + 1
        assert tuple(ids[first_turn : first_turn + len(glue)]) == glue
        seen += 1
    assert seen > 20


def test_a_collection_of_documents_searches_reads_and_answers(played: Played) -> None:
    scenario = played.company.mail.scenarios.scenarios[0]
    collection = MailboxAsDocuments.environment(played.company.index, scenario)
    about = played.company.mail.backgrounds[scenario.id].about
    hits = parse_hits(collection.search_documents(f"{about} xyzzy"))
    assert hits, "words that nothing has are left out from the end"
    assert collection.search_documents("xyzzy") == "Nothing found."
    assert collection.read_document(hits[0].source).startswith(hits[0].head)
    with pytest.raises(ToolError, match=r"there is no document 'doc-0'; use an id as a search lists it"):
        collection.read_document("doc-0")
    collection.return_final_answer("It is.", [hits[0].source])
    assert collection.finished
    assert "document_ids" in json.dumps(collection.toolbox.schemas())


def test_a_question_that_names_nothing_is_searched_by_its_names(played: Played) -> None:
    scenario = next(each for each in played.company.mail.scenarios if "that" in each.question.split())
    background = played.company.mail.backgrounds[scenario.id]
    teacher = ScriptedExpert(scenario, background, frozenset(scenario.message_ids), MAIL, Rng(1))
    first = next(teacher.play())
    assert first.call.arguments["keywords"]
