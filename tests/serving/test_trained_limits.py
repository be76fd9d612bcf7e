"""An adapter is served with the limits that it was trained with, unless the user sets others."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gumshoe.serving.trained_limits import ServedLimits
from tests.inference.fake_vllm import FakeVLLM, write_tokenizer
from tests.serving.agent_server import ANN, ServerFiles
from tests.serving.in_process import make_scenario, open_test_service

TRAINED = {"rollouts": {"max_turns": 6, "max_tokens": 120, "draws": 1}, "model": {"max_context": 4096}}


def trained(directory: Path, settings: Any = TRAINED) -> Path:
    """Write the metadata of an adapter."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metadata.json").write_text(json.dumps({"settings": settings}))
    return directory


def test_given_limits_come_before_those_of_the_training_and_the_defaults(tmp_path: Path) -> None:
    adapter, model = trained(tmp_path / "adapter"), tmp_path / "model"
    assert ServedLimits.of([]) == ServedLimits(10, 512, 8192)
    assert ServedLimits.of([model, adapter]) == ServedLimits(6, 120, 4096)
    assert ServedLimits.of([adapter], max_turns=8) == ServedLimits(8, 120, 4096)


def test_the_record_of_a_warm_start_counts_too(tmp_path: Path) -> None:
    (tmp_path / "warm_start.json").write_text(json.dumps({"spec": {"settings": TRAINED}, "report": {}}))
    assert ServedLimits.of([tmp_path]) == ServedLimits(6, 120, 4096)
    trained(tmp_path, {**TRAINED, "model": {"max_context": 2048}})
    assert ServedLimits.of([tmp_path]) == ServedLimits(6, 120, 2048), "a later training"


@pytest.mark.parametrize("settings", [None, {}, {"rollouts": {"max_turns": 6}}, {**TRAINED, "rollouts": "none"}])
def test_metadata_of_other_programs_is_ignored(tmp_path: Path, settings: Any) -> None:
    assert ServedLimits.of([trained(tmp_path, settings)]) == ServedLimits()


def test_a_server_has_the_limits_of_its_adapter(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "adapter")
    trained(tmp_path / "adapter")

    async def ask(**settings: Any) -> tuple[ServedLimits, set[int]]:
        model.requests.clear()
        given = {"tokenizer": str(tmp_path / "adapter"), **settings}
        async with open_test_service(place, model.address, {}, **given) as service:
            await service.answer(make_scenario(), None, lambda _: None, ANN)
            limits = service.settings.model.limits
        return limits, {each["max_tokens"] for each in model.requests if each.get("top_k") != 1}

    assert asyncio.run(ask()) == (ServedLimits(6, 120, 50_000), {120})
    assert asyncio.run(ask(max_tokens=200, max_context=None)) == (ServedLimits(6, 200, 4096), {200})


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
    adapter = str(trained(tmp_path / "adapter"))
    for given in ((None, None), (3, 64)):
        local = ask.LocalModel(adapter, None, "tiny", None, None, *given)
        with pytest.raises(OpenedError):
            asyncio.run(ask.answer_locally(ask.Question(place.index, ANN, None, "When?"), local, 0.5))
    assert found == [(0.5, 120, 6, 4096), (0.5, 64, 3, 4096)]
