"""The model card of an adapter: results, data and how to load it, from the files beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.model_card import write_model_card

RUN: dict[str, Any] = {
    "run": "r7",
    "step": 40,
    "searched": "f" * 64,
    "versions": {"trl": "1.16.0"},
    "settings": {
        "mode": "masked",
        "model": {"name": "Qwen/Qwen3-4B"},
        "optimizer": {"algorithm": {"name": "dapo", "settings": {}}},
    },
}
LINEAGE = {
    "learned_from": {"content": "a" * 64, "ids": ["1", "2"], "questions": ["x", "y"]},
    "chosen_on": {"content": "b" * 64, "ids": ["3"], "questions": ["z"]},
    "before": None,
}
GATE = {
    "passed": True,
    "why": "adapter passes: +20.0% accuracy.",
    "comparison": {
        "baseline": "base",
        "candidate": "adapter",
        "questions": 1200,
        "level": 0.95,
        "p_value": 0.0012,
        "accuracy": {"candidate": 0.7, "baseline": 0.5, "difference": 0.2, "low": 0.15, "high": 0.25},
    },
}


def write(directory: Path, base: str = "Qwen/Qwen3-4B", **files: Any) -> tuple[dict[str, Any], str]:
    """Write a card beside these files, and return its front matter and its text."""
    content = {"adapter_config": {"base_model_name_or_path": base, "r": 16}, **files}
    for name, each in content.items():
        (directory / f"{name}.json").write_text(json.dumps(each))
    (directory / "README.md").write_text("## TRL's boilerplate")
    write_model_card(directory)
    _, front, body = (directory / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_card_of_a_published_adapter_has_results_data_and_how_to_load_it(tmp_path: Path) -> None:
    front, body = write(tmp_path, metadata=RUN, scenarios=LINEAGE, gate=GATE)
    assert (front["base_model"], front["library_name"]) == ("Qwen/Qwen3-4B", "peft")
    assert {"lora", "dapo"} <= set(front["tags"])
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.7
    for each in (
        *("r7, step 40", "rank 16", "dapo in mode masked", "1,200 test questions", "70.0%", "+15.0% to +25.0%"),
        *("0.0012", "adapter passes", "2 questions trained on", "aaaaaaaaaaaa…", "1 questions used", "trl 1.16.0"),
        *("--max-lora-rank 16", 'from_pretrained("Qwen/Qwen3-4B"'),
    ):
        assert each in body
    assert "boilerplate" not in body


@pytest.mark.parametrize(("rank", "largest"), [(1, 1), (4, 8), (16, 16), (48, 64), (257, 320)])
def test_the_card_starts_vllm_with_a_rank_that_it_accepts(rank: int, largest: int, tmp_path: Path) -> None:
    _, body = write(tmp_path, adapter_config={"base_model_name_or_path": "Qwen/Qwen3-4B", "r": rank})
    assert f"--max-lora-rank {largest} " in body
    assert f"rank {rank}" in body


@pytest.mark.parametrize("base", ["/home/ann/models/mine", "./models/mine", "gguf:models/mine"])
def test_a_new_adapter_has_no_results_and_does_not_tell_where_its_base_model_was(base: str, tmp_path: Path) -> None:
    front, body = write(tmp_path, base)
    assert "base_model" not in front
    assert "model-index" not in front
    assert "not been evaluated" in body
    assert "`mine`" in body
    assert "ann" not in body.replace("than", "")
    assert 'from_pretrained("BASE"' in body


def test_a_converted_model_has_its_own_name_and_not_that_of_its_directory(tmp_path: Path) -> None:
    base = "/home/ann/.cache/gumshoe/base-models/small-1b-b179c9523d0e6a0f-v1"
    front, body = write(tmp_path, base, base_model={"name": "small-1b", "fingerprint": "4e2c", "revision": None})
    assert "base_model" not in front
    assert "BASE the one of small-1b." in body
    assert "b179" not in body


@pytest.mark.parametrize(("environment", "option"), [("email", " --inbox ADDRESS"), ("documents", "")])
def test_the_card_asks_for_an_inbox_if_the_questions_are_about_one(
    environment: str, option: str, tmp_path: Path
) -> None:
    _, body = write(tmp_path, environment={"name": environment, "arguments": {}})
    assert f"--index INDEX{option}`" in body


@pytest.mark.parametrize(
    ("base", "record", "is_on_hub"),
    [
        ("outputs/base", {"name": "outputs/base", "fingerprint": "4e2c"}, False),
        ("acme/model", {"name": "acme/model", "fingerprint": "4e2c", "revision": "9f"}, True),
        ("acme/model:v1", {"name": "acme/model:v1", "fingerprint": None, "revision": None}, True),
        ("acme/model", {"name": "outputs/copy", "fingerprint": "4e2c"}, True),
        ("outputs/a/base", {}, False),
        ("~/base", {}, False),
    ],
)
def test_a_relative_directory_is_not_taken_for_a_model_of_the_hub(
    base: str, record: dict[str, Any], is_on_hub: bool, tmp_path: Path
) -> None:
    front, _ = write(tmp_path, base, base_model=record)
    assert front.get("base_model") == (base.partition(":")[0] if is_on_hub else None)


@pytest.mark.parametrize(
    ("agent", "option"),
    [
        (None, ""),
        ({"name": "mine.agent:graph"}, " --agent mine.agent:graph"),
        ({"command": ["/home/ann/x"]}, " --agent AGENT"),
    ],
)
def test_the_card_names_the_agent_that_ran_the_episodes(agent: Any, option: str, tmp_path: Path) -> None:
    _, body = write(tmp_path, metadata={**RUN, "settings": {**RUN["settings"], "agent": agent}})
    assert f"--index INDEX{option}`" in body
    assert "ann" not in body.replace("than", "")
