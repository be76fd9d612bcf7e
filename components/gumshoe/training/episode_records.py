"""Records of the episodes of a run: a line of JSON for each in `episodes.jsonl`, as evidence for its proof.

An episode is recorded once, with the first optimizer step that used it. It has no text, only ids and numbers.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.environments.base import Ending
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.rollouts.trajectory import SplitReason


class SampledComparison(BaseModel):
    """The sampler's log-probabilities of an episode's tokens, compared with the trainer's on the same ids.

    Only tokens of groups that could be trained on are compared. The importance ratio of a token is the trainer's
    probability divided by the sampler's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    tokens: int = Field(description="number of compared tokens")
    difference: float = Field(description="mean absolute difference of their log-probabilities, in nats per token")
    mean_ratio: float = Field(description="mean importance ratio, each at most 1")
    min_ratio: float = Field(description="smallest importance ratio of a token")
    max_ratio: float = Field(description="largest importance ratio of a token")
    trained: int = Field(description="number of tokens that were trained on; 0 if the group was rejected")
    rejected: bool = Field(description="true if the group was dropped because another policy sampled it (off-policy)")


class EpisodeRecord(BaseModel):
    """One episode that was scored in training."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    step: int = Field(description="first optimizer step that used it, from 1")
    scenario: str = Field(description="id of the scenario")
    sample: int = Field(description="number of the episode in its group, from 0")
    answerable: bool = Field(
        description="true if the sources of the answer are in the index and may be read by the scenario; false if "
        "it is unanswerable"
    )
    policy: str = Field(description="name of the policy that sampled every completion, or the first one")
    later_policies: tuple[str, ...] = Field(
        (), description="names of other policies that sampled later completions (rollouts.adapter_switch turn)"
    )
    staleness: int = Field(
        0,
        description="batches that the trainer had learned from since the oldest policy of its group was published",
    )
    ending: Ending = Field(description="reason why it ended")
    tries: int = Field(description="number of attempts; earlier ones failed because of infrastructure")
    completions: int = Field(description="number of completions that were sampled")
    tokens: int = Field(description="number of sampled tokens")
    splits: tuple[SplitReason, ...] = Field((), description="reason of each segment after the first")
    rewards: dict[str, float] = Field(description="value of each reward function, and `reward`, the combined one")
    compared: SampledComparison | None = Field(
        None, description="comparison with the trainer; null if the group had no signal and was not trained on"
    )

    @property
    def is_trained(self) -> bool:
        """True if a weight was changed by its tokens."""
        return self.compared is not None and self.compared.trained > 0

    @property
    def is_failure(self) -> bool:
        """True if it was scored although the policy had no part in it: no completion, and the prompt did fit."""
        return not self.completions and self.ending != "context full"


def read_episodes(path: Path) -> list[EpisodeRecord]:
    """Read the episodes of a run, in order. An incomplete last line is skipped.

    Raises:
        UsageError: another line is not the record of an episode.
    """
    found = list[EpisodeRecord]()
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else (), 1):
        if not line.endswith(b"\n"):
            break
        try:
            found.append(EpisodeRecord.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                "training.invalid-record",
                f"{path}:{number}: not the record of an episode: {describe_validation_error(error)}",
            ) from None
    return found


def write_episodes(path: Path, episodes: Iterable[EpisodeRecord]) -> None:
    """Append the records of a step's episodes to a run's file."""
    with path.open("ab") as file:
        file.write("".join(f"{each.model_dump_json()}\n" for each in episodes).encode())


def truncate_episodes(path: Path, step: int) -> None:
    """Remove the episodes after a step from a run's file."""
    kept = [each for each in read_episodes(path) if each.step <= step]
    if kept or path.exists():
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(f"{each.model_dump_json()}\n" for each in kept), encoding="utf-8")
        partial.replace(path)
