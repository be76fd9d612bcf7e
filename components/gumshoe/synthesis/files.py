"""The files that a synthesis leaves: its records, and the questions about them."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.scenarios.scenario import SCENARIOS, ScenarioSet


def write_made(directory: Path, name: str, records: Iterable[Mapping[str, Any]], scenarios: ScenarioSet) -> None:
    """Write records as lines of JSON into a file of that name, and the questions beside it, in a directory that is made
    where it is missing.

    Raises:
        StorageError: it cannot be written to.
    """
    lines = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in records)
    with explain_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / name, io.BytesIO(lines.encode()))
        write_atomically(directory / SCENARIOS, io.BytesIO(scenarios.to_jsonl()))
