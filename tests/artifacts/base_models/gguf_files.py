"""Write small GGUF files as llama.cpp's own converter does, with random weights or those of a given model."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

Array = NDArray[np.float32]
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONFIG: Mapping[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 50_000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
}
"""Settings of a small model, as in config.json."""
_TEXT = [
    "From: Nora Lindqvist <nora@example.com>\nSubject: RE: Invoice 20417\n\nDear Samuel,\n\nthe invoice was paid.",
    "for name, value in found.items():\n    if value is None:\n        return  {name: 1095}\n",
    "Été, naïve, Straße, Ελλάδα, Москва, 東京 \U0001f600 don't DON'T it's we'll   12345 67   x",
]


@cache
def train_vocabulary(pattern: str = r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\p{N}|\s+") -> tuple[list[str], list[str]]:
    """Return the tokens and the merges of a small byte-level BPE tokenizer, control tokens first."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT * 3, trainer)
    tokens = [str(tokenizer.id_to_token(place)) for place in range(tokenizer.get_vocab_size())]
    return tokens, [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def random_weights(config: Mapping[str, Any] = CONFIG, seed: int = 0) -> dict[str, Array]:
    """Return random weights of a Llama model, by their names in `transformers`."""
    rng = np.random.default_rng(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * size, "k": config["num_key_value_heads"] * size}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}input_layernorm.weight": (hidden,),
            f"{start}self_attn.q_proj.weight": (rows["q"], hidden),
            f"{start}self_attn.k_proj.weight": (rows["k"], hidden),
            f"{start}self_attn.v_proj.weight": (rows["k"], hidden),
            f"{start}self_attn.o_proj.weight": (hidden, rows["q"]),
            f"{start}post_attention_layernorm.weight": (hidden,),
            f"{start}mlp.gate_proj.weight": (inner, hidden),
            f"{start}mlp.up_proj.weight": (inner, hidden),
            f"{start}mlp.down_proj.weight": (hidden, inner),
        }
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    weights: Mapping[str, Array] | None = None,
    config: Mapping[str, Any] = CONFIG,
    *,
    architecture: str = "llama",
    kind: str = "F32",
    pre: str = "smollm",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
) -> Path:
    """Write a model with a small vocabulary. Matrices are stored in `kind`, e.g. Q4_1, and vectors in F32.

    `metadata` replaces keys, or removes those that are None. `tensors` are more tensors, by their names in the file.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_describe(architecture, config, pre), **(metadata or {})}.items():
        if value is not None:
            _add(writer, key, value)
    weights = random_weights(config) if weights is None else weights
    named = {
        _name(architecture, config, name): _permute(architecture, config, name, each) for name, each in weights.items()
    }
    for name, values in {**named, **(tensors or {})}.items():
        as_type = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(name: str, config: Mapping[str, Any], pre: str) -> dict[str, Any]:
    tokens, merges = train_vocabulary()
    return {
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.key_length": config["head_dim"],
        f"{name}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{name}.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if token in CONTROL else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _name(architecture: str, config: Mapping[str, Any], name: str) -> str:
    """Return a tensor's name in the file, from the table of llama.cpp."""
    kind = next(each for each, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    table = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    found = table.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _permute(architecture: str, config: Mapping[str, Any], name: str, values: Array) -> Array:
    """Return q and k of a Llama model in the order of llama.cpp (`LlamaModel.permute` of its converter)."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if architecture != "llama" or heads is None:
        return values
    rows = values.shape[0] // heads // 2
    return values.reshape(heads, 2, rows, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
