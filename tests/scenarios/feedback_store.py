"""A store with feedback as an agent server publishes it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gumshoe.artifacts.store import Store
from gumshoe.scenarios.feedback_records import FEEDBACK_KIND
from gumshoe.scenarios.scenario import Scenario
from tests.scenarios.questions import question

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def feedback(number: int, caller: str = "a", *, days: float = 1, **fields: Any) -> Scenario:
    """Return feedback on the question with that number, given some days before `NOW`."""
    given = {"id": f"asked-{number}-{caller}-{days}", "given_by": caller, "consent": "training"}
    given["given_at"] = (NOW - timedelta(days=days)).isoformat()
    return Scenario.model_validate(question(number, **{**given, **fields}))


def unanswerable(number: int, caller: str = "a", **fields: Any) -> Scenario:
    """Return feedback that a question is unanswerable."""
    return feedback(number, caller, unanswerable=True, answer="", message_ids=[], **fields)


def publish(place: Path, records: Iterable[Scenario], version: str = "v1", **files: str) -> Store:
    """Publish feedback, and other files, to the store in a directory."""
    made = place / f"made-{version}"
    made.mkdir(parents=True)
    (made / "scenarios.jsonl").write_text("".join(f"{each.to_json()}\n" for each in records), encoding="utf-8")
    for name, text in files.items():
        (made / f"{name}.jsonl").write_text(text, encoding="utf-8")
    store = Store(str(place / "store"))
    store.publish(made, FEEDBACK_KIND, version)
    return store
