"""A model of the Qwen2 architecture with random weights, an adapter for it, and one real vLLM server for all tests."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gumshoe.agent.vllm_server import ServerOptions, VLLMServer
from tests.conftest import missing

# In the form of Qwen2.5's, and short: most bytes are a token each.
TEMPLATE = """\
{{- '<|im_start|>system\n' + messages[0].content + '\nCall as <tool_call>{"name": ..., "arguments": {...}}' -}}
{{- '</tool_call>:' -}}
{%- for tool in tools or [] -%}{{- ' ' + tool.function.name -}}{%- endfor -%}{{- '<|im_end|>\n' -}}
{%- for message in messages[1:] -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
TEXT = ["The quarterly invoice for the harbour office is due on Friday, says the site manager.", "0123456789 <>{}[]:,"]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with sharp, random opinions, and sampling defaults in its files that would spoil any measurement."""
    if find_spec("vllm") is None:
        missing("vLLM (the CPU build comes with `make install` on Linux)")
    from transformers import PreTrainedTokenizerFast

    from tests.models import random_model

    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast: Any = PreTrainedTokenizerFast
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}
    fast(tokenizer_object=tokenizer, **names).save_pretrained(directory)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}  # heads of 32 at least
    ends = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    sharp = {"tie_word_embeddings": False, "initializer_range": 0.3}
    made = random_model(320, 0, **sizes, **ends, **sharp, max_position_embeddings=2048)
    made.save_pretrained(directory)
    hostile = {"do_sample": True, "temperature": 0.1, "top_p": 0.5, "top_k": 3, "repetition_penalty": 1.3}
    (directory / "generation_config.json").write_text(json.dumps({**hostile, "eos_token_id": [2, 7, 11]}))
    return directory


@pytest.fixture(scope="session")
def model(model_directory: Path) -> Any:
    """The model itself, in this process."""
    from transformers import Qwen2ForCausalLM

    made: Any = Qwen2ForCausalLM.from_pretrained(model_directory)
    return made.eval()


@pytest.fixture(scope="session")
def adapter_directory(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter that changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("adapter")
    base = Qwen2ForCausalLM.from_pretrained(model_directory)
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"]))
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.5)
    adapted.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="session")
def server(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """The server, with the sampling defaults of the model's files in force, as one that others started has them."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    options = ServerOptions(
        max_model_len=1024,
        arguments=("--generation-config", "auto"),
        environment={"VLLM_LOGGING_LEVEL": "INFO"},  # which TRL sets to ERROR for all that begins after its import
    )
    with VLLMServer(model_directory, log=log, options=options) as running:
        yield running
