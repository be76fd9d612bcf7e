"""LoRA on a CPU: same results as vLLM's functions, and no adapter for tokens without one."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

from gumshoe.inference import vllm_plugin
from tests.conftest import skip_missing

ADAPTERS, RANK, WIDE, HIGH = 3, 4, 6, 10
SEVERAL = [0, 2, 2, 1, 0, 2]


@pytest.fixture
def own() -> Iterator[Any]:
    """Yield vLLM's functions, and restore them afterwards."""
    try:
        from vllm.lora.ops.torch_ops import lora_ops
        from vllm.lora.punica_wrapper import punica_cpu
    except ModuleNotFoundError:
        skip_missing("vLLM")
    names = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
    kept = [(place, name, getattr(place, name)) for place in (lora_ops, punica_cpu) for name in names]
    yield lora_ops
    for place, name, function in kept:
        setattr(place, name, function)


def weights(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [SEVERAL, [1] * 5, [2]])
@pytest.mark.parametrize("slots", [(ADAPTERS,), (ADAPTERS, 1)])
def test_results_equal_those_of_vllm(rows: list[int], slots: tuple[int, ...], own: Any) -> None:
    import torch

    indices, count = torch.tensor(rows), len(rows)
    down, up = weights(*slots, RANK, WIDE), weights(*slots, HIGH, RANK)
    inputs, small = weights(count, WIDE), weights(count, RANK)
    cases: list[tuple[str, list[Any]]] = [
        ("bgmv_shrink", [inputs, down, weights(count, RANK), indices, 0.5]),
        ("bgmv_expand", [small, up, weights(count, HIGH + 2), indices, True]),
        ("bgmv_expand", [small, up, weights(count, HIGH - 2), indices, False]),
        ("bgmv_expand_slice", [small, up, weights(count, HIGH + 5), indices, 3, HIGH, True]),
        ("bgmv_expand_slice", [small, up, weights(count, HIGH + 5), indices, 3, HIGH, False]),
    ]
    for name, arguments in cases:
        theirs = [each.clone() if torch.is_tensor(each) else each for each in arguments]
        getattr(own, name)(*theirs)
        getattr(vllm_plugin, name)(*arguments)
        torch.testing.assert_close(arguments[2], theirs[2])


def test_tokens_without_an_adapter_are_unchanged() -> None:
    import torch

    indices, out = torch.tensor([-1, 1, -1]), torch.zeros(3, HIGH)
    vllm_plugin.bgmv_expand(weights(3, RANK), weights(ADAPTERS, HIGH, RANK), out, indices)
    assert [bool(row.any()) for row in out] == [False, True, False]


def test_the_plugin_is_loaded_only_if_it_is_enabled(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="gumshoe")
    theirs = own.bgmv_shrink
    monkeypatch.delenv(vllm_plugin.ENABLE_VARIABLE, raising=False)
    found.load()()
    assert own.bgmv_shrink is theirs
    monkeypatch.setenv(vllm_plugin.ENABLE_VARIABLE, "1")
    found.load()()
    assert own.bgmv_shrink is vllm_plugin.bgmv_shrink
