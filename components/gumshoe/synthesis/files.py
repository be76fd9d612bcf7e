"""Write the files of a synthetic data set: records, and questions about them."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.scenarios.scenario import ScenarioSet


def write_dataset(directory: Path, name: str, records: Iterable[Mapping[str, Any]], scenarios: ScenarioSet) -> None:
    """Write records as JSON lines to a file, and the questions beside it. The directory is created if needed.

    Raises:
        StorageError: if the directory is not writable.
    """
    lines = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in records)
    with explain_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / name, io.BytesIO(lines.encode()))
        write_atomically(directory / SCENARIOS_FILE, io.BytesIO(scenarios.to_jsonl()))
