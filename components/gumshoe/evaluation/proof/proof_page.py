"""Present a proof as a table of claims: what is claimed, its value, how it was computed, and from which file."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.evaluation.proof.proof_models import PROOF_PAGE, HeldOutResult, LearnedFrom, Proof, TrainingCost
from gumshoe.pages.render import render_page

_NO_EPISODES = "not applicable: mode simple runs no episodes"


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim in the table."""

    claim: str
    value: str
    method: str
    file: str
    holds: bool | None = None
    """False if the value is not what it must be; None if it may be any."""


def write_proof_page(proof: Proof, directory: Path) -> None:
    """Write the page into a directory, atomically.

    Raises:
        StorageError: it cannot be written.
    """
    values = {"proof": proof, "rows": list(list_claims(proof)), "data": []}
    page = "".join(render_page("gumshoe.evaluation", "proof", values))
    with explain_os_errors(directory):
        write_atomically(directory / PROOF_PAGE, io.BytesIO(page.encode()))


def list_claims(proof: Proof) -> Iterator[ClaimRow]:
    """Yield the rows of the table."""
    yield from _held_out_rows(proof.held_out)
    yield from _version_rows(proof)
    yield from _failure_rows(proof)
    yield from _episode_rows(proof)
    yield from _data_rows(proof.learned_from)
    yield from _cost_rows(proof.cost)


def _held_out_rows(found: HeldOutResult | None) -> Iterator[ClaimRow]:
    claim = "Gain on held-out questions"
    if found is None:
        yield ClaimRow(claim, "not measured", "A training alone has none; evaluate the adapter on the test split.", "")
        return
    part = f"the split {found.split}" if found.split else "all splits"
    yield ClaimRow(
        claim,
        f"{found.gain:+.1%} ({found.low:+.1%} to {found.high:+.1%})",
        f"{found.candidate} {found.candidate_accuracy:.1%}, {found.baseline} {found.baseline_accuracy:.1%} of "
        f"{found.questions:,} questions of {part}{'' if found.is_whole else ' (a subset)'}, judged by {found.judge}; "
        f"paired bootstrap over questions, {found.level:.0%} interval",
        "predictions.jsonl",
    )
    yield ClaimRow(
        "Questions that changed sides",
        f"{found.wins:,} won, {found.losses:,} lost, {found.ties:,} unchanged",
        f"McNemar's exact test: p = {found.p_value:.2g}",
        "predictions.jsonl",
    )
    yield ClaimRow(
        "Gain in reward",
        f"{found.reward_gain:+.3f} ({found.reward_low:+.3f} to {found.reward_high:+.3f})",
        "Paired, on the same questions.",
        "predictions.jsonl",
    )
    yield ClaimRow(
        "Held-out questions are unseen",
        "yes" if found.is_unseen else "not known",
        "The adapter's record of its training and validation questions has none of them, by digest.",
        "metrics.json",
        found.is_unseen,
    )


def _version_rows(proof: Proof) -> Iterator[ClaimRow]:
    versions, ratio = proof.policy_versions, proof.importance_ratio
    if versions is None or ratio is None:
        yield ClaimRow("Policy version of each completion", _NO_EPISODES, "", "")
        return
    share = "nothing was trained on" if versions.share is None else f"{versions.share:.2%}"
    yield ClaimRow(
        "Completions with a proven policy version",
        f"{share} of {versions.completions:,}",
        "Of completions that were trained on. The name was published for that step alone, and the sampler's "
        f"log-probabilities differ from the trainer's on the same ids by at most {versions.bound:g} nats per token.",
        "episodes.jsonl, metrics.jsonl",
        versions.share in (None, 1.0),
    )
    yield ClaimRow(
        "Completions rejected as off-policy",
        f"{versions.rejected:,}",
        "Sampled by another policy, and not trained on.",
        "episodes.jsonl",
    )
    yield ClaimRow(
        "Range of the importance ratio",
        "—" if ratio.lowest is None else f"{ratio.lowest:.4g} to {ratio.highest:.4g}",
        f"Trainer's probability divided by the sampler's, for each of {ratio.tokens:,} trained tokens"
        + ("." if ratio.mean_capped is None else f"; mean, each at most 1: {ratio.mean_capped:.4f}."),
        "episodes.jsonl",
    )


