"""Algorithms: gradients of single tokens, and the example of the documentation. `test_trainer.py` runs training."""

import re
from pathlib import Path
from typing import Any

import pytest

from gumshoe.training.algorithms.lookup import BUILT_IN, AlgorithmChoice, find_algorithm
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
