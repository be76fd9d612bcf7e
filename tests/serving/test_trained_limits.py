"""An adapter is served with the limits that it was trained with, unless the user sets others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rollouts.policy_limits import PolicyLimits
from tests.inference.fake_vllm import FakeVLLM, write_tokenizer
from tests.rollouts.test_policy_limits import write_trained
from tests.serving.agent_server import ANN, ServerFiles
from tests.serving.in_process import make_scenario, open_test_service


def test_a_server_has_the_limits_of_its_adapter(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "adapter")
    write_trained(tmp_path / "adapter")

    async def ask(**settings: Any) -> tuple[PolicyLimits, set[int]]:
        model.requests.clear()
        given = {"tokenizer": str(tmp_path / "adapter"), **settings}
        async with open_test_service(place, model.address, {}, **given) as service:
            await service.answer(make_scenario(), None, lambda _: None, ANN)
            limits = service.settings.model.limits
        return limits, {each["max_tokens"] for each in model.requests if each.get("top_k") != 1}

    assert asyncio.run(ask()) == (PolicyLimits(6, 120, 50_000), {120})
    assert asyncio.run(ask(max_tokens=200, max_context=None)) == (PolicyLimits(6, 200, 4096), {200})


def test_a_question_is_answered_with_the_limits_of_the_adapter(
    place: ServerFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving import ask

    found = []

    class OpenedError(Exception):
        """The policy is opened with these arguments."""

    def open_policy(_: Any, __: Any, sampling: Any, limits: Any, **___: Any) -> None:
        found.append((sampling.temperature, sampling.max_tokens, limits.max_turns, limits.max_context))
        raise OpenedError

    monkeypatch.setattr(ask, "open_policy", open_policy)
    adapter = str(write_trained(tmp_path / "adapter"))
    for given in ((None, None), (3, 64)):
        local = ask.LocalModel(adapter, None, "tiny", None, None, *given)
        with pytest.raises(OpenedError):
            asyncio.run(ask.answer_locally(ask.Question(place.index, ANN, None, "When?"), local, 0.5))
    assert found == [(0.5, 120, 6, 4096), (0.5, 64, 3, 4096)]
