"""Synthetic documents: the same for the same seed, and with questions that they answer."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.build import build_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios, read_scenarios
from gumshoe.scenarios.splitting import ties
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.entries import subject_kinds
from gumshoe.synthesis.reference_work import MAX_DOCUMENTS, SyntheticDocuments, synthesize_documents, write_documents
from tests.conftest import Ran
from tests.documents.collection import WORDS_ALONE
from tests.errors import raises
from tests.synthesis.conftest import printed_by

# Of `PROGRAM`, on every version of Python. It changes when a text or a rule of the generator does: print the new one
# with `python -c PROGRAM`, on two versions where there are two.
DIGEST = "e2da35cbbb8a03c71e0c2c286493e6cff024f8db9473bce0e2315ccb3ae7cec0"
PROGRAM = """
import hashlib
from gumshoe.synthesis.reference_work import synthesize_documents
made = synthesize_documents(3, 300, "hard")
print(hashlib.sha256(repr(made.documents).encode() + made.scenarios.to_jsonl()).hexdigest())
"""
OF_CHANGES = {"latest", "earlier edition", "what changed", "why it changed"}


@dataclass(frozen=True)
class Made:
    """A reference work of one difficulty, in a directory with its index."""

    level: Level
    work: SyntheticDocuments
    directory: Path
    index: DocumentIndex

    @property
    def texts(self) -> dict[str, str]:
        return {each["document_id"]: each["text"] for each in self.work.documents}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Makes a work of 1,200 documents, once."""

    @cache
    def made(level: Level, seed: int = 1) -> Made:
        directory = tmp_path_factory.mktemp(f"{level}-{seed}")
        work = synthesize_documents(seed, 1200, level)
        write_documents(work, directory)
        build_index([f"jsonl:{directory / 'documents.jsonl'}"], directory / "index", WORDS_ALONE)
        return Made(level, work, directory, DocumentIndex(directory / "index"))

    return made


@pytest.fixture(params=LEVELS)
def made(request: pytest.FixtureRequest, make: Callable[..., Made]) -> Made:
    return make(request.param)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_gives_the_same_bytes_in_every_process_and_on_every_python(hash_seed: str) -> None:
    assert printed_by(PROGRAM, hash_seed) == DIGEST


def test_another_seed_gives_another_work_and_other_questions(make: Callable[..., Made]) -> None:
    one, other = make("normal", 1).work, make("normal", 2).work
    assert one.title != other.title
    questions = [{scenario.plain_question for scenario in work.scenarios} for work in (one, other)]
    assert len(questions[0] & questions[1]) < 0.02 * len(questions[0])


def test_an_index_keeps_each_document(made: Made) -> None:
    assert len(made.work.documents) == 1200 == made.index.stats()["documents"]
    assert len({each["document_id"] for each in made.work.documents}) == 1200
    for each in made.work.documents[:50]:
        found = made.index.read(each["document_id"])
        assert (found.title, found.text) == (each["title"], each["text"])
        assert found.metadata["category"] == each["metadata"]["category"]


def test_the_scenarios_of_a_file_are_right_for_its_documents(made: Made) -> None:
    path = str(made.directory / "scenarios.jsonl")
    assert load_scenarios(path).content == made.work.scenarios.content
    report = check_scenarios(read_scenarios(path), made.directory / "index")
    assert (report.findings, report.mended) == ([], 0)
    assert len(report.clean) == len(made.work.scenarios) > 600


def test_no_document_is_asked_about_in_two_splits(made: Made) -> None:
    seen: defaultdict[str, set[str | None]] = defaultdict(set)
    for scenario in made.work.scenarios:
        for tie in ties(scenario):
            seen[tie].add(scenario.split)
    assert {len(splits) for splits in seen.values()} == {1}
    counts = Counter(scenario.split for scenario in made.work.scenarios)
    shares = {split: count / counts.total() for split, count in counts.items()}
    assert shares == pytest.approx({"train": 0.75, "validation": 0.1, "test": 0.15}, abs=0.04)


def stated(scenario: Scenario) -> list[str]:
    """The parts of an answer that a document has to hold word for word."""
    if scenario.kind == "what changed":
        found = re.fullmatch(r"From (.+) to (.+)\.", scenario.answer)
        assert found
        return [found[1], found[2]]
    return [scenario.answer]


def test_every_gold_document_holds_the_answer_word_for_word(made: Made) -> None:
    for scenario in made.work.scenarios:
        assert scenario.document_ids
        for document_id in scenario.document_ids:
            assert [part for part in stated(scenario) if part not in made.texts[document_id]] == [], scenario


def test_of_the_entries_about_a_thing_those_are_gold_that_state_the_answer(make: Callable[..., Made]) -> None:
    """Another edition that gives another value is not."""
    hard = make("hard")
    entries: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in hard.work.documents:
        entries[re.sub(r" \(\w+ edition\)$", "", each["title"])].append(each)
    titles = {each["document_id"]: each["title"] for each in hard.work.documents}
    checked = 0
    for scenario in hard.work.scenarios:
        name = re.sub(r" \(\w+ edition\)$", "", titles[scenario.document_ids[0]])
        others = [each for each in entries[name] if each["document_id"] not in scenario.document_ids]
        assert {re.sub(r" \(\w+ edition\)$", "", titles[each]) for each in scenario.document_ids} == {name}
        if len(scenario.answer) > 4:
            checked += len(others)
            assert not any(all(part in each["text"] for part in stated(scenario)) for each in others), scenario
    assert checked > 50


