"""Evaluations of chat models that call in parallel, think at length, stop early or make mistakes; chat settings."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.recorded import write_environment
from gumshoe.environments.registry import EnvironmentSettings, open_env
from gumshoe.evaluation.evaluation_step import EvaluationLimits
from gumshoe.evaluation.predictions import read_predictions
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_model import DEFAULT_THINKING_BUDGET
from gumshoe.rollouts.policy_limits import PolicyLimits
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult
from tests.evaluation.conftest import QUESTIONS, Place
from tests.evaluation.test_commands import options
from tests.inference.fake_chat import FakeChatModel
from tests.inference.fake_vllm import FakeVLLM
from tests.rollouts.test_policy_limits import TRAINED, write_trained

Run = Callable[..., CommandResult]
MODELS = {
    "plain": FakeChatModel(),
    "parallel": FakeChatModel(parallel=True),
    "thinker": FakeChatModel(thinks=2000),
    "lost": FakeChatModel(thinks=DEFAULT_THINKING_BUDGET + 513),
    "stopper": FakeChatModel(stops_after=1),
}
RIGHT = 1 + 0.3 + 0.1 + 0.1 * 7 / 10  # reward of a correct answer in 3 of 10 turns


def chat(request: dict[str, Any]) -> dict[str, Any]:
    return MODELS[request["model"]](request)


def measure(run: Run, place: Place, out: Path, **changes: object) -> dict[str, dict[str, float]]:
    """Evaluate all models. Return their metrics by name."""
    with FakeVLLM(models=tuple(MODELS), chat=chat) as server:
        ran = run(*options(place, out, *(f"{name}=chat:{name}@{server.address}/v1" for name in MODELS), **changes))
    assert ran.status == 0, ran.err
    assert server.errors == []
    found = EvaluationResult.model_validate_json((out / "metrics.json").read_bytes())
    return {each.name: {name: metric.value for name, metric in each.metrics.items()} for each in found.policies}


@pytest.mark.ci
def test_models_get_the_scores_that_they_should(run: Run, place: Place, tmp_path: Path) -> None:
    found = measure(run, place, tmp_path / "e")
    names = ("accuracy", "reward", "truncated", "no_call", "unusable", "turns", "searches", "mistakes")
    assert {model: [metrics[name] for name in names] for model, metrics in found.items()} == {
        "plain": pytest.approx([1, RIGHT, 0, 0, 0, 3, 1, 0]),
        "parallel": pytest.approx([1, RIGHT, 0, 0, 0, 3, 2, 0]),
        "thinker": pytest.approx([1, RIGHT, 0, 0, 0, 3, 1, 0]),
        "lost": pytest.approx([0, -1.8 + 0.1, 1, 0, 1, 1, 0, 0]),
        "stopper": pytest.approx([0, -1.8 + 0.2, 0, 1, 1, 2, 1, 0]),
    }
    assert found["thinker"]["sampled_tokens"] > 3 * 2000 > found["plain"]["sampled_tokens"]


@pytest.mark.ci
def test_mistakes_that_are_answered_are_counted(run: Run, place: Place, tmp_path: Path) -> None:
    found = measure(run, place, tmp_path / "e", chat="{on_bad_call: reply, max_bad_calls: 2}")
    assert [found["stopper"][name] for name in ("mistakes", "turns", "no_call")] == [2, 4, 1]
    assert found["stopper"]["reward"] == pytest.approx(-1.8 + 0.2 - 2 * 0.2)
    predictions = read_predictions(tmp_path / "e" / "predictions.jsonl")
    assert sum(each.mistakes for each in predictions) == 2 * QUESTIONS


def settings_of(directory: Path) -> dict[str, Any]:
    """Return the chat settings in the results of an evaluation, or an empty object."""
    found = EvaluationResult.model_validate_json((directory / "metrics.json").read_bytes()).settings.get("chat", {})
    assert json.loads((directory / "evaluation.json").read_bytes()).get("chat", {}) == found
    return dict(found)


def write_adapter(directory: Path, place: Place, settings: ChatSettings, **environment: Any) -> Path:
    """Write what is recorded with an adapter: its settings, and that it has not seen the test split."""
    directory.mkdir()
    settings.write(directory)
    if environment:
        named = EnvironmentSettings(name="email", arguments=environment)
        write_environment(open_env(place.index, named), directory)
    Lineage(learned_from=load_scenarios(str(place.scenarios)).only("train").to_record()).write(directory)
    return directory


def test_policies_of_one_evaluation_have_the_chat_settings_of_the_adapter(
    run: Run, place: Place, tmp_path: Path
) -> None:
    first = write_adapter(tmp_path / "first", place, ChatSettings(parallel_calls="refuse"))
    second = write_adapter(tmp_path / "second", place, ChatSettings(max_bad_calls=1))
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400, "limit": 1}
    with FakeVLLM(models=("base", "adapter"), chat=FakeChatModel()) as server:
        policies = f"plain=chat:base@{server.address}/v1", f"trained=vllm:{server.address}#adapter"
        ran = run(*options(place, tmp_path / "e", *policies, **given, adapter=f"trained={first}"))
        assert ran.status == 0, ran.err
        chats = [each for each in server.requests if "messages" in each]
        assert [each["parallel_tool_calls"] for each in chats] == [False] * 3
        assert settings_of(tmp_path / "e") == {"parallel_calls": "refuse"}
        server.requests.clear()
        for code, changes in (
            ("rollouts.other-chat-settings", {"chat": "{on_bad_call: reply}", "adapter": f"trained={first}"}),
            ("evaluation.different-chat-settings", {"adapter": [f"trained={first}", f"plain={second}"]}),
        ):
            ran = run(*options(place, tmp_path / "f", *policies, **given, **changes))
            assert (ran.status, ran.code) == (2, code)
            assert str(first) in ran.err
        assert not server.requests


def test_the_chat_settings_of_an_adapter_are_used_whatever_its_base_model_was_trained_with(
    run: Run, place: Place, tmp_path: Path
) -> None:
    base = shutil.copytree(place.tokenizer, tmp_path / "base")
    ChatSettings(max_bad_calls=1).write(base)
    for name, settings in (("adapter", ChatSettings(parallel_calls="refuse")), ("other", ChatSettings())):
        adapter = write_adapter(tmp_path / name, place, settings)
        given: dict[str, Any] = {"tokenizer": base, "max_tokens": 400, "limit": 1, "adapter": f"a={adapter}"}
        with FakeVLLM() as server:
            ran = run(*options(place, tmp_path / f"{name} e", f"a=vllm:{server.address}#adapter", **given))
        assert ran.status == 0, ran.err
        assert settings_of(tmp_path / f"{name} e") == settings.model_dump(exclude_defaults=True)
        (episode, *_) = read_trajectories(tmp_path / f"{name} e" / "trajectories" / "a.jsonl")
        assert episode.settings.get("chat", {}) == settings.model_dump(exclude_defaults=True)


def test_policies_of_one_evaluation_have_the_environment_of_the_adapter(run: Run, place: Place, tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "first", place, ChatSettings(), hits=2, handles=True)
    second = write_adapter(tmp_path / "second", place, ChatSettings(), hits=3)
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400, "limit": 1}
    with FakeVLLM(models=("base", "adapter"), chat=FakeChatModel()) as server:
        policies = f"plain=chat:base@{server.address}/v1", f"trained=vllm:{server.address}#adapter"
        ran = run(*options(place, tmp_path / "e", *policies, **given, adapter=f"trained={first}"))
        assert ran.status == 0, ran.err
        recorded = json.loads((tmp_path / "e" / "evaluation.json").read_bytes())["environment"]
        assert {name: recorded[name] for name in ("hits", "handles", "threads")} == {
            "hits": 2,
            "handles": True,
            "threads": True,
        }
        for code, changes in (
            ("environments.other-environment", {"environment": "{email: {hits: 4}}", "adapter": f"trained={first}"}),
            ("evaluation.different-environments", {"adapter": [f"trained={first}", f"plain={second}"]}),
        ):
            ran = run(*options(place, tmp_path / "f", *policies, **given, **changes))
            assert (ran.status, ran.code) == (2, code)
            assert str(first) in ran.err


def test_policies_of_one_evaluation_have_the_limits_of_the_adapter(run: Run, place: Place, tmp_path: Path) -> None:
    first = write_trained(write_adapter(tmp_path / "first", place, ChatSettings()))
    other = {**TRAINED, "rollouts": {"max_turns": 8, "max_tokens": 120}}
    second = write_trained(write_adapter(tmp_path / "second", place, ChatSettings()), other)
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "limit": 1}
    with FakeVLLM(models=("base", "adapter"), chat=FakeChatModel()) as server:
        policies = f"plain=chat:base@{server.address}/v1", f"trained=vllm:{server.address}#adapter"
        assert run(*options(place, tmp_path / "e", policies[0], limit=1)).status == 0
        late = run(*options(place, tmp_path / "e", *policies, **given, adapter=f"trained={first}"))
        assert (late.status, late.code) == (2, "evaluation.settings-changed")
        assert "max_tokens and max_turns are those of a policy's training" in late.err
        ran = run(*options(place, tmp_path / "f", *policies, **given, adapter=f"trained={first}"))
        assert ran.status == 0, ran.err
        recorded = json.loads((tmp_path / "f" / "evaluation.json").read_bytes())
        assert [recorded[each] for each in ("max_turns", "max_tokens", "max_context")] == [6, 120, 50_000]
        both = {**given, "adapter": [f"trained={first}", f"plain={second}"]}
        refused = run(*options(place, tmp_path / "g", *policies, **both))
        assert (refused.status, refused.code) == (2, "evaluation.different-limits")
        assert "max_turns 8" in refused.err
        assert run(*options(place, tmp_path / "g", *policies, **both, max_turns=7)).status == 0


def test_a_step_of_a_pipeline_has_the_limits_of_the_adapter_then_of_its_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = write_trained(tmp_path / "base"), tmp_path / "adapter"
    limits = EvaluationLimits.from_mapping({"max_tokens": 200})
    assert limits.find_limits(str(base), adapter) == PolicyLimits(6, 200, 4096)
    write_trained(adapter, {**TRAINED, "rollouts": {"max_turns": 3, "max_tokens": 120}})
    assert limits.find_limits(str(base), adapter) == PolicyLimits(3, 200, 4096)
    assert limits.find_limits("tiny") == PolicyLimits(10, 200, 8192)
    monkeypatch.chdir(tmp_path)
    write_trained(Path("tiny"))
    assert limits.find_limits("tiny") == PolicyLimits(10, 200, 8192), "a name comes before a directory"


def test_chat_settings_are_recorded_and_cannot_change(run: Run, place: Place, tmp_path: Path) -> None:
    with FakeVLLM(models=("plain",), chat=FakeChatModel()) as server:
        policy, given = f"a=chat:plain@{server.address}/v1", {"limit": 1, "chat": "{parallel_calls: refuse}"}
        assert run(*options(place, tmp_path / "e", policy, **given)).status == 0
        assert {each.get("parallel_tool_calls") for each in server.requests} == {False}
        assert settings_of(tmp_path / "e") == {"parallel_calls": "refuse"}
        assert run(*options(place, tmp_path / "f", policy, **given | {"chat": "{on_bad_call: end}"})).status == 0
        assert settings_of(tmp_path / "f") == {}, "the defaults are those of evaluations without chat settings"
        for directory, chat in (("e", "{on_bad_call: reply}"), ("e", "{}"), ("f", "{on_bad_call: reply}")):
            other = run(*options(place, tmp_path / directory, policy, **given | {"chat": chat}))
            assert (other.status, other.code) == (2, "evaluation.settings-changed"), (directory, chat)
