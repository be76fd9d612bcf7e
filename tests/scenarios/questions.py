"""Small scenario sets for tests: fields as in JSONL, scenarios, files, and hypothesis strategies."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioSet

QUICK = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
ANN, BOB = "ann@example.com", "bob@example.com"


def question(number: int, **fields: Any) -> dict[str, Any]:
    """Return one scenario with plain defaults, about the message with that number in `tests.mail.mailbox`."""
    return {
        "id": f"q{number}",
        "question": f"What does message {number} say?",
        "answer": f"Body of message {number}",
        "message_ids": [f"<{number}@example.com>"],
        "inbox_address": ANN,
        "query_date": "2001-06-01",
        **fields,
    }


def scenario(number: int, **fields: Any) -> Scenario:
    """Return `question` as a scenario."""
    return Scenario.model_validate(question(number, **fields))


def about_documents(number: int, **fields: Any) -> dict[str, Any]:
    """Return one scenario about a document."""
    about = {"question": f"What does document {number} say?", "answer": "This.", "document_ids": [f"d{number}"]}
    return {"id": f"d{number}", **about, **fields}


def write_questions(path: Path, records: Iterable[Any]) -> str:
    """Write records, or text as it is, to a file, one per line, and return its path."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def ids(scenarios: Iterable[Scenario]) -> list[str]:
    """Return the ids of some scenarios, in order."""
    return [each.id for each in scenarios]


def marks(scenario: Scenario, *, by_inbox: bool = False) -> set[tuple[str, str]]:
    """Return what scenarios of different splits must not share."""
    found = {("source", source.strip("<>")) for source in scenario.sources}
    found.add(("question", re.sub(r"\W+", " ", scenario.question.lower()).strip()))
    if by_inbox and scenario.inbox_address:
        found.add(("inbox", scenario.inbox_address))
    return found


@st.composite
def scenario_sets(draw: st.DrawFn) -> ScenarioSet:
    """Draw sets in which sources, questions and inboxes are shared by many, few or no scenarios."""
    sources, questions, inboxes = (draw(st.sampled_from([300, 40, 4])) for _ in range(3))
    count = draw(st.sampled_from([30, 12, 3, 0]))
    row = st.tuples(
        st.lists(st.integers(1, sources), min_size=1, max_size=3),
        st.integers(1, questions),
        st.sampled_from(["What is {}?", "what is {} ?!", "WHAT - IS... {}"]),
        st.sampled_from(["<{}@example.com>", "{}@example.com"]),
        st.integers(1, inboxes),
        st.sampled_from([None, *SPLITS]),
        st.booleans(),
    )
    scenarios = []
    rows = draw(st.lists(row, min_size=count, max_size=count))
    for number, (about, topic, form, name, inbox, split, mail) in enumerate(rows):
        names = [name.format(source) for source in about]
        fields = question(number, message_ids=names) if mail else about_documents(number, document_ids=names)
        if mail:
            fields["inbox_address"] = f"owner{inbox}@example.com"
        scenarios.append(Scenario.model_validate({**fields, "question": form.format(topic), "split": split}))
    return ScenarioSet.of(scenarios)
