"""An erased inbox does not come back from feedback, also not in questions without sources."""

from collections.abc import Callable
from pathlib import Path

from gumshoe.artifacts.store import Store
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult
from tests.scenarios.feedback_store import feedback, publish, unanswerable
from tests.scenarios.questions import ANN, BOB

Run = Callable[..., CommandResult]


def test_feedback_about_an_erased_inbox_is_gone(run: Run, tmp_path: Path) -> None:
    bobs = [feedback(1, inbox_address=BOB), unanswerable(2, inbox_address=BOB)]
    store: Store = publish(tmp_path, [*bobs, feedback(3), unanswerable(4)])
    options = ["--inbox", BOB, "--store", store.uri, "--yes", "--receipt", tmp_path / "receipt.json"]
    erased = run("erase", *options)
    assert erased.status == 0, erased.err
    found = tmp_path / "found.jsonl"
    result = run("scenarios", "from-feedback", store.uri, "--max-share", "1", "--out", found, "--redact", "none")
    assert result.status == 0, result.err
    assert [each.inbox_address for each in load_scenarios(str(found))] == [ANN, ANN]
