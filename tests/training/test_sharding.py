"""Two processes that share a model's weights learn what one would, on the CPU, with gloo."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gumshoe.training.launch.distributed_env import DistributedEnv
from tests.conftest import free_port
from tests.models import random_model
from tests.training.sharded_training import STEPS, settings_of
from tests.training.test_trainer import tokenizer

if TYPE_CHECKING:
    import torch


pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and an adapter to begin at that does something."""
    import torch
    from peft import get_peft_model

    from gumshoe.training.models.lora_model import lora_config

    directory = tmp_path_factory.mktemp("sharing")
    model = random_model(len(tokenizer()), 1)
    model.save_pretrained(directory / "model")
    adapted = get_peft_model(model, lora_config(settings_of("ddp", 1, recomputes=False).lora))
    for name, each in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each, std=0.05)
    adapted.save_pretrained(str(directory / "start"))
    return directory


def train(place: Path, distribution: str, processes: int, *, first: int = 0, recomputes: bool = False) -> None:
    """In so many processes, to the end."""
    words = [distribution, str(processes), str(first), "recomputes" if recomputes else "keeps"]
    command = [sys.executable, "-m", "tests.training.sharded_training", str(place), *words]
    port, several = free_port(), range(processes)
    places = [DistributedEnv().process_environment(each, processes, port) if processes > 1 else {} for each in several]
    running = [
        subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **each}, stderr=subprocess.PIPE, text=True)
        for each in places
    ]
    said = [each.communicate()[1] for each in running]
    assert [each.returncode for each in running] == [0] * processes, "\n".join(said)[-5000:]


def published(place: Path, number: int) -> "torch.Tensor":
    """All weights of an adapter in one."""
    import torch
    from safetensors.torch import load_file

    found = load_file(place / f"published-{number}" / "adapter_model.safetensors")
    return torch.cat([found[name].flatten().float() for name in sorted(found)])


@pytest.fixture(scope="module")
def alone(place: Path) -> "list[torch.Tensor]":
    """The adapter after each step of one process."""
    directory = place.parent / "alone"
    shutil.copytree(place, directory)
    train(directory, "ddp", 1)
    return [published(directory, number) for number in range(STEPS + 1)]


@pytest.mark.parametrize(
    "distribution",
    [
        "fsdp2",
        pytest.param("zero3", marks=pytest.mark.skipif(find_spec("deepspeed") is None, reason="no deepspeed here")),
    ],
)
def test_weights_that_are_shared_out_learn_what_whole_ones_would(
    distribution: str, alone: "list[torch.Tensor]", place: Path, tmp_path: Path
) -> None:
    """What is published is whole, the step with nothing to learn from moves nothing, and a checkpoint goes on."""
    import torch

    out = tmp_path / "out"
    shutil.copytree(place, out)
    train(out, distribution, 2, recomputes=True)
    together = [published(out, number) for number in range(STEPS + 1)]
    assert torch.equal(together[0], alone[0])
    assert torch.equal(together[1], together[2]), "nothing was learned from nothing"
    moved = (alone[-1] - alone[0]).abs().mean()
    assert moved > 0.005
    for mine, theirs in zip(together, alone, strict=True):
        assert (mine - theirs).abs().mean() < 0.02 * moved
    for number in range(3, STEPS + 1):
        shutil.rmtree(out / f"published-{number}")
    train(out, distribution, 2, first=2, recomputes=True)
    assert torch.equal(published(out, STEPS), together[-1])
