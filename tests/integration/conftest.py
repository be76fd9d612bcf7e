"""The tiny policy with hostile sampling defaults in its files, an adapter for it, and a small training run."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import VLLMServer
from tests.integration.inputs import make_mail
from tests.integration.trainings import command, train
from tests.shared_server import SharedServer, write_hostile_tiny


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the shared server's model, for tests without that server."""
    return write_hostile_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def model() -> Any:
    """Load the tiny policy in this process, in float32."""
    import torch
    from transformers import Qwen2ForCausalLM

    loaded: Any = Qwen2ForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="session")
def adapter_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a LoRA adapter that changes the output of the tiny policy."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("adapter")
    base = Qwen2ForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"]))
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.5)
    adapted.save_pretrained(str(directory))
    return directory


@pytest.fixture
def attached(vllm: SharedServer) -> VLLMServer:
    """Return a handle of the shared server as its owner has it; stopping the handle does not stop the server."""
    server = VLLMServer(vllm.model, log=vllm.log)
    server.url = vllm.url
    return server


@pytest.fixture(scope="session")
def training_mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write synthetic mail with questions and an index, for training runs."""
    return make_mail(tmp_path_factory.mktemp("training-mail"), 8, 6, 900, "easy")


@pytest.fixture(scope="session")
def uninterrupted(training_mail: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run `gumshoe train` without interruption, and return the run's directory and the output."""
    out = tmp_path_factory.mktemp("uninterrupted")
    words = command(training_mail, out / "run", "--engine", "transformers", output__report_to="[tensorboard]")
    return out / "run", train(words, out / "log")
