"""The request for an evaluation: its policies, judges and options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gumshoe.evaluation.attacks.attack_run import AttackSettings
from gumshoe.evaluation.canary_evaluation import CanarySettings
from gumshoe.evaluation.metrics import Price
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rewards.best_of_n import ChoiceSettings
from gumshoe.rollouts.writer import RolloutOptions

_LABEL = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)", re.S)
_INVALID_CHARACTERS = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy to evaluate, and its name in the evaluation."""

    name: str
    word: str

    @classmethod
    def parse(cls, text: str) -> "NamedPolicy":
        """Parse `NAME=WORD`, or a word alone, which is then named by its version."""
        labelled = _LABEL.fullmatch(text)
        if labelled:
            return cls(labelled[1], labelled[2])
        return cls(_INVALID_CHARACTERS.sub("-", PolicyName.parse(text).version).strip("-.")[-64:], text)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Options of an evaluation, as on the command line."""

    rollout: RolloutOptions
    """Options for each policy; its `policy` is ignored."""
    policies: tuple[NamedPolicy, ...]
    judges: tuple[Any, ...] = ("heuristic",)
    """One or two judges, for `open_judge`; the first one decides."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by policy name."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """(policy name, directory) of adapters, to read which questions they were trained on."""
    canaries: CanarySettings | None = None
    """Canaries of the training, to measure what the policies memorized."""
    attacks: AttackSettings | None = None
    """Attacks to measure beside the questions."""
    choice: ChoiceSettings | None = None
    """Settings to choose one of the samples as a question's answer. All samples are run before, so that they can be
    reused with another method."""
