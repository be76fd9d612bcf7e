"""Test the steps that add the feedback of users to the questions of a training."""

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
from tests.scenarios.feedback_store import feedback, publish, unanswerable
from tests.scenarios.questions import ids, question, write_questions

COUNT, NEW = 40, range(40, 100)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with feedback of 60 callers, one caller with many records, and an adapter that saw some of it."""
    make_index(tmp_path, [record(number) for number in range(200)])
    write_questions(tmp_path / "questions.jsonl", [question(number) for number in range(COUNT)])
    many = [feedback(number, "many") for number in range(100, 200)]
    known = [feedback(3, "known"), feedback(150, "no", consent="none", answer="No")]
    asked = unanswerable(90, "x", question="What is the password?")
    opened = publish(tmp_path, [*[feedback(each, f"c{each}") for each in NEW], *many, *known, asked])
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    seen = ScenarioSet.of(feedback(each) for each in list(NEW)[:30])
    Lineage(learned_from=seen.to_record()).write(adapter)
    opened.publish(adapter, "adapters", "r1")
    return opened


def prepare(store: Store, place: Path, feedback: dict[str, Any], current: str = "") -> tuple[ScenarioSet, Any]:
    """Run the steps that look for feedback and load the scenarios. Return the scenarios, and the record of the step."""
    from gumshoe.scenarios.component import load_scenarios as load
    from gumshoe.scenarios.component import look_at_sources

    source = str(place / "questions.jsonl")
    *_, selection = look_at_sources.python_func([str(place / "mail.jsonl")], source, store.uri, feedback)
    made: Any = SimpleNamespace(path=str(place / f"made-{len(selection)}-{current}"), metadata={})
    index = SimpleNamespace(path=str(place / "index"))
    given = {"seed": 3, "state": "", "store": store.uri, "current": current, "code": "", "feedback": selection}
    load.python_func(source, index, **given, scenarios=made)
    return load_scenarios(f"{made.path}/{SCENARIOS_FILE}"), made.metadata


def test_feedback_is_added_to_the_splits_and_changes_nothing_else(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mail.jsonl").touch()
    without, record = prepare(store, tmp_path, {})
    assert "feedback" not in record
    found, record = prepare(store, tmp_path, {"redact": "none", "max_share": 0.1})
    assert {each.id: each.split for each in found if each.given_by is None} == {each.id: each.split for each in without}
    added = [each for each in found if each.given_by]
    assert {each.split for each in added} == {"train", "validation", "test"}
    assert [each.unanswerable for each in added].count(True) == 1
    for split in ("train", "validation", "test"):
        whole = [each for each in found if each.split == split]
        assert sum(each.given_by == "many" for each in whole) <= 0.1 * len(whole)
    left_out = record["feedback"]["left_out"]
    assert (left_out["already among the scenarios"], left_out["without consent"]) == (1, 1)
    assert left_out["over the share of a caller"] > 80
    assert record["feedback"]["scenarios"] == len(added)


def test_the_adapter_in_service_is_tested_on_no_feedback_that_it_has_seen(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mail.jsonl").touch()
    options = {"redact": "none", "max_share": 0.1}
    seen = {f"feedback-{feedback(each).digest}" for each in list(NEW)[:30]}
    found, _ = prepare(store, tmp_path, options, "r1")
    assert seen <= set(ids(found.only("train")))
    free, _ = prepare(store, tmp_path, options)
    assert not seen <= set(ids(free.only("train"))), "otherwise they are in all splits"
    assert set(ids(found.only("test"))) - {f"q{number}" for number in range(COUNT)}, "other feedback is in the test"


def test_a_step_that_is_repeated_takes_the_same_feedback(store: Store, tmp_path: Path) -> None:
    from gumshoe.scenarios.component import look_at_sources
    from gumshoe.scenarios.feedback_records import FeedbackSelection

    (tmp_path / "mail.jsonl").touch()

    def look() -> str:
        given = ([str(tmp_path / "mail.jsonl")], str(tmp_path / "questions.jsonl"), store.uri)
        return str(look_at_sources.python_func(*given, {"since": "900w", "redact": "none"})[2])

    first = look()
    assert look() == first
    publish(tmp_path, [feedback(5, "late")], "v2")
    assert look() != first
    records = FeedbackSelection.model_validate_json(first).read(store)
    assert not [each for each in records if each.scenario.given_by == "late"]


def test_a_run_that_is_submitted_again_takes_the_same_feedback(store: Store, tmp_path: Path) -> None:
    from gumshoe.artifacts.pruning import remove_named
    from gumshoe.scenarios.component import look_at_sources
    from gumshoe.scenarios.feedback_records import FeedbackSelection

    (tmp_path / "mail.jsonl").touch()

    def look(run: str, **options: Any) -> str:
        given = ([str(tmp_path / "mail.jsonl")], str(tmp_path / "questions.jsonl"), store.uri)
        return str(look_at_sources.python_func(*given, {"since": "900w", "redact": "none", **options}, run)[2])

    first = look("one")
    publish(tmp_path, [feedback(5, "late")], "v2")
    assert look("one") == first
    other, changed = look("two"), look("one", max_share=0.5)
    assert other != first
    assert '"max_share":0.5' in changed
    assert look("one", max_share=0.5) == changed
    remove_named(store, ["feedback/v1"])
    assert FeedbackSelection.model_validate_json(look("one")).publications == ()


def test_a_run_that_is_submitted_again_takes_what_erasures_have_left_of_its_feedback(tmp_path: Path) -> None:
    from gumshoe.erasure.erase import Erasure
    from gumshoe.erasure.receipt import Receipt
    from gumshoe.erasure.target import EraseTarget
    from gumshoe.scenarios.component import look_at_sources
    from gumshoe.scenarios.feedback_records import FeedbackSelection

    people = [f"{name}@example.com" for name in ("ann", "bob", "cid")]
    given = [feedback(number, inbox_address=each) for number, each in enumerate(people)]
    store = publish(tmp_path, given)
    for name in ("mail.jsonl", "questions.jsonl"):
        (tmp_path / name).touch()

    def look() -> FeedbackSelection:
        sources = [str(tmp_path / "mail.jsonl")], str(tmp_path / "questions.jsonl"), store.uri
        options = {"since": "900w", "redact": "none"}
        return FeedbackSelection.model_validate_json(look_at_sources.python_func(*sources, options, "one")[2])

    def list_inboxes(selection: FeedbackSelection) -> list[str | None]:
        return [each.scenario.inbox_address for each in selection.read(store)]

    first = look()
    publish(tmp_path, [feedback(5, "late")], "v2")
    for count, each in enumerate(people, 1):
        target = EraseTarget("inbox", each)
        erasure = Erasure(target, [], store, scratch=tmp_path)
        erasure.run(erasure.plan(), Receipt.open(tmp_path / f"{count}.json", target), lambda: None)
        again = look()
        assert list_inboxes(again) == list_inboxes(first) == people[count:]
        assert again.publications == (("feedback/v1" + "-erased-1" * count,) if people[count:] else ())


def test_feedback_that_an_erasure_was_about_to_delete_is_not_taken(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from gumshoe.scenarios.feedback_options import FeedbackOptions
    from gumshoe.scenarios.feedback_records import FeedbackSelection

    store = publish(tmp_path, [feedback(1), feedback(2)])
    before = FeedbackSelection.of(store, FeedbackOptions(), datetime.now(UTC))
    publish(tmp_path / "other", [feedback(2)])
    redacted = tmp_path / "other" / "made-v1"
    store.publish(redacted, "feedback", "v1-erased-1", settings={"replaces": ["feedback/v1"]})
    for each in (
        before,
        before.without_erased(store),
        FeedbackSelection.of(store, FeedbackOptions(), datetime.now(UTC)),
    ):
        assert [found.reference for found in each.read(store)] == ["feedback/v1-erased-1"]


def test_wrong_options_of_feedback_are_refused_before_anything_starts() -> None:
    from gumshoe_pipelines.run_arguments import check_arguments

    check_arguments({"feedback": {"since": "90d", "max_share": 1.0, "redact": ["pii"]}}, is_local=False)
    for wrong, code in (
        ({"max_share": 1.5}, "scenarios.invalid-feedback-options"),
        ({"redact": "everything"}, "scenarios.unknown-redaction"),
    ):
        with raises(code, "feedback"):
            check_arguments({"feedback": wrong}, is_local=True)
