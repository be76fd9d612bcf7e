"""Records of the steps and evaluations of a run: a line of JSON in `metrics.jsonl`, and a line on the terminal."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.rollouts.trajectory import SplitReason


class _BaseRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def numbers(self) -> dict[str, float]:
        """Return the numbers for plots and trackers, named `step/...` or `evaluation/...`."""
        values = self.model_dump(exclude={"step"})
        for group in ("rewards", "split_reasons", "phase_seconds"):
            values |= {f"{group}/{name}": value for name, value in values.get(group, {}).items()}
        event = values["event"]
        return {f"{event}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}


class StepRecord(_BaseRecord):
    """One optimizer step. Times are in seconds; means are over episodes, unless noted otherwise."""

    event: Literal["step"] = Field("step", description="kind of the record")
    step: int = Field(description="optimizer step after which the record was written, from 1")
    loss: float = Field(description="loss of the algorithm, including the KL term")
    policy_loss: float = Field(description="loss without the KL term")
    kl: float | None = Field(description="KL divergence from the reference, in nats per token; null if beta is 0")
    entropy: float | None = Field(description="entropy of the policy, in nats per token")
    grad_norm: float | None = Field(description="norm of the gradient before clipping")
    learning_rate: float = Field(description="learning rate of the step")
    reward: float = Field(description="mean reward")
    reward_std: float = Field(description="standard deviation of the rewards")
    rewards: dict[str, float] = Field(description="mean of each reward function, over the episodes that it applies to")
    reward_quantiles: tuple[float, ...] = Field(
        description="minimum, lower quartile, median, upper quartile and maximum of the rewards"
    )
    accuracy: float | None = Field(description="share of correct answers; null if no episode was run")
    undecided: float | None = Field(
        None, description="share of answers that the judge could not decide, which count as wrong; null if unknown"
    )
    trainable_tokens: int = Field(description="number of tokens that were trained on")
    tokens: int = Field(description="number of tokens of the episodes that were trained on, with their prompts")
    scenarios: tuple[str, ...] = Field(
        description="ids of the scenarios whose episodes were scored, in the order drawn"
    )
    groups: int = Field(description="number of groups that were trained on")
    groups_wanted: int = Field(description="number of groups that a full step trains on")
    groups_flat: int = Field(description="groups left out because their rewards hardly differ")
    groups_dropped: int = Field(
        description="groups left out because of failed infrastructure, or because a judge gave no verdict"
    )
    groups_refused: int = Field(description="groups left out because another policy sampled them (off-policy)")
    drop_rate: float = Field(description="share of started groups that were dropped")
    draws: int = Field(description="number of times that scenarios were sampled for this step")
    retried: int = Field(description="episodes that were run again after infrastructure failed")
    retry_causes: dict[str, int] = Field(default_factory=dict, description="number of these by error code")
    dropped: dict[str, str] = Field(
        default_factory=dict,
        description="error code of each dropped group, by the id of its scenario; a further group of it has its "
        "batch/place of the schedule too, e.g. id (3/1)",
    )
    skipped: bool = Field(description="true if no group was left, so that no weight changed")
    importance_ratio: float = Field(
        description="mean ratio of the trainer's to the sampler's probability of sampled tokens, each at most 1: 1 "
        "minus the total variation distance between the two"
    )
    logprob_difference: float = Field(
        description="mean absolute difference of log-probabilities between trainer and sampler, in nats per token"
    )
    turns: float = Field(description="mean number of turns per episode")
    sampled_tokens: float = Field(description="mean number of sampled tokens per episode")
    endings: dict[str, int] = Field(description="number of episodes by how they ended")
    split_episodes: float = Field(
        0.0, description="share of episodes with several segments, because their history was rewritten"
    )
    split_reasons: dict[SplitReason, float] = Field(
        default_factory=dict,
        description="share of episodes with a segment that began for a reason, by reason; an episode may have several",
    )
    segments: float = Field(1.0, description="mean number of segments per episode")
    rollout_seconds: float = Field(description="time of the step's rollouts; 0 if it uses episodes of an earlier step")
    episode_seconds: dict[float, float] = Field(
        default_factory=dict,
        description="quantiles of the time of an episode, by the share of episodes that took no longer",
    )
    use: int = Field(1, description="number of optimizer steps that used these episodes so far, this one included")
    clip_ratio: float | None = Field(
        None, description="share of tokens whose gradient was removed or limited by the clip"
    )
    train_seconds: float = Field(
        description="time of the step without waiting for its rollouts, publishing the adapter included"
    )
    wait_seconds: float | None = Field(
        None, description="time that the trainer waited for the step's rollouts; less than theirs with a lag"
    )
    judge_seconds: float = Field(
        0.0, description="time of scoring groups, beside rollouts; groups that are scored at once all count"
    )
    phase_seconds: dict[str, float] = Field(
        default_factory=dict,
        description="time of the step by phase of the trainer: publishing the adapter, waiting for rollouts, preparing "
        "batches, log-probabilities before the loss (old, reference), forward and backward passes, other",
    )
    rollout_rate: float = Field(0.0, description="sampled tokens per second of the step's rollouts")
    model_tokens: int = Field(
        0, description="tokens that went through the model in the trainer's forward passes, old and reference included"
    )
    mfu: float | None = Field(
        None,
        description="share of the GPUs' peak speed (bfloat16) that the trainer's passes used while they ran (model "
        "FLOPs utilization); null if the GPU is not known",
    )
    staleness: float = Field(
        0.0,
        description="mean number of batches that the trainer had learned from since the oldest policy of a group was "
        "published; 0 without a lag",
    )
    max_staleness: int = Field(0, description="the largest of these numbers")
    ended: dict[str, bool] = Field(
        default_factory=dict,
        description="with a lag, the groups that belong to this step, as batch/place of the schedule, from 0; true for "
        "those that were trained on. A resumed run continues with all others",
    )
    scenarios_flat: tuple[str, ...] = Field(
        (), description="ids of the scenarios whose groups were left out because their rewards hardly differ"
    )
    publish_seconds: float = Field(
        0.0, description="time until all servers had the step's adapter; 0 if they already had it"
    )
    policy: str = Field(
        description="name of the policy that was published for the step; it sampled the episodes, unless they ran ahead"
    )

    @property
    def seconds(self) -> float:
        """Time of the step, with its rollouts as far as the trainer waited for them."""
        waited = self.rollout_seconds if self.wait_seconds is None else self.wait_seconds
        return waited + self.train_seconds

    def line(self, steps: int, eta: float) -> str:
        """Return the line for the terminal. `steps` is the length of the run, `eta` the seconds left."""
        kl = "-" if self.kl is None else f"{self.kl:.3f}"
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.1%}"
        share = self.trainable_tokens / max(1, self.tokens)
        parts = [
            f"Step {self.step}/{steps}",
            f"Loss {self.loss:.4f}",
            f"Policy {self.policy_loss:.4f}",
            f"KL {kl}",
            f"Reward {self.reward:.3f} ± {self.reward_std:.2f}",
            f"Acc {accuracy}",
            f"Trainable {self.trainable_tokens:,}/{self.tokens:,} ({share:.1%})",
            f"groups {self.groups}/{self.groups_wanted}",
            f"rollout {self.rollout_seconds:.1f}s train {self.train_seconds:.1f}s",
            *([f"waited {self.wait_seconds:.1f}s staleness {self.staleness:.1f}"] if self.ended else []),
            f"ETA {timedelta(seconds=round(eta))}",
        ]
        if self.split_episodes:
            parts.append(f"split {self.split_summary}")
        if self.skipped:
            parts.append("skipped: no group left to train on, weights unchanged")
        return " | ".join(parts)

    @property
    def split_summary(self) -> str:
        """The share of episodes that split, with the share of each reason, e.g. `25.0% (history edited 25.0%)`."""
        reasons = ", ".join(f"{reason} {share:.1%}" for reason, share in self.split_reasons.items())
        return f"{self.split_episodes:.1%}" + (f" ({reasons})" if reasons else "")


class EvaluationRecord(_BaseRecord):
    """One evaluation of the policy on the split `validation`, with greedy sampling."""

    event: Literal["evaluation"] = Field("evaluation", description="kind of the record")
    step: int = Field(description="optimizer step after which the policy was evaluated; 0 before the first")
    accuracy: float = Field(description="share of correct answers")
    undecided: float | None = Field(
        None, description="share of answers that the judge could not decide, which count as wrong; null if unknown"
    )
    reward: float = Field(description="mean reward")
    beat_rate: float | None = Field(
        description="share of questions with a higher reward than before training (step 0), where equal counts half"
    )
    questions: int = Field(description="number of questions that were evaluated")
    missing: int = Field(description="questions without an episode, because infrastructure failed")
    seconds: float = Field(description="time of the evaluation")
    best: bool = Field(
        description="true if it was better than all earlier evaluations: in accuracy, or in reward with equal accuracy"
    )

    @property
    def score(self) -> tuple[float, float]:
        """Accuracy and mean reward, by which evaluations are compared."""
        return self.accuracy, self.reward

    def line(self) -> str:
        """Return the line for the terminal."""
        beat = "" if self.beat_rate is None else f" | beats step 0 in {self.beat_rate:.1%}"
        best = " | best so far" if self.best else ""
        return (
            f"Evaluation after step {self.step} | Acc {self.accuracy:.1%} of {self.questions} | "
            f"Reward {self.reward:.3f}{beat} | {self.seconds:.1f}s{best}"
        )


def share_of_reasons(episodes: Sequence[Collection[SplitReason]]) -> dict[SplitReason, float]:
    """Return the share of episodes that split for each reason, most frequent first. `episodes` has those of each."""
    counts = Counter(reason for each in episodes for reason in sorted(set(each)))
    return {reason: count / len(episodes) for reason, count in counts.most_common()}


Record = Annotated[StepRecord | EvaluationRecord, Field(discriminator="event")]
_RECORD: TypeAdapter[StepRecord | EvaluationRecord] = TypeAdapter(Record)


def read_records(path: Path) -> list[StepRecord | EvaluationRecord]:
    """Read the records of a run, in order. An incomplete last line is skipped.

    Raises:
        UsageError: another line is not a record.
    """
    return list(_read(path))


def _read(path: Path) -> Iterator[StepRecord | EvaluationRecord]:
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _RECORD.validate_json(line)
        except ValidationError as error:
            raise UsageError(
                "training.invalid-record", f"{path}:{number}: not a record of a run: {describe_validation_error(error)}"
            ) from None


def write_record(path: Path, record: StepRecord | EvaluationRecord) -> None:
    """Append a record to a run's file."""
    with path.open("ab") as file:
        file.write(record.model_dump_json().encode() + b"\n")


def truncate_records(path: Path, step: int) -> list[StepRecord | EvaluationRecord]:
    """Remove the records after a step from a run's file, and return the others."""
    kept = [each for each in read_records(path) if each.step <= step]
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(f"{each.model_dump_json()}\n" for each in kept), encoding="utf-8")
    partial.replace(path)
    return kept


def end_message(
    evaluations: Sequence[EvaluationRecord], target_accuracy: float | None, patience: int | None
) -> str | None:
    """Return why a run ends after the last of its evaluations, or None if it goes on.

    A run ends if its last evaluation reaches the target accuracy, or if `patience` evaluations in a row were not
    better than the best one before them. None switches either limit off.
    """
    if not evaluations:
        return None
    if target_accuracy is not None and evaluations[-1].accuracy >= target_accuracy:
        return f"The target of {target_accuracy:.1%} is reached."
    best = max(place for place, each in enumerate(evaluations) if each.best)
    if patience is not None and len(evaluations) - 1 - best >= patience:
        return f"No better evaluation in {patience}; the best was after step {evaluations[best].step}."
    return None
