"""Convert a GGUF file into a model directory that `transformers` and vLLM load. Neither is imported, nor is torch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.base_models.gguf_file import GGUFFile
from gumshoe.artifacts.base_models.gguf_tokenizer import build_tokenizer
from gumshoe.errors import UsageError
from gumshoe.terminal import Advance

_EMBEDDINGS, _HEAD, _ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
_OUTER = {_EMBEDDINGS: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", _HEAD: "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QUERY_KEY_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LLAMA_3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Names of an architecture in `transformers`, and the differences of its GGUF files to its safetensors files."""

    model_class: str
    biases: tuple[str, ...] = ()
    """Modules with a bias, as they are named in GGUF files."""
    has_query_key_norms: bool = False
    is_permuted: bool = False
    """True if llama.cpp stores the rows of q and k as it rotates them: neighbours instead of halves."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further values of config.json."""


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", is_permuted=True, settings={"attention_bias": False, "mlp_bias": False}),
    "qwen2": Architecture(
        "Qwen2ForCausalLM", biases=("attn_q", "attn_k", "attn_v"), settings={"use_sliding_window": False}
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        has_query_key_norms=True,
        settings={"attention_bias": False, "use_sliding_window": False},
    ),
}
"""Supported values of `general.architecture`."""


def convert_gguf(file: GGUFFile, directory: Path, advance: Advance, template: str | None = None) -> None:
    """Write a model directory: weights, configuration, tokenizer, and chat template if there is one.

    Weights are stored in bfloat16, or in float32 if the file's matrices are. `template` replaces the file's own chat
    template.

    Raises:
        UsageError: the architecture, its tensors, a quantization or the tokenizer is not supported.
        OSError: the files cannot be written.
    """
    config = build_config(file)
    tokenizer, tokenizer_config = build_tokenizer(file)
    if (tokens := len(file.require("tokenizer.ggml.tokens"))) > config["vocab_size"]:
        raise _report_tensors(file, f"{_EMBEDDINGS} has {config['vocab_size']:,} rows for {tokens:,} tokens")
    _write_weights(file, config, directory / "model.safetensors", advance)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    files = {
        "config.json": config,
        "generation_config.json": {"_from_model_config": True, **ids},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if chat_template := template or file.get("tokenizer.chat_template"):
        (directory / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def build_config(file: GGUFFile) -> dict[str, Any]:
    """Return the content of a model's `config.json`.

    Raises:
        UsageError: the architecture, or its position embeddings, are not supported.
    """
    name = file.require("general.architecture")
    architecture = _find_architecture(file, name)
    heads = _require_count(file, f"{name}.attention.head_count")
    hidden = _require_count(file, f"{name}.embedding_length")
    head_dim = _require_count(file, f"{name}.attention.key_length", hidden // heads)
    shapes = file.shapes()
    if _EMBEDDINGS not in shapes:
        raise _report_tensors(file, f"{_EMBEDDINGS} is missing")
    is_float32 = file.tensor_type("blk.0.attn_q.weight") == "F32"
    return {
        "architectures": [architecture.model_class],
        "model_type": name,
        "vocab_size": shapes[_EMBEDDINGS][0],
        "hidden_size": hidden,
        "intermediate_size": _require_count(file, f"{name}.feed_forward_length"),
        "num_hidden_layers": _require_count(file, f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _require_count(file, f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _require_count(file, f"{name}.context_length"),
        "rms_norm_eps": float(str(np.float32(file.require(f"{name}.attention.layer_norm_rms_epsilon")))),
        "rope_parameters": _describe_rope(file, name, head_dim),
        "tie_word_embeddings": _HEAD not in shapes,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32" if is_float32 else "bfloat16",
        **architecture.settings,
    }


def _require_count(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a positive whole number, which the file has once, or the same for each layer."""
    value = file.require(key) if default is None else file.get(key, default)
    numbers = set(value) if isinstance(value, list) else {value}
    if len(numbers) > 1:
        raise UsageError(
            "gguf.unsupported-architecture",
            f"{file.path}: {key} differs between layers, which is not supported; use the model's safetensors files",
        )
    if not all(isinstance(each, int) and each > 0 for each in numbers) or not numbers:
        raise file.damage(f"the metadata key {key} is {value!r:.40}, expected a positive whole number")
    return int(numbers.pop())


def _find_architecture(file: GGUFFile, name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise UsageError(
            "gguf.unsupported-architecture",
            f"{file.path} has the architecture {name}, which is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}. Use the model's safetensors files",
        )
    return ARCHITECTURES[name]


def _describe_rope(file: GGUFFile, name: str, head_dim: int) -> dict[str, Any]:
    """Return the rotary position embeddings as `transformers` describes them.

    Without a type, scaling is linear, and a factor of 0 or 1 means none, as in `src/llama-model.cpp` of llama.cpp.
    """
    theta = float(file.get(f"{name}.rope.freq_base", 10_000.0))
    kind = file.get(f"{name}.rope.scaling.type", "linear")
    factor = float(file.get(f"{name}.rope.scaling.factor", file.get(f"{name}.rope.scale_linear", 0)))
    rotated = int(file.get(f"{name}.rope.dimension_count", head_dim))
    if kind not in ("none", "linear") or rotated != head_dim:
        raise UsageError(
            "gguf.unsupported-architecture",
            f"{file.path}: rotary embeddings of {rotated} of {head_dim} dimensions with scaling {kind} are not "
            "supported; supported are all dimensions with scaling none, linear or Llama 3's. Use the model's "
            "safetensors files",
        )
    if _ROPE_FACTORS in file.shapes():
        return {"rope_theta": theta, **_recover_llama_3_rope(file, theta, head_dim)}
    if kind == "linear" and factor not in (0, 1):
        return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
    return {"rope_theta": theta, "rope_type": "default"}


def _recover_llama_3_rope(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return Llama 3's scaling, of which a GGUF file has only the resulting factor of each frequency."""
    stored = file.read_tensor(_ROPE_FACTORS)
    factor, context = float(stored.max()), _LLAMA_3_ROPE["original_max_position_embeddings"]
    low, high = _LLAMA_3_ROPE["low_freq_factor"], _LLAMA_3_ROPE["high_freq_factor"]
    turns = context * theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if stored.shape != turns.shape or not np.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise UsageError(
            "gguf.unsupported-architecture",
            f"{file.path}: the factors in {_ROPE_FACTORS} are not those of Llama 3; use the model's safetensors files",
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA_3_ROPE}


def _name_tensors(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the file's tensors in safetensors, by their names in the file.

    Raises:
        UsageError: a tensor is missing, or the file has another one, such as those of a mixture of experts.
    """
    architecture = ARCHITECTURES[config["model_type"]]
    modules = {**_LAYER, **(_QUERY_KEY_NORMS if architecture.has_query_key_norms else {})}
    named = {own: name for own, name in _OUTER.items() if own != _HEAD or not config["tie_word_embeddings"]}
    for layer in range(config["num_hidden_layers"]):
        for own, name in modules.items():
            for kind in ("weight", "bias") if own in architecture.biases else ("weight",):
                named[f"blk.{layer}.{own}.{kind}"] = f"model.layers.{layer}.{name}.{kind}"
    found = set(file.shapes()) - {_ROPE_FACTORS}
    if missing := sorted(named.keys() - found):
        raise _report_tensors(file, f"{missing[0]} is missing")
    if others := sorted(found - named.keys()):
        raise _report_tensors(file, f"{others[0]} is not part of a dense model of the architecture")
    return named


def _report_tensors(file: GGUFFile, problem: str) -> UsageError:
    return UsageError(
        "gguf.unsupported-tensors",
        f"{file.path}: {problem}; use a GGUF file of a dense {file.get('general.architecture')} model, or the model's "
        "safetensors files",
    )


def _read_tensors(file: GGUFFile, config: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[NDArray[np.float32]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    is_permuted = ARCHITECTURES[config["model_type"]].is_permuted
    for own in names:
        values = file.read_tensor(own)
        module = own.split(".")[-2]
        yield undo_permutation(values, heads[module]) if is_permuted and module in heads else values


def undo_permutation(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return a matrix of q or k [heads * head_dim, in] with the rows of each head as `transformers` rotates them.

    llama.cpp rotates neighbouring rows, and `transformers` rotates row i with row i + head_dim / 2.
    """
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _write_weights(file: GGUFFile, config: Mapping[str, Any], path: Path, advance: Advance) -> None:
    """Write the weights as one safetensors file, one tensor after the other, so that a large model fits in memory."""
    names, shapes = _name_tensors(file, config), file.shapes()
    is_float32 = config["dtype"] == "float32"
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for own, name in names.items():
        begin, end = end, end + int(np.prod(shapes[own])) * (4 if is_float32 else 2)
        header[name] = {
            "dtype": "F32" if is_float32 else "BF16",
            "shape": list(shapes[own]),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the weights, as the format recommends
    advance(total=end)
    with path.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for values in _read_tensors(file, config, names):
            data = values.astype("<f4") if is_float32 else to_bfloat16(values)
            target.write(data.tobytes())
            advance(data.nbytes)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16 values, ties to even."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded
