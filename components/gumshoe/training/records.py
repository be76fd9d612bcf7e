"""What a run says of each step and each evaluation: a line to read, and one of JSON in `metrics.jsonl`."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gumshoe.errors import UsageError, faults_of


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def numbers(self) -> dict[str, float]:
        """What can be plotted of it, by names that tell whose they are."""
        values = self.model_dump(exclude={"step"})
        values |= {f"rewards/{name}": value for name, value in values.get("rewards", {}).items()}
        event = values["event"]
        return {f"{event}/{name}": float(value) for name, value in values.items() if isinstance(value, int | float)}


class StepRecord(_Record):
    """One optimizer step. Times are in seconds; means are over episodes where nothing else is said."""

    event: Literal["step"] = "step"
    step: int = Field(description="from 1: the weights are those after so many steps")
    loss: float
    policy_loss: float = Field(description="the loss without the KL term")
    kl: float | None = Field(description="from the base model, nats a token; none with beta 0")
    entropy: float | None = Field(description="nats a token")
    grad_norm: float | None
    learning_rate: float
    reward: float
    reward_std: float
    rewards: dict[str, float] = Field(description="mean of each reward function, without those it does not apply to")
    reward_quantiles: tuple[float, ...] = Field(description="least, lower quartile, median, upper quartile, most")
    accuracy: float | None = Field(description="of the answers; none where no episode was run")
    trainable_tokens: int
    tokens: int = Field(description="all that went through the model")
    scenarios: tuple[str, ...] = Field(description="ids of those whose episodes were run, in the order drawn")
    groups: int = Field(description="that were learned from")
    groups_wanted: int
    groups_flat: int = Field(description="left out since their rewards hardly differ")
    groups_dropped: int = Field(description="left out for want of infrastructure, or of a judge's verdict")
    groups_refused: int = Field(description="left out since another policy sampled them")
    drop_rate: float = Field(description="dropped groups, of all that were begun")
    draws: int
    retried: int = Field(description="episodes that were begun again for want of infrastructure")
    skipped: bool = Field(description="no group was left: no weight moved")
    importance_ratio: float = Field(
        description="mean of trainer's to sampler's probability of sampled tokens, at most 1 each: 1 less the total "
        "variation between the two"
    )
    logprob_difference: float = Field(description="mean, absolute, nats a token")
    turns: float
    sampled_tokens: float
    endings: dict[str, int]
    rollout_seconds: float
    episode_seconds: dict[float, float] = Field(
        default_factory=dict, description="quantiles, by the share of episodes that took no longer"
    )
    train_seconds: float
    publish_seconds: float = Field(
        0.0, description="until all servers had the step's adapter; 0 where they had it already"
    )
    policy: str = Field(description="the name that the episodes' adapter was served under")

    def line(self, steps: int, eta: float) -> str:
        """What the terminal shows."""
        kl = "-" if self.kl is None else f"{self.kl:.3f}"
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.1%}"
        share = self.trainable_tokens / max(1, self.tokens)
        parts = [
            f"Step {self.step}/{steps}",
            f"Loss {self.loss:.2f}",
            f"Policy {self.policy_loss:.2f}",
            f"KL {kl}",
            f"Reward {self.reward:.3f} ± {self.reward_std:.2f}",
            f"Acc {accuracy}",
            f"Trainable {self.trainable_tokens:,}/{self.tokens:,} ({share:.1%})",
            f"groups {self.groups}/{self.groups_wanted}",
            f"rollout {self.rollout_seconds:.1f}s train {self.train_seconds:.1f}s",
            f"ETA {timedelta(seconds=round(eta))}",
        ]
        if self.skipped:
            parts.append("skipped: no group is left to learn from, no weight moved")
        return " | ".join(parts)


class EvaluationRecord(_Record):
    """The policy on the split `validation`, greedy."""

    event: Literal["evaluation"] = "evaluation"
    step: int
    accuracy: float
    reward: float
    beat_rate: float | None = Field(description="share of questions with more reward than the base model's; ties half")
    questions: int
    missing: int = Field(description="questions without an episode, for want of infrastructure")
    seconds: float
    best: bool = Field(description="no evaluation before was better")

    def line(self) -> str:
        """What the terminal shows."""
        beat = "" if self.beat_rate is None else f" | beats the base {self.beat_rate:.1%}"
        best = " | best so far" if self.best else ""
        return (
            f"Evaluation after step {self.step} | Acc {self.accuracy:.1%} of {self.questions} | "
            f"Reward {self.reward:.3f}{beat} | {self.seconds:.1f}s{best}"
        )


Record = Annotated[StepRecord | EvaluationRecord, Field(discriminator="event")]
_RECORD: TypeAdapter[StepRecord | EvaluationRecord] = TypeAdapter(Record)


def read_records(path: Path) -> list[StepRecord | EvaluationRecord]:
    """The records of a run, in order; a last line that was cut off is left out.

    Raises:
        UsageError: another line is no record.
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
                "training.invalid-record", f"{path}:{number}: not a record of a run: {faults_of(error)}"
            ) from None


def write_record(path: Path, record: StepRecord | EvaluationRecord) -> None:
    """Add a record to a run's file."""
    with path.open("ab") as file:
        file.write(record.model_dump_json().encode() + b"\n")


def keep_until(path: Path, step: int) -> list[StepRecord | EvaluationRecord]:
    """Take what comes after a step out of a run's file, which goes on from there; what is left."""
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