def _failure_rows(proof: Proof) -> Iterator[ClaimRow]:
    found = proof.infrastructure
    if found is None:
        return
    yield ClaimRow(
        "Episodes run again after a failure",
        _with_causes(found.retried, found.retry_causes),
        "A server, a judge or an agent's process failed; the episode started again from the beginning.",
        "metrics.jsonl",
    )
    yield ClaimRow(
        "Groups dropped",
        f"{_with_causes(found.groups_dropped, found.drop_causes)}; {found.drop_rate:.1%} of those started",
        "An episode kept failing, or a judge gave no verdict; no episode of the group counts.",
        "metrics.jsonl",
    )
    yield ClaimRow(
        "Fake zeros",
        f"{found.fake_zeros:,}",
        "Scored episodes without any completion of the policy, although the prompt fitted.",
        "episodes.jsonl",
        not found.fake_zeros,
    )
    yield ClaimRow(
        "Incomplete groups",
        f"{found.incomplete_groups:,}",
        "Scored groups without all of their episodes.",
        "episodes.jsonl",
        not found.incomplete_groups,
    )


def _episode_rows(proof: Proof) -> Iterator[ClaimRow]:
    split, unanswerable = proof.split_episodes, proof.unanswerable
    if split is not None:
        reasons = ", ".join(f"{name}: {count:,}" for name, count in split.reasons.items())
        yield ClaimRow(
            "Episodes that split",
            f"{split.share:.1%} ({split.split:,} of {split.episodes:,})",
            "Their history was rewritten, so that they have several segments"
            + (f"; segments by reason: {reasons}." if reasons else "."),
            "episodes.jsonl",
        )
    if unanswerable is not None:
        yield ClaimRow(
            "Unanswerable scenarios",
            f"{unanswerable.share:.1%} ({unanswerable.unanswerable:,} of {unanswerable.scenarios:,})",
            "Their sources are not in the index, or may not be read by the scenario.",
            "episodes.jsonl",
        )
    for name, each in proof.rewards.items():
        yield ClaimRow(
            "Reward" if name == "reward" else f"Reward function {name}",
            f"{each.mean:.4f}",
            f"Mean of {each.episodes:,} scored episodes, from {each.lowest:.3g} to {each.highest:.3g}.",
            "episodes.jsonl",
        )


def _data_rows(found: LearnedFrom) -> Iterator[ClaimRow]:
    yield ClaimRow(
        "Learned from",
        f"{found.scenarios:,} scenarios, {found.episodes:,} episodes, {found.tokens:,} tokens",
        f"Only what changed a weight, in {found.steps:,} steps ({found.steps_skipped:,} skipped). Base model "
        f"{found.base_model}; training scenarios {_shorten(found.training_content)}, validation scenarios "
        f"{_shorten(found.validation_content)}, index {_shorten(found.index)}"
        + (f"; started from an adapter trained on {_shorten(found.started_from)}" if found.started_from else ""),
        "episodes.jsonl, run.json",
    )


def _cost_rows(found: TrainingCost) -> Iterator[ClaimRow]:
    attempts = f"{found.attempts:,} {'attempt' if found.attempts == 1 else 'attempts'}"
    untimed = found.attempts - found.attempts_timed
    yield ClaimRow(
        "Hours of GPU",
        f"{found.gpu_hours:.2f}",
        f"GPUs held times the duration of {attempts}, with {found.steps_repeated:,} steps trained again. "
        f"{found.attempts_killed:,} were killed, and count up to their last step; {untimed:,} are not recorded.",
        "attempts.jsonl",
        not untimed,
    )
    yield ClaimRow(
        "Hours of CPU",
        f"{found.cpu_hours:.2f}",
        f"Processors times duration; wall time {found.wall_hours:.2f} h, of which steps {found.step_hours:.2f} h.",
        "attempts.jsonl",
    )
    prices = [
        f"{price:g} {found.currency} per hour of {name}"
        for name, price in (("GPU", found.gpu_price), ("CPU", found.cpu_price))
        if price is not None
    ]
    yield ClaimRow(
        "Costs",
        "no prices in the settings" if found.amount is None else f"{found.amount:,.2f} {found.currency}",
        " and ".join(prices) or "Set costs.gpu_hour to have them.",
        "run.json, attempts.jsonl",
    )


def _with_causes(count: int, causes: dict[str, int]) -> str:
    listed = ", ".join(f"{code} {number:,}" for code, number in causes.items())
    return f"{count:,} ({listed})" if listed else f"{count:,}"


def _shorten(digest: str) -> str:
    return digest[:12] or "unknown"
