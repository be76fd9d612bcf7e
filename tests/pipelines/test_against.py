"""Test the steps that find the adapter which a new one must beat, and keep it away from the test questions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import ids, question, scenario, write_questions

COUNT = 40
SEEN = ScenarioSet.of(map(scenario, range(20)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with one adapter, which was trained on half of the questions."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    Lineage(learned_from=SEEN.to_record()).write(adapter)
    opened = Store(str(tmp_path / "store"))
    opened.publish(adapter, "adapters", "r1")
    return opened


def fetch(store: Store, version: str, place: Path, run: str = "") -> str:
    """Run the step that fetches an adapter, and return the version."""
    from gumshoe.artifacts.component import fetch_adapter

    adapter = SimpleNamespace(path=str(place), metadata={})
    found: str = fetch_adapter.python_func(store.uri, version, adapter=adapter, run=run)
    return found


def test_an_adapter_is_fetched_only_if_there_is_one_to_beat(store: Store, tmp_path: Path) -> None:
    empty = Store(str(tmp_path / "empty"))
    cases = [(store, "latest", "r1"), (store, "r1", "r1"), (store, "base", ""), (empty, "latest", "")]
    for number, (opened, version, expected) in enumerate(cases):
        place = tmp_path / str(number)
        assert fetch(opened, version, place) == expected
        assert any(place.iterdir())
        assert Lineage.read(place) == (Lineage(learned_from=SEEN.to_record()) if expected else None)


def test_a_run_that_is_repeated_does_not_have_to_beat_its_own_adapter(store: Store, tmp_path: Path) -> None:
    assert fetch(store, "latest", tmp_path / "first", run="r1") == ""
    store.publish(tmp_path / "adapter", "adapters", "r2")
    assert fetch(store, "latest", tmp_path / "again", run="r2") == "r1"
    assert fetch(store, "latest", tmp_path / "first again", run="r1") == "", "as when it was submitted first"
    assert fetch(store, "latest", tmp_path / "next", run="r3") == "r2"


def test_a_repeated_run_whose_adapter_to_beat_was_removed_says_so(store: Store, tmp_path: Path) -> None:
    from gumshoe.artifacts.pruning import remove_named

    assert fetch(store, "latest", tmp_path / "first", run="r3") == "r1"
    store.publish(tmp_path / "adapter", "adapters", "r2")
    remove_named(store, ["adapters/r1"])
    with raises("artifacts.recorded-adapter-removed", "run r3", "adapters/r1", "against", "r2"):
        fetch(store, "latest", tmp_path / "again", run="r3")
    assert fetch(store, "r2", tmp_path / "named", run="r3") == "r2"
    remove_named(store, ["adapters/r2"])
    with raises("artifacts.recorded-adapter-removed", "to base"):
        fetch(store, "latest", tmp_path / "none", run="r3")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({}, "r3"),
        ({"r3": ["rolled back"]}, "r2"),
        ({"r3": ["rolled back", "settled"]}, "r2"),
        ({"r3": ["rolled back"], "r2": ["undecided", "rolled back"]}, "r1"),
        ({each: ["rolled back"] for each in ("r1", "r2", "r3")}, ""),
        ({"r3": ["rolled back", "promoted"], "r2": ["rolled back"]}, "r3"),
        ({"r3": ["promoted"]}, "r3"),
        ({"r3": ["undecided"]}, "r3"),
        ({"r3": ["changed"]}, "r3"),
        ({"r3": ["in-service"]}, "r3"),
    ],
)
def test_an_adapter_that_was_rolled_back_as_a_canary_is_not_the_one_to_beat(
    store: Store, tmp_path: Path, outcomes: dict[str, list[str]], expected: str
) -> None:
    from gumshoe.artifacts.canary_decision import record_canary_decision

    for version in ("r2", "r3"):
        store.publish(tmp_path / "adapter", "adapters", version)
    store.publish(tmp_path / "adapter", "adapters", "trial", latest=False)
    for version, decided in outcomes.items():
        for outcome in decided:
            record_canary_decision("", {"outcome": outcome}, version, store.uri)
    assert fetch(store, "latest", tmp_path / "compared", run="r4") == expected
    assert fetch(store, "latest", tmp_path / "evaluated") == "r3", "an evaluation takes the newest"


def test_the_adapter_to_beat_is_not_tested_on_what_it_has_seen(store: Store, tmp_path: Path) -> None:
    from gumshoe.scenarios.component import load_scenarios as step

    make_index(tmp_path, [record(number) for number in range(COUNT)])
    source = write_questions(tmp_path / "questions.jsonl", [question(number) for number in range(COUNT)])
    seen_in_test = {}
    for current in ("r1", ""):
        made: Any = SimpleNamespace(path=str(tmp_path / f"made-{current}"), metadata={})
        index = SimpleNamespace(path=str(tmp_path / "index"))
        step.python_func(source, index, seed=3, state="", store=store.uri, current=current, code="", scenarios=made)
        tested = load_scenarios(f"{made.path}/{SCENARIOS_FILE}").only("test")
        assert tested
        seen_in_test[current] = set(ids(tested)) & set(ids(SEEN))
    assert not seen_in_test["r1"]
    assert seen_in_test[""], "the questions are otherwise drawn from all"


def test_a_wrong_adapter_to_beat_is_refused_before_anything_starts(store: Store) -> None:
    from gumshoe_pipelines.run_arguments import check_arguments

    for against in ("base", "latest", "r1"):
        check_arguments({"against": against, "store": store.uri}, is_local=True)
    with raises("artifacts.not-found", "against: ", "adapters/r2"):
        check_arguments({"against": "r2", "store": store.uri}, is_local=True)
    check_arguments({"against": "r2", "store": "s3://bucket/acme"}, is_local=False)
    with raises("pipelines.invalid-against", "'Current'"):
        check_arguments({"against": "Current", "store": store.uri}, is_local=True)
    with raises("pipelines.reserved-run-id", "base"):
        check_arguments({"run": "base", "store": store.uri}, is_local=True)
