"""Algorithms: gradients of single tokens, and the example of the documentation. `test_trainer.py` runs training."""

import re
from pathlib import Path
from typing import Any

import pytest

from gumshoe.training.algorithms.lookup import BUILT_IN, AlgorithmChoice, find_algorithm
from gumshoe.training.algorithms.turn_level import TurnLevel
from tests.errors import raises

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "environment.md"


def batch(advantage: float, ratio: float = 1.0, **more: Any) -> Any:
    """Return one episode of two tokens; the second one is padding."""
    import torch

    from gumshoe.training.algorithms.algorithm import TokenBatch

    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    return TokenBatch(
        logprobs=new,
        old_logprobs=new.detach() - torch.tensor(ratio).log(),
        advantages=torch.full((1, 2), advantage),
        mask=torch.tensor([[1.0, 0.0]]),
        step_tokens=torch.tensor(1.0),
        passes=1,
        max_length=8,
        **more,
    )


def gradient(name: str, advantage: float, ratio: float, **settings: Any) -> float:
    """Return the gradient of the loss by the first token's log-probability."""
    algorithm, given = find_algorithm(name, settings), batch(advantage, ratio)
    algorithm.reduce(algorithm.token_loss(given), given).backward()  # type: ignore[no-untyped-call]
    assert given.logprobs.grad[0, 1] == 0, "padding"
    return float(given.logprobs.grad[0, 0])


@pytest.mark.parametrize(
    ("name", "ratio", "positive", "negative"),
    [
        ("grpo", 1.2, -1.2, 1.2),
        ("grpo", 1.5, 0.0, 1.5),  # beyond the upper clip, where the advantage is positive
        ("grpo", 0.7, -0.7, 0.0),
        ("dapo", 1.5, 0.0, 1.5),
        ("bnpo", 1.5, 0.0, 1.5),
        ("dr_grpo", 1.2, -0.15, 0.15),  # by the length of 8
        ("gspo", 1.2, -1.2, 1.2),
        ("gspo", 1.5, 0.0, 1.5),
        ("cispo", 1.5, -1.5, 1.5),
        ("cispo", 9.0, -5.0, 5.0),  # the weight is clipped, and the token still has a gradient
        ("rloo", 1.1, -1.1, 1.1),
        ("rloo", 1.25, 0.0, 1.25),
        ("turn_level", 1.2, -1.2, 1.2),
    ],
)
def test_gradient_of_a_token_follows_the_published_formula(
    name: str, ratio: float, positive: float, negative: float
) -> None:
    assert gradient(name, 1.0, ratio) == pytest.approx(positive, abs=1e-5)
    assert gradient(name, -1.0, ratio) == pytest.approx(negative, abs=1e-5)


def test_sapo_gradient_shrinks_gradually() -> None:
    found = [-gradient("sapo", 1.0, ratio) for ratio in (1.0, 1.5, 3.0, 9.0)]
    assert found[0] == pytest.approx(1.0)
    assert found[1] > found[2] > found[3] > 0


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in {"rloo", "turn_level"}])
def test_declared_equivalence_of_algorithms_holds_on_policy(name: str) -> None:
    algorithm = find_algorithm(name, {})
    if same := algorithm.equal_if_used_once:
        assert gradient(name, 0.7, 1.0) == pytest.approx(gradient(same, 0.7, 1.0), abs=1e-6)
        if name != "gspo":  # an episode of one token is one ratio for both; `test_trainer.py` has longer ones
            assert abs(gradient(name, 0.7, 1.5) - gradient(same, 0.7, 1.5)) > 0.1
    for setting in algorithm.settings_for_reuse & {"epsilon", "epsilon_high"}:
        assert gradient(name, 0.7, 1.0, **{setting: 0.01}) == pytest.approx(gradient(name, 0.7, 1.0), abs=1e-6)


def test_advantages_are_relative_to_the_group() -> None:
    import torch

    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 1.0, 0.0]])
    centered = rewards - rewards.mean(1, keepdim=True)
    scales: dict[str, Any] = {"group": rewards.std(1, keepdim=True) + 1e-4, "batch": rewards.std() + 1e-4, "none": 1.0}
    for scale, spread in scales.items():
        torch.testing.assert_close(find_algorithm("dapo", {"scale": scale}).advantages(rewards), centered / spread)
    torch.testing.assert_close(find_algorithm("dr_grpo", {}).advantages(rewards), centered)
    others = torch.tensor([[1.0, -1 / 3, -1 / 3, -1 / 3], [0.0, 0.0, 2 / 3, -2 / 3]])
    torch.testing.assert_close(find_algorithm("rloo", {}).advantages(rewards), others)


def turn_level(**settings: Any) -> TurnLevel:
    found = find_algorithm("turn_level", settings)
    assert isinstance(found, TurnLevel)
    return found


def advantages(rewards: list[list[float]], **settings: Any) -> list[tuple[float, ...]]:
    """Return the advantages of the turns of one group."""
    algorithm = turn_level(**settings)
    return algorithm.turn_advantages([algorithm.relative_returns(rewards)])[0]


