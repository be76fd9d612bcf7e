"""Two processes, also with sharded weights, train the same adapter as one process, on the CPU, with gloo."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gumshoe.training.launch.distributed_env import DistributedEnv
from tests.conftest import find_free_port
from tests.models import random_model
from tests.training.sharded_training import STEPS, settings_of
from tests.training.test_trainer import tokenizer

if TYPE_CHECKING:
    import torch


pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a model, and an adapter to start from that is not zero."""
    import torch
    from peft import get_peft_model

    from gumshoe.training.models.lora_model import lora_config

    directory = tmp_path_factory.mktemp("sharing")
    model = random_model(len(tokenizer()), 1)
    model.save_pretrained(directory / "model")
    adapted = get_peft_model(model, lora_config(settings_of("ddp", 1, recomputes=False).lora, model))
    for name, each in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each, std=0.05)
    adapted.save_pretrained(str(directory / "start"))
    return directory


def train(
    place: Path,
    distribution: str,
    processes: int,
    *,
    first: int = 0,
    recomputes: bool = False,
    passes: int = 4,
    precision: str = "fp32",
) -> None:
    """Train to the end in this number of processes."""
    words = [distribution, str(processes), str(first), "recomputes" if recomputes else "keeps", str(passes), precision]
    command = [sys.executable, "-m", "tests.training.sharded_training", str(place), *words]
    port, several = find_free_port(), range(processes)
    places = [DistributedEnv().process_environment(each, processes, port) if processes > 1 else {} for each in several]
    running = [
        subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **each}, stderr=subprocess.PIPE, text=True)
        for each in places
    ]
    errors = [each.communicate()[1] for each in running]
    assert [each.returncode for each in running] == [0] * processes, "\n".join(errors)[-5000:]


def load_published(place: Path, number: int) -> "torch.Tensor":
    """Return all weights of a published adapter as one vector."""
    import torch
    from safetensors.torch import load_file

    found = load_file(place / f"published-{number}" / "adapter_model.safetensors")
    return torch.cat([found[name].flatten().float() for name in sorted(found)])


@pytest.fixture(scope="module")
def one_process(place: Path) -> "list[torch.Tensor]":
    """Return the adapter of one process, before each step and at the end."""
    directory = place.parent / "one_process"
    shutil.copytree(place, directory)
    train(directory, "ddp", 1)
    return [load_published(directory, number) for number in range(STEPS + 1)]


@pytest.mark.parametrize(
    ("distribution", "passes"),
    [
        ("ddp", 1),
        ("ddp", 4),
        ("fsdp2", 4),
        pytest.param("zero3", 4, marks=pytest.mark.skipif(find_spec("deepspeed") is None, reason="no deepspeed here")),
    ],
)
def test_training_in_two_processes_equals_one_process(
    distribution: str, passes: int, one_process: "list[torch.Tensor]", place: Path, tmp_path: Path
) -> None:
    """Published adapters are complete, a step without groups changes nothing, and a checkpoint can be resumed.

    In the first and the last step, the check of the sampler drops a group. In the third step, a process has no group.
    """
    import torch

    out = tmp_path / "out"
    shutil.copytree(place, out)
    train(out, distribution, 2, recomputes=True, passes=passes)
    together = [load_published(out, number) for number in range(STEPS + 1)]
    assert torch.equal(together[0], one_process[0])
    assert torch.equal(together[1], together[2]), "the second step has no groups"
    moved = (one_process[-1] - one_process[0]).abs().mean()
    assert moved > 0.005
    for mine, theirs in zip(together, one_process, strict=True):
        assert (mine - theirs).abs().mean() < 0.02 * moved
    for number in range(3, STEPS + 1):
        shutil.rmtree(out / f"published-{number}")
    train(out, distribution, 2, first=2, recomputes=True, passes=passes)
    assert torch.equal(load_published(out, STEPS), together[-1])


def test_sharded_training_in_16_bits_stays_close(
    one_process: "list[torch.Tensor]", place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(place, out)
    train(out, "fsdp2", 2, recomputes=True, precision="bf16")
    moved = (one_process[-1] - one_process[0]).abs().mean()
    assert (load_published(out, STEPS) - one_process[-1]).abs().mean() < 0.02 * moved
