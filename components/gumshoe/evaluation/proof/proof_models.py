"""Content of `proof.json`. Its JSON Schema is `proof.schema.json` in this directory."""

import io
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.manifest import FileEntry
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error

PROOF, PROOF_PAGE = "proof.json", "proof.html"
TRAINING = "training"
"""Directory beside an adapter or in an evaluation, with the files of the run that trained the adapter."""


class _Claim(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")


class PolicyVersions(_Claim):
    """Completions that were trained on, and those whose policy version was proven.

    A version is proven if the episode names the policy that was published for its step, or an earlier one as the lag of
    the run allows; no other step used that name; and the sampler's log-probabilities of the episode match the trainer's
    on the same token ids.
    """

    completions: int
    """Number of completions that were trained on."""
    proven: int
    """Number of these whose policy version was proven."""
    share: float | None
    """Share of proven completions; null if nothing was trained on. It must be 1."""
    rejected: int
    """Number of completions in groups that were rejected because another policy sampled them (off-policy)."""
    bound: float
    """Maximum mean difference of log-probabilities in an episode, in nats per token (`rollouts.most_difference`); this
    times 1 + the staleness of the episode."""
    largest_difference: float | None
    """Largest such difference among the episodes that were trained on; null if nothing was trained on."""


class RatioRange(_Claim):
    """Importance ratios of the tokens that were trained on: the trainer's probability divided by the sampler's."""

    tokens: int
    """Number of tokens that were compared."""
    lowest: float | None
    highest: float | None
    mean_capped: float | None
    """Mean of the ratios, each at most 1: 1 minus the total variation distance between sampler and trainer."""


class InfrastructureFailures(_Claim):
    """Failures of servers, judges and agents' processes, and what became of them."""

    retried: int
    """Episodes that failed and were run again from the start."""
    retry_causes: dict[str, int]
    """Number of retries by error code."""
    groups_dropped: int
    """Groups that were dropped as a whole, because an episode kept failing or a judge gave no verdict."""
    drop_causes: dict[str, int]
    """Number of dropped groups by error code."""
    drop_rate: float
    """Share of started groups that were dropped."""
    incomplete_groups: int
    """Groups that were scored without all of their episodes. It must be 0."""
    fake_zeros: int
    """Scored episodes in which the policy had no part: no completion, although the prompt fitted. It must be 0."""


class SplitShare(_Claim):
    """Episodes whose history was rewritten, so that they have several segments."""

    episodes: int
    """Number of scored episodes."""
    split: int
    share: float
    reasons: dict[str, int]
    """Number of segments after the first one, by reason."""


class UnanswerableShare(_Claim):
    """Scenarios that are marked as unanswerable, or whose sources are not in the index or may not be read by the
    scenario."""

    scenarios: int
    """Number of scenarios with scored episodes."""
    unanswerable: int
    share: float


class RewardComponent(_Claim):
    """Values of one reward function over the scored episodes that it applies to."""

    episodes: int
    mean: float
    lowest: float
    highest: float


class LearnedFrom(_Claim):
    """Data that the weights were changed by."""

    base_model: str
    started_from: str | None
    """Digest of the scenarios that the first adapter had been trained on; null if training started without one."""
    training_content: str
    """Digest of the training scenarios."""
    validation_content: str
    """Digest of the scenarios that the best adapter was chosen on."""
    index: str
    """Digest of the index that the tools search."""
    steps: int
    """Optimizer steps."""
    steps_skipped: int
    """Steps without a group to train on, in which no weight changed."""
    scenarios: int
    """Number of scenarios with episodes that were trained on."""
    episodes: int
    tokens: int
    """Number of tokens that were trained on, each counted once, however often its episode was used."""


class TrainingCost(_Claim):
    """Time of all attempts of the run, including steps that were lost and trained again."""

    attempts: int
    """Number of starts of the run."""
    attempts_timed: int
    """Number of attempts whose start is recorded. Hours of the others are missing."""
    attempts_killed: int
    """Attempts without a recorded end. They are counted up to their last recorded step."""
    steps_repeated: int
    """Steps that were trained again after a restart."""
    wall_hours: float
    step_hours: float
    """Hours of the recorded steps alone: rollouts and training."""
    gpu_hours: float
    """Hours of GPU: number of GPUs that an attempt holds times its duration. 0 for a run on CPUs."""
    cpu_hours: float
    """Hours of processors, counted in the same way."""
    gpu_price: float | None
    """Price of an hour of one GPU (`costs.gpu_hour`)."""
    cpu_price: float | None
    currency: str
    amount: float | None
    """Costs by these prices; null without prices."""


class HeldOutResult(_Claim):
    """The trained policy and its baseline on questions that training has not seen, question by question."""

    candidate: str
    baseline: str
    adapter: str
    """SHA-256 of the weights of the candidate's adapter."""
    split: str | None
    is_whole: bool
    """True if the whole split was evaluated."""
    is_unseen: bool
    """True if the candidate's records show that it was not trained or selected on these questions."""
    content: str
    """Digest of the questions."""
    judge: str
    questions: int
    candidate_accuracy: float
    baseline_accuracy: float
    gain: float
    low: float
    """Lower end of the paired bootstrap interval of the gain in accuracy."""
    high: float
    level: float
    """Confidence level of the intervals."""
    p_value: float
    """McNemar's exact test."""
    wins: int
    losses: int
    ties: int
    reward_gain: float
    reward_low: float
    reward_high: float


class Proof(_Claim):
    """What a run claims about itself. `gumshoe verify` computes it again from the files."""

    format: Literal["gumshoe.proof/1"] = "gumshoe.proof/1"
    run: str
    """Id of the run."""
    mode: str
    """Mode of the training. In mode simple, no episode is run, and the claims about episodes are null."""
    policy_versions: PolicyVersions | None
    importance_ratio: RatioRange | None
    infrastructure: InfrastructureFailures | None
    split_episodes: SplitShare | None
    unanswerable: UnanswerableShare | None
    rewards: dict[str, RewardComponent]
    """By reward function; `reward` is the combination that is trained on."""
    learned_from: LearnedFrom
    cost: TrainingCost
    held_out: HeldOutResult | None = None
    """Paired comparison on held-out questions; null if the run was only trained, and not evaluated."""
    adapters: dict[str, str]
    """SHA-256 of the weights of the run's adapters, by directory."""
    files: tuple[FileEntry, ...] = Field(min_length=1)
    """The files that the claims are computed from, with their digests."""

    def write(self, directory: Path) -> None:
        """Write `proof.json` into a directory, atomically."""
        write_atomically(directory / PROOF, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))


def read_proof(directory: Path) -> Proof:
    """Read the proof in a directory.

    Raises:
        UsageError: the directory has none, or the file is not a proof.
    """
    path = directory / PROOF
    try:
        return Proof.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            "proof.missing",
            f"no proof in {directory}: {path.name}: {error.strerror}; it is written when a training of this version "
            "of Gumshoe ends",
        ) from None
    except ValidationError as error:
        raise UsageError("proof.invalid", f"{path} is not a proof: {describe_validation_error(error)}") from None