HONEST, PADDED = [0.02, -0.5], [0.02, *[-0.07] * 7, -0.5]
"""A search and a wrong answer; the same with seven repeated searches in vain before the answer."""


def test_useless_turns_have_no_positive_advantage() -> None:
    """By hand: the first turns return -0.48, -0.48, -0.48 and -0.97, with mean -0.6025, and so on.

    With rewards that are normalized before they are summed up, the padded episode got 2.29 and the honest ones -0.76.
    """
    *honest, padded = advantages([HONEST, HONEST, HONEST, PADDED], scale="none")
    assert honest == [pytest.approx((0.1225, 0.1225))] * 3
    assert padded == pytest.approx((-0.3675, -0.3675, -0.315, -0.2625, -0.21, -0.1575, -0.105, -0.0525, 0.0))
    *scaled, last = advantages([HONEST, HONEST, HONEST, PADDED])
    assert scaled == [pytest.approx((0.6293, 0.6293), abs=1e-4)] * 3, "by the standard deviation, 0.19456"
    assert last[0] == pytest.approx(-1.8879, abs=1e-4)


def test_a_turn_that_only_one_episode_reaches_is_compared_with_the_ends_of_the_others() -> None:
    """By hand: the second turn returns 1, and the others ended with 0 and 0.5."""
    found = advantages([[0.0], [0.5], [0.0, 1.0]], scale="none")
    assert found == [pytest.approx((-0.5,)), pytest.approx((0.0,)), pytest.approx((0.5, 0.5))]


def test_turns_can_be_compared_with_all_turns_of_the_group() -> None:
    """By hand: the returns are 4, 4 and 2, with mean 10 / 3."""
    found = advantages([[0.0, 4.0], [2.0], []], scale="none", baseline="group")
    assert found == [pytest.approx((2 / 3, 2 / 3)), pytest.approx((-4 / 3,)), ()]


def test_returns_are_discounted() -> None:
    found = advantages([[1.0, 0.0, 4.0], [0.0]], scale="none", discount=0.5)
    assert found == [pytest.approx((1.0, 1.0, 2.0)), pytest.approx((-1.0,))]


def test_turn_advantages_of_episodes_with_one_turn_are_those_of_dapo() -> None:
    import torch

    rewards = [[1.0, 0.0, 0.0, 0.25], [0.5, 0.5, 1.0, 0.0]]
    for scale in ("group", "batch", "none"):
        algorithm = turn_level(scale=scale)
        found = algorithm.turn_advantages([algorithm.relative_returns([[each] for each in own]) for own in rewards])
        flat = torch.tensor([[value for (value,) in group] for group in found])
        wanted = find_algorithm("dapo", {"scale": scale}).advantages(torch.tensor(rewards))
        if scale != "batch":  # that of dapo also varies with the means of groups
            torch.testing.assert_close(flat, wanted)
        else:
            centered = torch.tensor(rewards) - torch.tensor(rewards).mean(1, keepdim=True)
            torch.testing.assert_close(flat, centered / (centered.std() + 1e-4))


@pytest.mark.parametrize("rewards", [[[]], [[1.0]], [[1.0], []], [[0.5, 1.0]] * 3])
def test_turns_without_a_comparison_have_no_advantage(rewards: list[list[float]]) -> None:
    assert advantages(rewards) == [(0.0,) * len(each) for each in rewards]


@pytest.mark.parametrize(
    ("value", "name", "settings"),
    [
        ("dapo", "dapo", {}),
        ("{dapo: {epsilon: 0.1}}", "dapo", {"epsilon": 0.1}),
        ({"dapo": None}, "dapo", {}),
        ({"name": "dapo", "settings": {"epsilon": 0.1}}, "dapo", {"epsilon": 0.1}),
        ({"name": "dapo"}, "dapo", {}),
    ],
)
def test_algorithm_is_written_with_or_without_settings(value: Any, name: str, settings: dict[str, Any]) -> None:
    assert AlgorithmChoice.parse(value) == AlgorithmChoice(name=name, settings=settings)


@pytest.mark.parametrize("value", ["", 5, ["dapo"], {"dapo": 1}, {"dapo": {}, "grpo": {}}, "[1"])
def test_invalid_algorithm_value_is_refused(value: Any) -> None:
    with raises("settings.invalid-algorithm", repr(value)):
        AlgorithmChoice.parse(value)


def test_algorithm_in_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    (code,) = re.findall(r"```python\n(# handbook_algorithm\.py\n.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "handbook_algorithm.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    found = find_algorithm("handbook_algorithm:Reinforce", {"baseline": 0.5})
    assert found.advantages(torch.tensor([[1.0, 0.0]])).tolist() == [[0.5, -0.5]]
    given = batch(0.5)
    found.reduce(found.token_loss(given), given).backward()  # type: ignore[no-untyped-call]
    assert given.logprobs.grad[0].tolist() == [-0.5, 0.0]
    assert not found.clipped(given).any()
