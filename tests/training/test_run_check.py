"""Check a pipeline's training before its first expensive step: comparable evaluations, and digests for the cache."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.environments.registry import EnvironmentSettings
from gumshoe.inference.policy_names import TINY
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.training.models.base_model import AdapterBase, identify_base_model
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions

MODEL = "Qwen/Qwen2.5-7B-Instruct"
HANDLES = {"email": {"handles": True}}
A_COMMIT, OTHER_COMMIT = "a" * 40, "b" * 40
BUDGET = {"thinking_budget": 64}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a mail index, beside scenarios."""
    place = tmp_path_factory.mktemp("mail")
    make_index(place, [record(1)])
    splits = ["train"] * 12 + ["validation", "test"]
    write_questions(place / SCENARIOS_FILE, [question(number, split=split) for number, split in enumerate(splits)])
    return place / "index"


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """Return the directory of the adapter in service."""
    place = tmp_path / "current"
    place.mkdir()
    return place


def write_env(place: Path, arguments: dict[str, Any], name: str = "email") -> None:
    settings = EnvironmentSettings(name=name, arguments=arguments)
    (place / "environment.json").write_text(settings.model_dump_json())


def check(index: Path, **inputs: Any) -> tuple[str, str]:
    """Run the step in this process, and return its digests."""
    from gumshoe_pipelines.training_check_step import check_training

    given = {"base_model": MODEL, "config": "", "limits": {}, "nodes": 1, "gpus": 1, "job": {}, **inputs}
    if "current" in given:
        given["current"] = SimpleNamespace(path=str(given["current"]))
    places = SimpleNamespace(path=str(index)), SimpleNamespace(path=str(index.parent))
    found: tuple[str, str] = check_training.python_func(*places, **given)
    return found


def test_evaluations_must_have_the_environment_and_the_chat_settings_of_training(index: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"environment": HANDLES, "chat": BUDGET}))
    given = {"config": str(config)}
    with raises("training.other-chat-settings-in-evaluations", "limits.chat", json.dumps(BUDGET).replace(" ", "")):
        check(index, **given)
    with raises("training.other-environment-in-evaluations", "limits.environment", '"handles": true'):
        check(index, **given, limits={"chat": BUDGET})
    check(index, **given, limits={"chat": BUDGET, "environment": HANDLES})
    check(index, settings={"environment": "email"})


def test_evaluations_have_the_limits_of_training_unless_others_are_given(index: Path) -> None:
    settings = {"rollouts.max_turns": 6, "model.max_context": 4096}
    with raises("training.other-limits-in-evaluations", "{max_turns: 6, max_context: 4096}", "max_turns: 10"):
        check(index, settings=settings)
    with raises("training.other-limits-in-evaluations", "{max_context: 4096}"):
        check(index, settings=settings, limits={"max_turns": 8})
    with raises("training.other-limits-in-evaluations", "{max_turns: 6}"):
        check(index, settings=settings, limits={"max_turns": None, "max_context": 4096})
    check(index, settings=settings, limits={"max_turns": 8, "max_context": 4096})


def test_each_entry_of_a_sweep_is_checked(index: Path) -> None:
    sweep = [{"name": "a", "settings": {}}, {"name": "b", "settings": {"environment": HANDLES}}]
    with raises("training.other-environment-in-evaluations", '"handles": true'):
        check(index, sweep=sweep)
    check(index, sweep=sweep[:1])


def test_the_adapter_in_service_must_have_the_environment_of_the_run(index: Path, current: Path) -> None:
    check(index, current=current)
    write_env(current, {"handles": True, "marks": True, "attachments": True})
    with raises("training.other-environment-in-service", '"handles": true', "against"):
        check(index, current=current)
    check(index, current=current, settings={"environment": HANDLES}, limits={"environment": HANDLES})


def test_marks_and_attachments_that_are_not_recorded_are_off(index: Path, current: Path) -> None:
    write_env(current, {})
    with raises("training.other-environment-in-service", '"marks": false, "attachments": false'):
        check(index, current=current)
    off = {"email": {"marks": False, "attachments": False}}
    check(index, current=current, settings={"environment": off}, limits={"environment": off})


def test_an_adapter_of_another_environment_is_refused(index: Path, current: Path) -> None:
    write_env(current, {}, "my_package.wiki:Wiki")
    with raises("training.other-environment-in-service", "my_package.wiki:Wiki"):
        check(index, current=current, settings={"mode": "simple"})


def test_the_adapter_in_service_must_have_the_chat_settings_of_the_run(index: Path, current: Path) -> None:
    ChatSettings.model_validate(BUDGET).write(current)
    with raises("training.other-chat-settings-in-service", '"thinking_budget":64', "against"):
        check(index, current=current)
    check(index, current=current, settings={"chat": BUDGET}, limits={"chat": BUDGET})


