"""Helpers: questions, episodes and files about Ann, whom tests erase, and about Bob, who stays."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from tests.conftest import CommandResult
from tests.scenarios.questions import question

ANN, BOB = "ann@example.com", "bob@example.com"
Run = Callable[..., CommandResult]
ABOUT_ANN = question(1, id="a", question="Where is Ann's zircon?", answer="zircon in Leeds", inbox_address=ANN)
ABOUT_BOB = question(2, id="b", question="Where is Bob's quartz?", answer="quartz in York", inbox_address=BOB)


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return path


def episode(scenario: str, inbox: str, text: str) -> dict[str, Any]:
    """Return the parts of a trajectory that erasing looks at."""
    prompt = {"origin": "prompt", "text": f"Search.\nI am {inbox}. Today is Monday.\n\nWhat?", "ids": [1, 2]}
    return {"scenario": scenario, "spans": [prompt, {"origin": "injected", "text": text}], "record": {"found": []}}


def lineage_of(*scenarios: Scenario) -> Lineage:
    return Lineage.of(ScenarioSet.of(scenarios))
