"""Scenarios made ready for training, and for an adapter in service to be tested on."""

from pathlib import Path

import pytest

from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.prepare import PreparedScenarios, prepare
from gumshoe.scenarios.scenario import SCENARIOS, ScenarioSet
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


def prepared(
    index: Path, directory: Path, records: list[dict[str, object]], current: Path | None = None
) -> PreparedScenarios:
    directory.mkdir(exist_ok=True)
    source = write_questions(directory / "questions.jsonl", records)
    return prepare(source, index, directory / "made", validation=0.1, test=0.2, seed=1, current=current)


def test_what_is_not_divided_is_and_what_cannot_be_answered_is_dropped(index: Path, tmp_path: Path) -> None:
    found = prepared(index, tmp_path, [question(number) for number in range(COUNT + 2)])
    assert found.splits == {"train": 28, "validation": 4, "test": 8}
    assert load_scenarios(str(tmp_path / "made" / SCENARIOS)) == found.scenarios


def test_where_none_can_be_answered_that_is_said(index: Path, tmp_path: Path) -> None:
    with raises("scenarios.none-usable", "1 scenarios", tmp_path / "questions.jsonl", "1 message missing"):
        prepared(index, tmp_path, [question(COUNT)])


def test_an_adapter_in_service_is_tested_on_nothing_that_it_has_seen(index: Path, tmp_path: Path) -> None:
    """However the questions are divided this time."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    old = ScenarioSet.of(map(scenario, range(20)))
    Lineage(learned_from=old.record()).write(adapter)
    found = prepared(index, tmp_path, [question(number) for number in range(COUNT)], adapter)
    assert set(ids(old)) <= set(ids(found.scenarios.only("train")))
    assert found.splits["test"] == 4
    (tmp_path / "none").mkdir()
    assert prepared(index, tmp_path / "again", [question(1), question(2), question(3)], tmp_path / "none").splits


def test_a_test_split_that_it_has_seen_is_refused_before_anything_is_trained(index: Path, tmp_path: Path) -> None:
    Lineage(learned_from=ScenarioSet.of([scenario(1)]).record()).write(tmp_path)
    given = [question(number, split="test" if number == 1 else "train") for number in range(9)]
    with raises("scenarios.seen-in-training", "1 of these 1", "q1"):
        prepared(index, tmp_path / "made", given, tmp_path)
