"""Preparing scenarios for training, and for testing the adapter in service."""

from pathlib import Path

import pytest

from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.prepare import PreparedScenarios, prepare_scenarios
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import ids, question, scenario, write_questions

COUNT = 40


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("index")
    make_index(directory, [record(number) for number in range(COUNT)])
    return directory / "index"


def prepare(
    index: Path, directory: Path, records: list[dict[str, object]], current: Path | None = None
) -> PreparedScenarios:
    directory.mkdir(exist_ok=True)
    source = write_questions(directory / "questions.jsonl", records)
    return prepare_scenarios(source, index, directory / "made", validation=0.1, test=0.2, seed=1, current=current)


def test_scenarios_are_split_and_unanswerable_ones_dropped(index: Path, tmp_path: Path) -> None:
    found = prepare(index, tmp_path, [question(number) for number in range(COUNT + 2)])
    assert found.splits == {"train": 28, "validation": 4, "test": 8}
    assert load_scenarios(str(tmp_path / "made" / SCENARIOS_FILE)) == found.scenarios


def test_a_set_without_usable_scenarios_is_an_error(index: Path, tmp_path: Path) -> None:
    with raises("scenarios.none-usable", "1 scenarios", tmp_path / "questions.jsonl", "1 message missing"):
        prepare(index, tmp_path, [question(COUNT)])


def test_scenarios_seen_by_the_current_adapter_are_not_in_test(index: Path, tmp_path: Path) -> None:
    """Check this for a new split of the questions."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    old = ScenarioSet.of(map(scenario, range(20)))
    Lineage(learned_from=old.to_record()).write(adapter)
    found = prepare(index, tmp_path, [question(number) for number in range(COUNT)], adapter)
    assert set(ids(old)) <= set(ids(found.scenarios.only("train")))
    assert found.splits["test"] == 8, "the share of all questions, from those that it has not seen"
    (tmp_path / "none").mkdir()
    assert prepare(index, tmp_path / "again", [question(1), question(2), question(3)], tmp_path / "none").splits


def test_a_test_split_seen_by_the_current_adapter_is_rejected(index: Path, tmp_path: Path) -> None:
    Lineage(learned_from=ScenarioSet.of([scenario(1)]).to_record()).write(tmp_path)
    given = [question(number, split="test" if number == 1 else "train") for number in range(9)]
    with raises("scenarios.seen-in-training", "1 of these 1", "q1"):
        prepare(index, tmp_path / "made", given, tmp_path)
