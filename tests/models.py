"""Small models of the Qwen2 architecture with random weights."""

from typing import Any

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
}


def random_model(vocabulary: int, seed: int, **settings: Any) -> Any:
    """Make a model whose weights depend only on the seed; `settings` override `SIZES` and other fields of its config.

    This sets torch's global random state.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config: Any = Qwen2Config
    model: Any = Qwen2ForCausalLM
    return model(config(**{"vocab_size": vocabulary, "tie_word_embeddings": True, **SIZES, **settings})).eval()