@pytest.mark.parametrize(
    ("recorded", "base_model", "by"),
    [
        ({"name": "tiny", "fingerprint": "0" * 32, "stored": "full"}, "tiny", "the weights' fingerprint"),
        ({"name": "Qwen/Qwen3-8B", "revision": "abc", "fingerprint": "0" * 32, "stored": "full"}, MODEL, "names"),
        (
            {"name": "Qwen/Qwen3-8B:main", "revision": A_COMMIT, "fingerprint": "0" * 32, "stored": "full"},
            f"Qwen/Qwen3-8B:{OTHER_COMMIT}",
            A_COMMIT,
        ),
    ],
)
def test_the_adapter_in_service_must_be_for_the_base_model_of_the_run(
    index: Path, current: Path, recorded: dict[str, Any], base_model: str, by: str
) -> None:
    AdapterBase(quantization="none", **recorded).write(current)
    with raises("training.other-base-in-service", f"base_model to {recorded['name'].partition(':')[0]}", "against", by):
        check(index, base_model=base_model, current=current)


def test_the_adapter_in_service_may_name_the_same_base_model_in_another_way(index: Path, current: Path) -> None:
    ours = identify_base_model("tiny", str(TINY), "none")
    other_path = ours.model_copy(update={"name": "/models/tiny", "quantization": "nf4"})
    same_name = AdapterBase(name=MODEL, quantization="none", revision="abc", fingerprint="0" * 32, stored="full")
    directory = AdapterBase(name="/models/qwen", quantization="none", fingerprint="0" * 32, stored="full")
    for recorded, base_model in (
        (other_path, "tiny"),
        (same_name, MODEL),
        (directory, MODEL),
        (same_name.model_copy(update={"revision": A_COMMIT}), f"{MODEL}:{A_COMMIT}"),
        (same_name.model_copy(update={"revision": A_COMMIT, "name": f"{MODEL}:{A_COMMIT}"}), MODEL),
        (same_name.model_copy(update={"revision": A_COMMIT}), f"{MODEL}:main"),
        (same_name.model_copy(update={"name": MODEL.lower()}), MODEL),
    ):
        recorded.write(current)
        check(index, base_model=base_model, current=current)


def test_without_any_fingerprint_another_name_of_the_base_model_is_a_warning(
    index: Path, current: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be that of a copy."""
    AdapterBase(name="mirror/Qwen2.5-7B", quantization="none", revision=A_COMMIT).write(current)
    check(index, current=current)
    assert "mirror/Qwen2.5-7B" in capsys.readouterr().err


def test_the_digests_change_with_what_cached_steps_read(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config, episodes = tmp_path / "model", tmp_path / "config.yaml", tmp_path / "episodes.jsonl"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("old")
    config.write_text("optimizer: {learning_rate: 1e-4}")
    episodes.write_text("old")
    given = {"base_model": str(model), "config": str(config), "demonstrations": str(episodes)}
    found = [check(index, **given)]
    assert check(index, **given) == found[0]
    for path, text in ((config, "optimizer: {learning_rate: 1e-5}"), (episodes, "better"), (model / "new", "")):
        path.write_text(text)
        found.append(check(index, **given))
    monkeypatch.setenv("LEARNING_RATE", "1e-6")
    found.append(check(index, **given))
    baselines, trainings = zip(*found, strict=True)
    assert len(set(trainings)) == len(found)
    assert [each == baselines[0] for each in baselines] == [True, True, True, False, False]


def test_the_digest_of_training_changes_with_the_code_of_a_reward_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.training.run_check import digest_inputs, resolve_entries

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward_of_a_user.py").write_text("LONGEST = 3")
    rewards = {"rewards.functions": [{"name": "reward_of_a_user:brevity"}]}
    found = [digest_inputs(MODEL, {}, resolve_entries(MODEL, "", [rewards]), "")]
    (tmp_path / "reward_of_a_user.py").write_text("LONGEST = 4")
    found.append(digest_inputs(MODEL, {}, resolve_entries(MODEL, "", [rewards]), ""))
    assert found[0].baseline == found[1].baseline
    assert found[0].training != found[1].training


def test_the_digests_change_with_the_code_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.training.run_check import digest_inputs

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = []
    for text in ("HITS = 3", "HITS = 4"):
        (tmp_path / "wiki_of_a_user.py").write_text(text)
        found.append(digest_inputs(MODEL, {"environment": "wiki_of_a_user:Wiki"}, [], ""))
    assert found[0].baseline != found[1].baseline
    assert found[0].training != found[1].training
