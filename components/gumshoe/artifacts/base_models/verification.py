"""Verify a converted model: compute its perplexity on a fixed text, with numpy alone.

A step that converts a model need not have torch. A wrong order of rows, rotation or tokenizer raises the perplexity by
a multiple.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
REFERENCE_TEXT = Path(__file__).with_name("reference_text.txt")
"""The fixed text, a letter of a few hundred tokens."""


def encode_reference_text(directory: Path) -> list[int]:
    """Return the token ids of the reference text with the tokenizer of a model directory."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return list(tokenizer.encode(REFERENCE_TEXT.read_text(encoding="utf-8"), add_special_tokens=False).ids)


def digest_ids(ids: Sequence[int]) -> str:
    """Return the SHA-256 of token ids."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()


def compute_perplexity(directory: Path, ids: Sequence[int]) -> float:
    """Return the perplexity of token ids, exp of the mean loss per token, under a model of the architecture `llama`.

    The first id is given and not predicted.
    """
    config = json.loads((directory / "config.json").read_bytes())
    read = _open_weights(directory / "model.safetensors")
    embeddings = read("model.embed_tokens.weight")
    hidden = embeddings[np.asarray(ids[:-1])]
    cosine, sine = _rotations(len(ids) - 1, config["head_dim"], config["rope_parameters"]["rope_theta"])
    for layer in range(config["num_hidden_layers"]):
        hidden = _run_layer(hidden, partial(_read_of_layer, read, layer), config, cosine, sine)
    head = embeddings if config["tie_word_embeddings"] else read("lm_head.weight")
    logits = _normalize(hidden, read("model.norm.weight"), config) @ head.T
    logits -= logits.max(-1, keepdims=True)
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), ids[1:]]
    return float(np.exp(losses.mean()))


def _open_weights(path: Path) -> Callable[[str], Array]:
    """Return a function that reads a tensor of a safetensors file as float32."""
    data = np.memmap(path, np.uint8, "r")
    begin = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:begin].tobytes())

    def read(name: str) -> Array:
        first, last = header[name]["data_offsets"]
        raw = data[begin + first : begin + last]
        if header[name]["dtype"] == "F32":
            return raw.view("<f4").reshape(header[name]["shape"])
        bits = raw.view("<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(header[name]["shape"])

    return read


def _read_of_layer(read: Callable[[str], Array], layer: int, name: str) -> Array:
    return read(f"model.layers.{layer}.{name}.weight")


def _run_layer(
    hidden: Array, weight: Callable[[str], Array], config: Mapping[str, Any], cosine: Array, sine: Array
) -> Array:
    """Return the hidden states [tokens, hidden] after one layer."""
    tokens, heads, size = len(hidden), config["num_attention_heads"], config["head_dim"]

    def project(name: str) -> Array:
        """Return queries, keys or values [heads, tokens, head_dim]; keys and values repeated for their group."""
        found = (normal @ weight(f"self_attn.{name}").T).reshape(tokens, -1, size).swapaxes(0, 1)
        return np.repeat(found, heads // len(found), 0)

    normal = _normalize(hidden, weight("input_layernorm"), config)
    queries, keys = (_rotate(project(name), cosine, sine) for name in ("q_proj", "k_proj"))
    scores = queries @ keys.swapaxes(1, 2) / np.sqrt(np.float32(size))
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ project("v_proj")
    hidden = hidden + mixed.swapaxes(0, 1).reshape(tokens, -1) @ weight("self_attn.o_proj").T
    normal = _normalize(hidden, weight("post_attention_layernorm"), config)
    gate = normal @ weight("mlp.gate_proj").T
    inner = gate / (1 + np.exp(-gate)) * (normal @ weight("mlp.up_proj").T)
    result: Array = hidden + inner @ weight("mlp.down_proj").T
    return result


def _normalize(hidden: Array, weight: Array, config: Mapping[str, Any]) -> Array:
    """Return hidden states after RMS normalization (https://arxiv.org/abs/1910.07467)."""
    scale = np.sqrt(np.mean(hidden**2, -1, keepdims=True) + np.float32(config["rms_norm_eps"]))
    normal: Array = hidden / scale * weight
    return normal


def _rotations(tokens: int, size: int, theta: float) -> tuple[Array, Array]:
    """Return cosines and sines of the rotary embeddings [tokens, head_dim] (https://arxiv.org/abs/2104.09864)."""
    angles = np.outer(np.arange(tokens), theta ** (-np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], -1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(states: Array, cosine: Array, sine: Array) -> Array:
    first, second = np.split(states, 2, -1)
    rotated: Array = states * cosine + np.concatenate([-second, first], -1) * sine
    return rotated
