"""Prepare scenarios for training: keep the usable ones, and split them without leaks."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.errors import RefusedError
from gumshoe.scenarios.check import CheckReport, check_scenarios
from gumshoe.scenarios.feedback import SelectedFeedback, add_to_training, select_feedback
from gumshoe.scenarios.feedback_options import FeedbackOptions
from gumshoe.scenarios.feedback_records import FeedbackRecord
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import SPLITS, ScenarioSet
from gumshoe.scenarios.sources import read_scenarios
from gumshoe.scenarios.splitting import NOTHING_SEEN, split_scenarios


@dataclass(frozen=True, slots=True)
class FeedbackSource:
    """Feedback of users, and the options for it."""

    records: Sequence[FeedbackRecord]
    options: FeedbackOptions


@dataclass(frozen=True, slots=True)
class PreparedScenarios:
    """The usable scenarios of a source, and the report of the check."""

    scenarios: ScenarioSet
    report: CheckReport
    feedback: SelectedFeedback | None = None
    """What was added from feedback, if that was asked for."""

    @property
    def splits(self) -> dict[str, int]:
        """Number of scenarios by split."""
        return {split: len(self.scenarios.only(split)) for split in SPLITS}


def prepare_scenarios(
    source: str,
    index: Path,
    directory: Path,
    *,
    validation: float,
    test: float,
    seed: int,
    current: Path | None = None,
    feedback: FeedbackSource | None = None,
) -> PreparedScenarios:
    """Check scenarios, drop those with problems, split them if needed, and write them to a directory.

    An existing test split is kept, and so is a validation split beside it. `current` is the directory of an adapter
    that will be tested too: scenarios that it has seen, and scenarios that share a source with those, do not go into
    the test split. `feedback` is added to the splits afterwards, so that they are otherwise the same without it.

    Raises:
        RefusedError: if no scenario is usable.
        UsageError: if the adapter has seen scenarios of an existing test split (`scenarios.seen-in-training`,
            `scenarios.seen-in-selection`).
        UsageError: if the scenarios cannot be read, or cannot be split this way.
    """
    lineage = None if current is None else Lineage.read(current)
    report = check_scenarios(read_scenarios(source), index)
    scenarios = report.clean
    if not scenarios:
        problems = ", ".join(f"{count:,} {problem}" for problem, count in report.counts.items())
        raise RefusedError(
            "scenarios.none-usable",
            f"none of the {report.lines:,} scenarios in {source} is usable: {problems or 'the source is empty'}; "
            "correct them, or check that the index is the right one",
        )
    has_test, has_validation = (bool(scenarios.only(split)) for split in ("test", "validation"))
    seen = lineage.seen if lineage else NOTHING_SEEN
    if not (has_test and has_validation):
        scenarios, _ = split_scenarios(
            scenarios, validation=validation, test=test, seed=seed, keep_test=has_test, seen=seen
        )
    found = None
    if feedback is not None:
        found = select_feedback(feedback.records, feedback.options, index)
        scenarios = add_to_training(
            scenarios, found, index, feedback.options, validation=validation, test=test, seed=seed, seen=seen
        )
    if lineage is not None:
        lineage.check_unseen(scenarios.only("test"), "the published adapter")
    mark_private(directory, scenarios.inboxes)
    with explain_os_errors(directory):
        write_atomically(directory / SCENARIOS_FILE, io.BytesIO(scenarios.to_jsonl()))
    return PreparedScenarios(scenarios, report, found)
