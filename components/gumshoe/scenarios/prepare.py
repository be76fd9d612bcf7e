"""Scenarios made ready for training: only those that can be answered, divided so that nothing leaks."""

import io
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.private_data import mark
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.errors import RefusedError
from gumshoe.scenarios.check import CheckReport, check_scenarios
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import SCENARIOS, SPLITS, ScenarioSet
from gumshoe.scenarios.sources import read_scenarios
from gumshoe.scenarios.splitting import split_scenarios


@dataclass(frozen=True, slots=True)
class PreparedScenarios:
    """What became of the scenarios of a source."""

    scenarios: ScenarioSet
    report: CheckReport

    @property
    def splits(self) -> dict[str, int]:
        """Scenarios by split."""
        return {split: len(self.scenarios.only(split)) for split in SPLITS}


def prepare(
    source: str,
    index: Path,
    directory: Path,
    *,
    validation: float,
    test: float,
    seed: int,
    current: Path | None = None,
) -> PreparedScenarios:
    """Check scenarios, drop those that are wrong, divide what is not divided, and write them to a directory.

    A test split that is there stays as it is, and so does a validation split beside it. `current` is the directory of
    an adapter that will be tested too: what it has seen, and what shares a source with that, goes into the split train.

    Raises:
        RefusedError: none can be answered.
        UsageError: the adapter has seen some of a test split that is there (`scenarios.seen-in-training`,
            `scenarios.seen-in-selection`).
        UsageError: they cannot be read, or divided so.
    """
    lineage = None if current is None else Lineage.read(current)
    report = check_scenarios(read_scenarios(source), index)
    scenarios = report.clean
    if not scenarios:
        why = ", ".join(f"{count:,} {problem}" for problem, count in report.counts.items())
        raise RefusedError(
            "scenarios.none-usable",
            f"none of the {report.lines:,} scenarios in {source} is usable: {why or 'the source is empty'}; "
            "correct them, or check that the index is the right one",
        )
    has_test, has_validation = (bool(scenarios.only(split)) for split in ("test", "validation"))
    if not (has_test and has_validation):
        seen = lineage.questions if lineage else frozenset[str]()
        scenarios, _ = split_scenarios(
            scenarios, validation=validation, test=test, seed=seed, keep_test=has_test, seen=seen
        )
    if lineage is not None:
        lineage.check_unseen(scenarios.only("test"), "the adapter in service")
    mark(directory, scenarios.inboxes)
    with explain_os_errors(directory):
        write_atomically(directory / SCENARIOS, io.BytesIO(scenarios.to_jsonl()))
    return PreparedScenarios(scenarios, report)
