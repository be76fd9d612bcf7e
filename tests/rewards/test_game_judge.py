"""Families of attacks on the heuristic judge: how many answers it accepts that the reference does not support."""

import pytest

from gumshoe.rewards.scoring import read_labelled
from tests.rewards.game_judge import ANSWERS, FAMILIES, game

SAFE = ("hedge", "denial", "question", "empty", "long", "grid of values", "other answer")
EACH = 12  # of the labelled answers, one is attacked


@pytest.mark.ci
def test_few_attacks_succeed() -> None:
    found = game(read_labelled(str(ANSWERS))[::EACH])
    assert len(found) == len(FAMILIES)
    assert {name: found[name].accepted for name in SAFE} == dict.fromkeys(SAFE, 0)
    assert sum(each.accepted for each in found.values()) <= 0.02 * sum(each.tried for each in found.values())