def test_an_edition_that_changed_something_says_what_and_why(make: Callable[..., Made]) -> None:
    normal = make("normal")
    told = [scenario for scenario in normal.work.scenarios if scenario.kind == "why it changed"]
    assert len(told) > 20
    for scenario in told:
        (source,) = scenario.document_ids
        assert f"{scenario.answer}" in normal.texts[source]
    editions = Counter(each["metadata"].get("edition") for each in normal.work.documents)
    assert len(editions) == 3, "two editions, and articles that are in none"


def test_there_are_many_kinds_of_question_each_in_several_wordings(made: Made) -> None:
    wordings: defaultdict[str, set[str]] = defaultdict(set)
    for scenario in made.work.scenarios:
        wordings[str(scenario.kind)].add(re.sub(r"(?<!^)\b[A-Z][\w'-]+|\d+", "_", scenario.question))
    kinds = {"who", "when", "where", "how much", "how many", "which", "why", "reference"}
    of_things, of_matters = {"how long", "what"} | OF_CHANGES, {"contact"}
    assert set(wordings) == kinds | (of_matters if made.level == "plain" else of_things)
    assert {kind: found for kind, found in wordings.items() if len(found) < 2} == {}


def test_plain_entries_say_what_a_thing_is_about_before_what_it_is(make: Callable[..., Made]) -> None:
    plain = make("plain")
    for scenario in plain.work.scenarios:
        (source,) = scenario.document_ids
        text, title = plain.texts[source].casefold(), plain.index.read(source).title.casefold()
        assert -1 < text.find(f"the {title}") < text.find(scenario.answer.casefold()), scenario
        assert title in scenario.question.casefold()
    facts = [fact for kind in subject_kinds() for fact in kind.facts]
    assert [fact.id for fact in facts if not fact.with_value_last()] == []


def test_a_harder_work_has_questions_that_do_not_name_what_they_are_about(make: Callable[..., Made]) -> None:
    shares = {}
    for level in LEVELS:
        made = make(level)
        named = [
            made.index.read(each.document_ids[0]).title.partition(" (")[0].casefold() in each.question.casefold()
            for each in made.work.scenarios
        ]
        shares[level] = sum(named) / len(named)
    assert shares["plain"] == shares["easy"] == 1
    assert 0.85 < shares["normal"] < 0.95
    assert 0.5 < shares["hard"] < 0.75


def first_hit(index: DocumentIndex, scenario: Scenario) -> str:
    return next((hit.document_id for hit in index.search(scenario.question, limit=1)), "")


@pytest.mark.parametrize(("level", "share"), [("plain", 1.0), ("easy", 0.95), ("normal", 0.85), ("hard", 0.8)])
def test_the_first_hit_for_the_question_s_own_words_is_right_as_often_as_the_difficulty_says(
    level: Level, share: float, make: Callable[..., Made]
) -> None:
    made = make(level)
    right = [first_hit(made.index, each) in each.document_ids for each in made.work.scenarios]
    assert sum(right) / len(right) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("count", [39, MAX_DOCUMENTS + 1])
def test_what_cannot_be_made_is_refused_at_once(count: int) -> None:
    with raises("synthesis.invalid-size", "--documents", "40 to 20,000", f"{count:,}"):
        synthesize_documents(1, count)


@pytest.mark.parametrize("level", LEVELS)
def test_the_smallest_work_is_whole(level: Level) -> None:
    made = synthesize_documents(9, 40, level)
    assert len(made.documents) == 40
    assert {scenario.split for scenario in made.scenarios} == {"train", "validation", "test"}


def test_documents_are_made_indexed_checked_and_split_by_the_commands(run: Callable[..., Ran], tmp_path: Path) -> None:
    place, words = tmp_path / "made", ["synthesize", "documents", "--seed", 4, "--documents", 120]
    made = run(*words, "--out", place)
    assert made.status == 0, made.err
    assert "120 documents of " in made.out
    assert run(*words, "--out", place).code == "synthesis.output-exists"
    again = run(*words, "--out", place, "--replace", "--json")
    assert '"documents": 120' in again.out
    source, scenarios = f"jsonl:{place / 'documents.jsonl'}", place / "scenarios.jsonl"
    indexed = run("documents", "index", source, "--embedding", "none", "--out", place / "index")
    assert "120 documents" in indexed.out
    checked = run("scenarios", "check", scenarios, "--index", place / "index")
    assert (checked.status, checked.err) == (0, "")
    split = run("scenarios", "split", scenarios, "--seed", 1, "--out", tmp_path / "split.jsonl")
    assert split.status == 0, split.err
    assert run("scenarios", "check", tmp_path / "split.jsonl", "--index", place / "index").status == 0
    few = run("synthesize", "documents", "--seed", 4, "--documents", 3, "--out", tmp_path / "few")
    assert (few.status, few.code) == (2, "synthesis.invalid-size")
    assert "40 to 20,000" in few.err
