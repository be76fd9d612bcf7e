"""The checkpoints of a run's directory, the splits of its scenarios, and the adapter that it starts from."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.recorded import write_environment
from gumshoe.environments.registry import EnvironmentSettings, open_env
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.training.run_spec import (
    METADATA,
    check_start_chat,
    expired_checkpoints,
    find_checkpoints,
    load_splits,
    open_run_env,
    step_of,
)
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import DataSettings, LoraSettings, ModelSettings
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions


def test_a_run_has_the_environment_of_its_start_except_settings_of_its_own(tmp_path: Path) -> None:
    index = make_index(tmp_path / "mail", [record(1)]).directory
    (tmp_path / "start").mkdir()
    write_environment(
        open_env(index, EnvironmentSettings.parse("{email: {hits: 4, handles: true}}")), tmp_path / "start"
    )

    def find(**given: Any) -> tuple[int, bool]:
        settings = TrainSettings.model_validate({"lora": LoraSettings(start=tmp_path / "start"), **given})
        found = open_run_env(settings, index).arguments
        return found["hits"], found["handles"]

    assert find() == find(environment="email") == (4, True)
    assert find(environment="{email: {hits: 6}}") == (6, True)
    collection = make_collection(tmp_path / "documents", [page(1)])
    assert open_run_env(TrainSettings(lora=LoraSettings(start=tmp_path / "start")), collection).name == "documents"


def test_a_run_has_the_custom_environment_of_its_start(tmp_path: Path) -> None:
    index, start = make_index(tmp_path / "mail", [record(1)]).directory, tmp_path / "start"
    start.mkdir()
    own = "tests.environments.own_environments:NotesEnvironment"
    write_environment(open_env(index, EnvironmentSettings(name=own, arguments={"shouting": True})), start)

    def find(**given: Any) -> tuple[str, Any]:
        settings = TrainSettings.model_validate({"lora": LoraSettings(start=start), **given})
        env = open_run_env(settings, index)
        return env.name, env.arguments.get("shouting")

    assert find() == find(environment=own) == (own, True)
    assert find(environment={own: {"shouting": False}}) == (own, False)
    assert find(environment="email") == ("email", None)


def test_incomplete_checkpoints_do_not_count(tmp_path: Path) -> None:
    """A complete one has its metadata, which is written last."""
    for step, is_whole in ((10, True), (9, True), (100, True), (110, False)):
        place = tmp_path / f"checkpoint-{step}"
        place.mkdir()
        (place / "adapter_model.safetensors").write_bytes(b"cut o")
        if is_whole:
            (place / METADATA).write_text("{}")
    assert [step_of(each) for each in find_checkpoints(tmp_path)] == [9, 10, 100]
    assert find_checkpoints(tmp_path / "none") == []


def test_splits_are_loaded_up_to_their_sizes(tmp_path: Path) -> None:
    split = ["train"] * 5 + ["validation"] * 3 + ["test"] * 2
    asked = [question(number, split=part) for number, part in enumerate(split, 1)]
    scenarios = write_questions(tmp_path / "q.jsonl", asked)
    train, validation = load_splits(TrainSettings(), scenarios)
    assert ([each.split for each in train], [each.split for each in validation]) == (split[:5], split[5:8])
    few = TrainSettings(data=DataSettings(train_size=2, eval_size=1))
    assert [len(each) for each in load_splits(few, scenarios)] == [2, 1]


def test_an_empty_split_is_rejected(tmp_path: Path) -> None:
    scenarios = write_questions(tmp_path / "q.jsonl", [question(1, split="train")])
    with raises("training.empty-split", scenarios, "split validation"):
        load_splits(TrainSettings(), scenarios)


@pytest.mark.parametrize(("limit", "expired"), [(1, [9, 10, 100]), (2, [9, 10]), (3, [9]), (4, []), (9, [])])
def test_the_oldest_checkpoints_expire(limit: int, expired: list[int]) -> None:
    found = [Path(f"checkpoint-{step}") for step in (100, 9, 1000, 10)]
    assert [step_of(each) for each in expired_checkpoints(found, limit)] == expired
    assert expired_checkpoints([], limit) == []


def test_the_adapter_to_start_from_knows_the_chat_template(tmp_path: Path) -> None:
    kwargs = {"enable_thinking": False}
    lora = LoraSettings(start=tmp_path)
    check_start_chat(TrainSettings(lora=lora))
    ChatSettings(template_kwargs=kwargs, thinking_budget=9).write(tmp_path)
    check_start_chat(TrainSettings(lora=lora, chat=ChatSettings(template_kwargs=kwargs)))
    with raises("adapters.other-chat-template", tmp_path):
        check_start_chat(TrainSettings(lora=lora))


def test_the_base_model_knows_the_chat_template(tmp_path: Path) -> None:
    base, start = tmp_path / "base", tmp_path / "start"
    for each in (base, start):
        each.mkdir()
    kwargs, model = {"enable_thinking": False}, ModelSettings(name=str(base))
    ChatSettings(template_kwargs=kwargs, thinking_budget=9).write(base)
    check_start_chat(TrainSettings(model=model, chat=ChatSettings(template_kwargs=kwargs)))
    with raises("adapters.other-chat-template", "model.name", base):
        check_start_chat(TrainSettings(model=model))
    ChatSettings().write(start)
    check_start_chat(TrainSettings(model=model, lora=LoraSettings(start=start)))
