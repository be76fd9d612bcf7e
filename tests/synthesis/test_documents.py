"""Synthetic documents: deterministic, consistent, and with answerable questions."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gumshoe.documents.build import build_document_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios, read_scenarios
from gumshoe.scenarios.splitting import overlap_keys
from gumshoe.synthesis.difficulty import LEVELS, Level
from gumshoe.synthesis.entries import load_subject_kinds
from gumshoe.synthesis.reference_work import MAX_DOCUMENTS, SyntheticDocuments, synthesize_documents, write_documents
from tests.conftest import CommandResult
from tests.documents.collection import LEXICAL
from tests.errors import raises
from tests.synthesis.conftest import run_program
from tests.tiers import nightly_except

# Output of `PROGRAM` on every version of Python. It changes if a text or a rule of the generator changes: print the new
# one with `python -c PROGRAM`, on two versions if available.
DIGEST = "e2da35cbbb8a03c71e0c2c286493e6cff024f8db9473bce0e2315ccb3ae7cec0"
PROGRAM = """
import hashlib
from gumshoe.synthesis.reference_work import synthesize_documents
made = synthesize_documents(3, 300, "hard")
print(hashlib.sha256(repr(made.documents).encode() + made.scenarios.to_jsonl()).hexdigest())
"""
OF_CHANGES = {"latest", "earlier edition", "what changed", "why it changed"}


@dataclass(frozen=True)
class GeneratedWork:
    """A reference work of one difficulty, in a directory with its index."""

    level: Level
    work: SyntheticDocuments
    directory: Path
    index: DocumentIndex

    @property
    def texts(self) -> dict[str, str]:
        return {each["document_id"]: each["text"] for each in self.work.documents}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GeneratedWork]:
    """Return a function that generates a reference work of 1,200 documents once."""

    @cache
    def made(level: Level, seed: int = 1) -> GeneratedWork:
        directory = tmp_path_factory.mktemp(f"{level}-{seed}")
        work = synthesize_documents(seed, 1200, level)
        write_documents(work, directory)
        build_document_index([f"jsonl:{directory / 'documents.jsonl'}"], directory / "index", LEXICAL)
        return GeneratedWork(level, work, directory, DocumentIndex(directory / "index"))

    return made


@pytest.fixture(params=nightly_except({"normal", "hard"}, LEVELS))
def made(request: pytest.FixtureRequest, make: Callable[..., GeneratedWork]) -> GeneratedWork:
    return make(request.param)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_gives_the_same_bytes_everywhere(hash_seed: str) -> None:
    assert run_program(PROGRAM, hash_seed) == DIGEST


@pytest.mark.ci
def test_another_seed_gives_another_work(make: Callable[..., GeneratedWork]) -> None:
    one, other = make("normal", 1).work, make("normal", 2).work
    assert one.title != other.title
    questions = [{scenario.plain_question for scenario in work.scenarios} for work in (one, other)]
    assert len(questions[0] & questions[1]) < 0.02 * len(questions[0])


@pytest.mark.ci
def test_an_index_keeps_each_document(made: GeneratedWork) -> None:
    assert len(made.work.documents) == 1200 == made.index.stats()["documents"]
    assert len({each["document_id"] for each in made.work.documents}) == 1200
    for each in made.work.documents[:50]:
        found = made.index.read(each["document_id"])
        assert (found.title, found.text) == (each["title"], each["text"])
        assert found.metadata["category"] == each["metadata"]["category"]


def test_the_scenarios_pass_the_check(made: GeneratedWork) -> None:
    path = str(made.directory / "scenarios.jsonl")
    assert load_scenarios(path).content == made.work.scenarios.content
    report = check_scenarios(read_scenarios(path), made.directory / "index")
    assert (report.findings, report.corrected) == ([], 0)
    assert len(report.clean) == len(made.work.scenarios) > 600


def test_no_document_is_in_two_splits(made: GeneratedWork) -> None:
    seen: defaultdict[str, set[str | None]] = defaultdict(set)
    for scenario in made.work.scenarios:
        for tie in overlap_keys(scenario):
            seen[tie].add(scenario.split)
    assert {len(splits) for splits in seen.values()} == {1}
    counts = Counter(scenario.split for scenario in made.work.scenarios)
    shares = {split: count / counts.total() for split, count in counts.items()}
    assert shares == pytest.approx({"train": 0.75, "validation": 0.1, "test": 0.15}, abs=0.04)


def list_literals(scenario: Scenario) -> list[str]:
    """Return the parts of an answer that a document must contain literally."""
    if scenario.kind == "what changed":
        found = re.fullmatch(r"From (.+) to (.+)\.", scenario.answer)
        assert found
        return [found[1], found[2]]
    return [scenario.answer]


def test_every_gold_document_contains_the_answer(made: GeneratedWork) -> None:
    for scenario in made.work.scenarios:
        assert scenario.document_ids
        for document_id in scenario.document_ids:
            assert [part for part in list_literals(scenario) if part not in made.texts[document_id]] == [], scenario


def test_only_entries_that_state_the_answer_are_gold(make: Callable[..., GeneratedWork]) -> None:
    """Check that an edition with another value is not gold."""
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
            assert not any(all(part in each["text"] for part in list_literals(scenario)) for each in others), scenario
    assert checked > 50


def test_an_edition_explains_its_changes(make: Callable[..., GeneratedWork]) -> None:
    normal = make("normal")
    told = [scenario for scenario in normal.work.scenarios if scenario.kind == "why it changed"]
    assert len(told) > 20
    for scenario in told:
        (source,) = scenario.document_ids
        assert f"{scenario.answer}" in normal.texts[source]
    editions = Counter(each["metadata"].get("edition") for each in normal.work.documents)
    assert len(editions) == 3, "two editions, and articles that are in none"


def test_there_are_many_kinds_of_questions_with_several_wordings(made: GeneratedWork) -> None:
    wordings: defaultdict[str, set[str]] = defaultdict(set)
    for scenario in made.work.scenarios:
        wordings[str(scenario.kind)].add(re.sub(r"(?<!^)\b[A-Z][\w'-]+|\d+", "_", scenario.question))
    kinds = {"who", "when", "where", "how much", "how many", "which", "why", "reference"}
    of_things, of_matters = {"how long", "what"} | OF_CHANGES, {"contact"}
    assert set(wordings) == kinds | (of_matters if made.level == "plain" else of_things)
    assert {kind: found for kind, found in wordings.items() if len(found) < 2} == {}


def test_plain_entries_name_the_subject_before_the_value(make: Callable[..., GeneratedWork]) -> None:
    plain = make("plain")
    for scenario in plain.work.scenarios:
        (source,) = scenario.document_ids
        text, title = plain.texts[source].casefold(), plain.index.read(source).title.casefold()
        assert -1 < text.find(f"the {title}") < text.find(scenario.answer.casefold()), scenario
        assert title in scenario.question.casefold()
    facts = [fact for kind in load_subject_kinds() for fact in kind.facts]
    assert [fact.id for fact in facts if not fact.select_value_last()] == []


def test_harder_questions_do_not_name_their_subject(make: Callable[..., GeneratedWork]) -> None:
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


def find_first_hit(index: DocumentIndex, scenario: Scenario) -> str:
    return next((hit.document_id for hit in index.search(scenario.question, limit=1)), "")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("level", "share"),
    nightly_except([("normal", 0.85)], [("plain", 1.0), ("easy", 0.95), ("normal", 0.85), ("hard", 0.8)]),
)
def test_the_first_hit_is_right_as_often_as_the_difficulty_implies(
    level: Level, share: float, make: Callable[..., GeneratedWork]
) -> None:
    made = make(level)
    right = [find_first_hit(made.index, each) in each.document_ids for each in made.work.scenarios]
    assert sum(right) / len(right) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("count", [39, MAX_DOCUMENTS + 1])
def test_an_invalid_size_is_rejected_before_the_work(count: int) -> None:
    with raises("synthesis.invalid-size", "--documents", "40 to 20,000", f"{count:,}"):
        synthesize_documents(1, count)


@pytest.mark.parametrize("level", LEVELS)
def test_the_smallest_work_works(level: Level) -> None:
    made = synthesize_documents(9, 40, level)
    assert len(made.documents) == 40
    assert {scenario.split for scenario in made.scenarios} == {"train", "validation", "test"}


def test_the_commands_generate_index_check_and_split_documents(
    run: Callable[..., CommandResult], tmp_path: Path
) -> None:
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
    assert checked.status == 0, checked.err
    split = run("scenarios", "split", scenarios, "--seed", 1, "--out", tmp_path / "split.jsonl")
    assert split.status == 0, split.err
    assert run("scenarios", "check", tmp_path / "split.jsonl", "--index", place / "index").status == 0
    few = run("synthesize", "documents", "--seed", 4, "--documents", 3, "--out", tmp_path / "few")
    assert (few.status, few.code) == (2, "synthesis.invalid-size")
    assert "40 to 20,000" in few.err
