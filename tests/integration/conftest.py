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
    """The model of the shared server, for what runs without that server."""
    return write_hostile_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def model() -> Any:
    """The tiny policy itself, in this process, in float32."""
    import torch
    from transformers import Qwen2ForCausalLM

    loaded: Any = Qwen2ForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="session")
def adapter_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter that changes what the tiny policy says."""
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
    """The shared server as the process that started it sees it; leaving or stopping this does not end it."""
    server = VLLMServer(vllm.model, log=vllm.log)
    server.url = vllm.url
    return server


@pytest.fixture(scope="session")
def training_mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented mail with questions, and its index, for training runs."""
    return make_mail(tmp_path_factory.mktemp("training-mail"), 8, 6, 900, "easy")


@pytest.fixture(scope="session")
def undisturbed(training_mail: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a run from start to end with `gumshoe train`, and what it printed."""
    out = tmp_path_factory.mktemp("undisturbed")
    words = command(training_mail, out / "run", "--engine", "transformers", output__report_to="[tensorboard]")
    return out / "run", train(words, out / "log")
