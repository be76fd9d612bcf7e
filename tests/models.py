"""Small models of the Qwen2 architecture with random weights."""

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
}


def random_model(vocabulary: int, seed: int, **settings: Any) -> Any:
    """The same weights for the same seed; `settings` are those of the architecture."""
    torch.manual_seed(seed)
    config: Any = Qwen2Config
    made: Any = Qwen2ForCausalLM
    return made(config(**{"vocab_size": vocabulary, "tie_word_embeddings": True, **SIZES, **settings})).eval()
