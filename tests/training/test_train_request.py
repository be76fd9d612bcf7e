"""Training requests: resolved to settings, published to a store, and fetched on other machines."""

import shutil
from pathlib import Path

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.training.train_request import TrainRequest
from tests.errors import raises


@pytest.fixture
def request_of_step(tmp_path: Path) -> TrainRequest:
    """Return a step's request with an index, scenarios and an adapter to start from."""
    for name, file in (
        ("index", "mail-index.json"),
        ("questions", "scenarios.jsonl"),
        ("start", "adapter_config.json"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(name)
    places = (tmp_path / name for name in ("index", "questions", "start"))
    index, scenarios, start = places
    store = (tmp_path / "store" / "runs" / "r1").as_uri()
    return TrainRequest.of_step(index, scenarios, "tiny", "tiny", {"optimizer.max_steps": 3}, store, start)


def test_inputs_of_a_step_become_settings(request_of_step: TrainRequest) -> None:
    found = request_of_step.resolve()
    assert (found.model.name, found.optimizer.max_steps, found.data.eval_size) == ("tiny", 3, 48)
    assert found.output.checkpoints == request_of_step.checkpoints
    assert str(found.lora.start) == request_of_step.start


def test_a_directory_without_an_adapter_is_no_start(tmp_path: Path) -> None:
    request = TrainRequest.of_step(tmp_path, tmp_path, "tiny", "", {}, tmp_path.as_uri(), tmp_path)
    assert request.start == ""
    assert request.resolve().lora.start is None


def test_inputs_are_published_once_and_fetched_elsewhere(request_of_step: TrainRequest, tmp_path: Path) -> None:
    published = request_of_step.publish()
    assert published == request_of_step.publish()
    assert len(Store(published.checkpoints).list("inputs/index")) == 1
    assert published.index.startswith("inputs/index/")
    sent = TrainRequest.model_validate_json(published.model_dump_json())
    assert sent.result == published.result != request_of_step.result
    here = sent.fetch(tmp_path / "elsewhere")
    assert Path(here.index, "mail-index.json").read_text() == "index"
    assert Path(here.scenarios).read_text() == "questions"
    assert Path(here.start, "adapter_config.json").read_text() == "start"


def test_a_changed_file_of_settings_has_no_result_yet(request_of_step: TrainRequest, tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    request = request_of_step.model_copy(update={"config": str(config)})
    found = []
    for text in ("seed: 1", "seed: 2"):
        config.write_text(f"data: {{{text}}}")
        found.append(request.publish().result)
        again = shutil.copytree(request.start, tmp_path / f"again-{len(found)}")
        found.append(request.model_copy(update={"start": str(again)}).publish().result)
    assert found[0] == found[1] != found[2] == found[3]


def test_a_wrong_setting_is_named(request_of_step: TrainRequest) -> None:
    with raises("settings.unknown-name", "optimizer.speed"):
        request_of_step.with_settings({"optimizer.speed": 1}).resolve()
