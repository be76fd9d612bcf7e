"""Small models with random weights, one of each architecture that agents are trained from.

Sliding windows are shorter than the prompts of tests, and logits are scaled where the architecture scales them.
"""

from typing import Any

WINDOW = 12
"""Tokens of the sliding windows."""
_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_GRANITE = {
    "logits_scaling": 0.5,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_NEMOTRON = {
    "layers_block_type": ["mamba", "attention", "moe", "mlp"],
    "num_hidden_layers": 4,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    # `transformers` limits time steps in the pass over a sequence, but not in the step from one token to the next.
    "time_step_min": 1e-10,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", _EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", _LINEAR),
    "qwen3_next": ("Qwen3NextConfig", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {**_SLIDING, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}),
    "olmo3": ("Olmo3Config", _SLIDING),
    "granite": ("GraniteConfig", _GRANITE),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {**_GRANITE, **_MAMBA, **_LOCAL_EXPERTS, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    ),
    "cohere2": ("Cohere2Config", {**_SLIDING, "logit_scale": 2.0}),
    "gpt_oss": ("GptOssConfig", {**_SLIDING, **_LOCAL_EXPERTS}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}),
    "nemotron_h": ("NemotronHConfig", _NEMOTRON),
}
"""Class of the configuration and its fields besides `_SIZES`, by `model_type`, without `_text`."""


def make_model(name: str, seed: int = 0, **settings: Any) -> Any:
    """Make a model whose weights depend only on the seed; `settings` override fields of its configuration.

    This sets torch's global random state.
    """
    import torch
    import transformers

    kind, own = ARCHITECTURES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**{**_SIZES, **own, **settings})
    return transformers.AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]


def compute_plain_logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> Any:
    """Return the log-probabilities [tokens] of ids after a prompt: one sequence without padding or cache, in nats."""
    import torch

    with torch.no_grad():
        whole = torch.tensor([[*prompt, *ids]], device=model.device)
        logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, whole[0, len(prompt) :, None])[:, 0]
