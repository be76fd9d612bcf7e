"""Find the recorded episodes whose answers users confirmed. They can be demonstrations for a warm start.

Episodes are lines of JSON here, because their class belongs to a package that is built on this one.
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.storage import NotFoundError, explain_os_errors, write_atomically
from gumshoe.artifacts.store import Store
from gumshoe.json_text import load_json
from gumshoe.scenarios.scenario import Scenario, ScenarioSet

_FILE = "trajectories.jsonl"
_REDACTED = "[redacted]"


def write_confirmed_episodes(path: Path, store: Store, publications: Sequence[Manifest], known: ScenarioSet) -> int:
    """Write the episodes that ended with the reference answer of a scenario, and return their number.

    Their questions, days and inboxes are those of the scenarios, and each names its scenario. Episodes with redacted
    text are left out. There may be several of a scenario, in the order of their publication.

    Raises:
        GumshoeError: if the store cannot be read.
    """
    by_id = {f"asked-{each.digest}": each for each in known}
    lines = [line for each in publications for line in _find_confirmed(store, each, by_id)]
    with explain_os_errors(path):
        write_atomically(path, io.BytesIO("".join(f"{line}\n" for line in lines).encode(errors="replace")))
    return len(lines)


def _find_confirmed(store: Store, publication: Manifest, by_id: dict[str, Scenario]) -> Iterator[str]:
    data = None
    with suppress(NotFoundError):
        data = store.read_file(publication, _FILE)
    for line in (data or b"").splitlines():
        try:
            episode: Any = load_json(line, is_recorded=True)
            scenario = by_id.get(episode["scenario"])
            if scenario is not None and _REDACTED not in line.decode(errors="replace") and _agrees(episode, scenario):
                yield json.dumps({**episode, "scenario": scenario.id}, ensure_ascii=False, separators=(",", ":"))
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # not an episode, or one of an earlier version


def _agrees(episode: dict[str, Any], scenario: Scenario) -> bool:
    """Return True if an episode was about the scenario's question and day, and ended with its answer."""
    record, prompt = episode["record"], str(episode["spans"][0]["text"])
    is_same = scenario.question in prompt and str(scenario.query_date or "") in prompt
    if not is_same or episode["ending"] != "answer":
        return False
    if scenario.unanswerable:
        return record["does_not_know"] is True and not record["sources"]
    cited = {str(each).strip().strip("<>") for each in record["sources"]}
    is_cited = not cited.isdisjoint(each.strip("<>") for each in scenario.sources)
    return is_cited and " ".join(str(record["answer"]).split()) == " ".join(scenario.answer.split())
