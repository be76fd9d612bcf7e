"""Report a run: `metrics.jsonl`, Prometheus, TensorBoard and other trackers, plots, and lines on the terminal."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gumshoe.rollouts.trajectory import AGENT_FAILURES
from gumshoe.terminal import Advance, ProgressLines, err, printable
from gumshoe.training.algorithms.algorithm import Algorithm
from gumshoe.training.attempts import AttemptProgress, write_attempt_event
from gumshoe.training.episode_records import EpisodeRecord, truncate_episodes, write_episodes
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.grpo.step_summary import advantage_lines
from gumshoe.training.metrics_exporter import MetricsExporter
from gumshoe.training.plots import write_plots
from gumshoe.training.progress_file import ProgressFile
from gumshoe.training.records import EvaluationRecord, StepRecord, truncate_records, write_record
from gumshoe.training.run_spec import ATTEMPTS, EPISODES, METRICS, TIMELINE, RunSpec
from gumshoe.training.settings import TrainSettings
from gumshoe.training.timeline import StepTimes, Timeline

_MANY = 0.5  # share of episodes
_RECENT = 20  # steps that the time left is estimated from


class RunReporter:
    """Keep the records of a run, and write each to all outputs.

    Attributes:
        records: everything that was recorded, in order, also before a resume.
    """

    def __init__(self, spec: RunSpec, steps: int, algorithm: Algorithm, progress_file: ProgressFile) -> None:
        self._settings: TrainSettings = spec.settings
        self._directory: Path = spec.directory
        self._title, self._steps, self._attempt = f"Run {spec.run}", steps, spec.attempt
        self._algorithm, self._progress_file = algorithm, progress_file
        self._exporter: MetricsExporter | None = None
        self._timeline = Timeline(spec.directory / TIMELINE)
        self._pending: list[StepRecord | EvaluationRecord] = []
        self._seconds: list[float] = []
        self._count_pass: Advance | None = None
        self.records: list[StepRecord | EvaluationRecord] = []

    @property
    def evaluations(self) -> list[EvaluationRecord]:
        return [each for each in self.records if isinstance(each, EvaluationRecord)]

    @property
    def steps(self) -> list[StepRecord]:
        return [each for each in self.records if isinstance(each, StepRecord)]

    def read_records(self, last_step: int) -> list[StepRecord | EvaluationRecord]:
        """Remove the records after `last_step` from `metrics.jsonl`, and return the others; -1 removes all.

        Episodes after that step are removed too.
        """
        truncate_episodes(self._directory / EPISODES, last_step)
        return truncate_records(self._directory / METRICS, last_step)

    @contextmanager
    def exporting(self, *, is_main: bool) -> Iterator[None]:
        """Serve the last numbers to Prometheus while the block runs, if a port is set and this is the main process.

        Raises:
            UsageError: the port is in use.
        """
        port = self._settings.output.metrics_port
        if port is None or not is_main:
            yield
            return
        with MetricsExporter(port, self._steps, self.records) as self._exporter:
            yield

    def add(self, record: StepRecord | EvaluationRecord) -> None:
        """Record a step or an evaluation."""
        self.records.append(record)
        write_record(self._directory / METRICS, record)
        if self._exporter:
            self._exporter.record(record)
        self._pending.append(record)

    def add_episodes(self, episodes: Iterable[EpisodeRecord], step: int) -> None:
        """Record the episodes of a step, before the step itself, and that this attempt has reached it."""
        write_episodes(self._directory / EPISODES, episodes)
        write_attempt_event(
            self._directory / ATTEMPTS, AttemptProgress(attempt=self._attempt, time=time.time(), step=step)
        )

    def add_times(self, times: StepTimes) -> None:
        """Add a step to the timeline."""
        self._timeline.add(times)

    def send_to_trackers(self, trainer: Any) -> None:
        """Send new records to the trackers of `output.report_to`. They accept none before training starts."""
        while self._pending:
            values = self._pending.pop(0).numbers()
            trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, values)

    def start_passes(self, step: int) -> None:
        """Start to count the passes of a step, numbered from 1."""
        total = self._settings.optimizer.gradient_accumulation_steps
        lines = ProgressLines(f"Passes of step {step}/{self._steps}", total=total)
        self._progress_file.step = step
        self._count_pass = self._progress_file.follow("Training", total, lines.advance)

    def count_pass(self) -> None:
        """Count a pass of the step, and print their number now and then."""
        if self._count_pass is not None:
            self._count_pass(1)

    def print_step(self, record: StepRecord, found: RolloutBatch, seconds: float) -> None:
        """Print a step's line, its advantages if `output.verbose` is set, and warn if sampler and trainer differ."""
        self._seconds.append(seconds)
        recent = self._seconds[-_RECENT:]
        left = (self._steps - record.step) * sum(recent) / len(recent)
        err.print(record.line(self._steps, left), soft_wrap=True)
        if self._settings.output.verbose:
            for line in advantage_lines(found, self._algorithm):
                err.print(printable(line), soft_wrap=True)
        failed = [each.detail for each in found.trajectories if each.ending in AGENT_FAILURES]
        if len(failed) >= _MANY * len(found.trajectories) > 0:
            warn(f"the agent failed in {len(failed):,} of {len(found.trajectories):,} episodes: {failed[0]}")
        if record.groups_refused:
            warn(f"dropped {record.groups_refused} off-policy groups: another policy sampled their tokens")
        least = self._settings.rollouts.least_ratio
        if record.importance_ratio < least:
            warn(f"sampler and trainer differ: the mean importance ratio is {record.importance_ratio:.3f} < {least:g}")

    def warn_if_all_skipped(self) -> None:
        """Warn if no step of the run changed the weights, with the reasons."""
        steps = self.steps
        if steps and all(each.skipped for each in steps):
            batches = [each for each in steps if each.use == 1]  # each may be used for several steps
            flat = sum(each.groups_flat for each in batches)
            dropped = sum(each.groups_dropped for each in batches)
            refused = sum(each.groups_refused for each in batches)
            warn(
                f"no step changed the weights: the rewards of {flat:,} groups hardly differed, {dropped:,} groups were "
                f"dropped, {refused:,} were off-policy"
            )

    def print_evaluation(self, record: EvaluationRecord) -> None:
        """Draw the plots again, and print an evaluation's line."""
        write_plots(self.records, self._directory, self._title)
        err.print(record.line(), soft_wrap=True)


def warn(text: object) -> None:
    """Print a warning on standard error."""
    err.print(f"[bold yellow]warning:[/] {printable(text)}", soft_wrap=True)
