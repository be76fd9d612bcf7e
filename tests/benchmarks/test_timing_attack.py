"""The benchmark of timing attacks: its measure, and the mail that it is measured on."""

from typing import Any

import numpy as np
import pytest

from tests.benchmarks import timing_attack
from tests.benchmarks.timing_attack import list_people, list_words, make_corpus, measure_auc, time_targets
from tests.mail.mailbox import record

ATTACKER = "ann@example.com"


def test_the_area_is_one_if_times_tell_everything() -> None:
    for times in ([2.0] * 20 + [1.0] * 20, [1.0] * 20 + [2.0] * 20):
        assert measure_auc(times) == (1.0, 1.0)


def test_the_area_is_a_half_if_times_are_equal() -> None:
    assert measure_auc([1.0] * 40) == (0.5, 0.5)


@pytest.mark.ci
def test_the_bound_is_above_the_area_and_narrows_with_more_targets() -> None:
    random = np.random.default_rng(1)
    widths = []
    for size in (50, 500):
        auc, bound = measure_auc(random.normal(size=2 * size).tolist())
        assert 0.5 <= auc < bound < 0.7
        widths.append(bound - auc)
    assert widths[1] < widths[0]


def test_every_round_asks_for_every_target() -> None:
    asked: list[str] = []
    assert len(time_targets(asked.append, ["a", "b", "c"], 3, 0)) == 3
    assert sorted(asked) == sorted("abc" * 3)


def test_half_of_the_targets_are_in_the_mail_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_attack, "OWN_MAIL", range(3, 4))
    monkeypatch.setattr(timing_attack, "_HELD_BY", range(1, 3))
    own = [record(number, body="greeting", sender=ATTACKER, to=[ATTACKER]) for number in range(3)]
    others: list[dict[str, Any]] = [
        record(100 + n, sender=f"s{n}@x.org", to=[f"t{n}@x.org"], body=f"word{chr(97 + n)} shared greeting")
        for n in range(8)
    ]
    corpus = make_corpus([*own, *others], 0, size=2)
    assert corpus.attacker == ATTACKER
    left = [each for each in corpus.messages if ATTACKER not in list_people(each)]
    present = (
        set[str]().union(*map(list_words, left)),
        set[str]().union(*map(list_people, left)),
        {each["message_id"] for each in left},
    )
    assert len(left) == len(others)
    for targets, found in zip(corpus.targets, present, strict=True):
        assert [each in found for each in targets] == [True, True, False, False]
    assert corpus.messages[:3] == own
