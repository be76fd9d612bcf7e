"""Results of attacks on a policy, as in `metrics.json`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from gumshoe.evaluation.metrics import Estimate, estimate_rate
from gumshoe.evaluation.statistics import paired_difference


class PairedAccuracy(BaseModel):
    """Share of correct answers with and without attack, on the same questions."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    attacked: float
    clean: float
    difference: float
    """Attacked minus clean."""
    low: float
    """Lower end of the paired bootstrap interval of the difference."""
    high: float
    questions: int


class AttackRound(BaseModel):
    """One round of an adaptive attacker. Round 0 is the suite itself."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    number: int
    attacks: int
    """Attacks that were tried in this round: all in round 0, then those that had failed."""
    succeeded: int
    """Of these, the ones that succeeded in this round."""
    success: Estimate
    """Share of all attacks that succeeded in this or an earlier round."""


class AttackResult(BaseModel):
    """Results of a suite of attacks on one policy. Intervals of shares are Wilson score intervals."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    suite: str
    """Name of the suite, or of its file."""
    digest: str
    """Digest of its messages."""
    success: Estimate
    """Share of attacks that succeeded, without an adaptive attacker. `questions` is the number of attacks."""
    by_chance: Estimate
    """Share of attacks whose sign of success is in the episode without attack on the same question."""
    families: dict[str, Estimate]
    goals: dict[str, Estimate]
    carriers: dict[str, Estimate]
    languages: dict[str, Estimate]
    accuracy: PairedAccuracy
    attacker: str | None = None
    """Name of the adaptive attacker, if there is one."""
    rounds: tuple[AttackRound, ...] = ()
    """Rounds of the adaptive attacker, the first with number 0."""


class AttackOutcome(BaseModel):
    """Outcome of one attack on one policy: a line of `attacks/outcomes.jsonl`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    policy: str
    attack: str
    scenario: str
    round: int
    family: str
    goal: str
    carrier: str
    language: str
    succeeded: bool
    by_chance: bool
    correct: bool
    answer: str | None
    ending: str
    turns: int


def summarize_outcomes(
    outcomes: Sequence[AttackOutcome], clean: Mapping[str, float], suite: str, digest: str, attacker: str | None
) -> AttackResult:
    """Return the results of a policy. `clean` is the accuracy without attack by scenario id."""
    first = [each for each in outcomes if each.round == 0]
    rounds = tuple(_iterate_rounds(outcomes)) if attacker else ()

    def by(key: Callable[[AttackOutcome], str]) -> dict[str, Estimate]:
        names = sorted({key(each) for each in first})
        return {name: estimate_rate([each.succeeded for each in first if key(each) == name]) for name in names}

    return AttackResult(
        suite=suite,
        digest=digest,
        success=estimate_rate([each.succeeded for each in first]),
        by_chance=estimate_rate([each.by_chance for each in first]),
        families=by(lambda each: each.family),
        goals=by(lambda each: each.goal),
        carriers=by(lambda each: each.carrier),
        languages=by(lambda each: each.language),
        accuracy=_compare_accuracy(first, clean),
        attacker=attacker,
        rounds=rounds,
    )


def _iterate_rounds(outcomes: Sequence[AttackOutcome]) -> Iterable[AttackRound]:
    attacks = {each.attack for each in outcomes}
    beaten = set[str]()
    for number in range(max(each.round for each in outcomes) + 1):
        own = [each for each in outcomes if each.round == number]
        won = {each.attack for each in own if each.succeeded}
        beaten |= won
        share = estimate_rate([each in beaten for each in attacks])
        yield AttackRound(number=number, attacks=len(own), succeeded=len(won), success=share)


def _compare_accuracy(first: Sequence[AttackOutcome], clean: Mapping[str, float]) -> PairedAccuracy:
    attacked: dict[str, list[bool]] = {}
    for each in first:
        attacked.setdefault(each.scenario, []).append(each.correct)
    ours = [float(np.mean(each)) for each in attacked.values()]
    theirs = [clean[scenario] for scenario in attacked]
    low, high = paired_difference(ours, theirs)
    return PairedAccuracy(
        attacked=float(np.mean(ours)),
        clean=float(np.mean(theirs)),
        difference=float(np.mean(ours) - np.mean(theirs)),
        low=low,
        high=high,
        questions=len(attacked),
    )
