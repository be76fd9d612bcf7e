"""Evaluate the policy of a run on the split `validation`, and decide which adapter is the best so far."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Sampling
from gumshoe.rewards.judge import Judge
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.terminal import Advance
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, RolloutCollector, measure_accuracy
from gumshoe.training.grpo.sampler import Sampler, open_newest
from gumshoe.training.records import EvaluationRecord
from gumshoe.training.run_spec import BASELINE
from gumshoe.training.settings import TrainSettings

_MAX_MISSING = 0.05  # share of an evaluation's questions


@dataclass(frozen=True, slots=True)
class Measurement:
    """One greedy episode of each question, with its reward and the judge's verdicts."""

    rollouts: RolloutBatch
    accuracy: Accuracy

    @property
    def rewards(self) -> dict[str, float]:
        """The reward of each question, by its id."""
        return {group.scenario.id: group.rewards[0] for group in self.rollouts.scored}


class Validator:
    """Evaluate policies, and compare them with that before training, whose rewards are kept in the run's directory."""

    def __init__(
        self,
        settings: TrainSettings,
        scenarios: ScenarioSet,
        collector: RolloutCollector,
        judge: Judge,
        directory: Path,
        on_verdict: Advance = lambda *_, **__: None,
    ) -> None:
        self._scenarios, self._collector, self._judge = scenarios, collector, judge
        self._path, self._on_verdict = directory / BASELINE, on_verdict
        self._seed = f"evaluation/{settings.data.seed}"
        self._sampling = Sampling(temperature=0, max_tokens=settings.rollouts.max_tokens)

    async def measure(self, sampler: Sampler) -> Measurement:
        """Run one episode of each question with the policy that was published last, and judge the answers.

        Raises:
            UnavailableError: too many questions have no episode, or the judge gave no verdict on an answer.
        """
        questions = self._scenarios.scenarios
        async with open_newest(sampler, self._sampling) as speak:
            found = await self._collector.measure(speak, sampler.version, questions, self._seed, sampler.servers)
        if len(found.dropped) > _MAX_MISSING * len(questions):
            raise UnavailableError(
                "training.evaluation-incomplete",
                f"{len(found.dropped)} of {len(questions)} questions could not be evaluated: "
                f"{next(iter(found.dropped.values()))}",
            )
        return Measurement(found, await measure_accuracy(found.scored, self._judge, self._on_verdict))

    def record(self, step: int, found: Measurement, before: Sequence[EvaluationRecord]) -> EvaluationRecord:
        """Return the record of an evaluation after `step`; at step 0, keep its rewards to compare later ones with.

        The beat rate is the share of questions with a higher reward than at step 0, where equal counts half.
        """
        rewards = found.rewards
        if step == 0:
            self._keep_baseline(rewards)
        baseline = {} if step == 0 else self._read_baseline()
        beaten = [
            (reward > baseline[name]) + (reward == baseline[name]) / 2
            for name, reward in rewards.items()
            if name in baseline
        ]
        accuracy, reward = found.accuracy.correct, sum(rewards.values()) / max(1, len(rewards))
        return EvaluationRecord(
            step=step,
            accuracy=accuracy,
            undecided=found.accuracy.undecided,
            reward=reward,
            beat_rate=sum(beaten) / len(beaten) if beaten else None,
            questions=len(rewards),
            missing=len(found.rollouts.dropped),
            seconds=found.rollouts.seconds,
            best=all((accuracy, reward) > each.score for each in before),
        )

    def _keep_baseline(self, rewards: dict[str, float]) -> None:
        kept = {"control_reward_map": {name: [value] for name, value in rewards.items()}}
        write_atomically(self._path, io.BytesIO(json.dumps(kept, indent=2).encode() + b"\n"))

    def _read_baseline(self) -> dict[str, float]:
        if not self._path.exists():
            return {}
        return {name: value for name, (value,) in json.loads(self._path.read_text())["control_reward_map"].items()}


def is_best_trained(record: EvaluationRecord, before: Sequence[EvaluationRecord]) -> bool:
    """Return True if an evaluation after a step is better than all earlier ones after a step; the first of equals wins.

    With equal accuracy, the mean reward decides: of a policy that is rarely correct, it says more. The base model's own
    evaluation, at step 0, does not count: a run leaves the best adapter that it trained.
    """
    return record.step > 0 and all(record.score > each.score for each in before if each.step)
