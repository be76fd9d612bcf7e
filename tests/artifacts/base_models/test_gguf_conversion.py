"""GGUF files become model directories with the logits of the model that they were made from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf
import numpy as np
import pytest

from gumshoe.artifacts.base_models.gguf_conversion import build_config, convert_gguf
from gumshoe.artifacts.base_models.gguf_file import GGUFFile
from gumshoe.artifacts.base_models.verification import compute_perplexity
from tests.artifacts.base_models.gguf_files import CONFIG, Array, random_weights, write_gguf
from tests.errors import raises

IDS = [5, 17, 300, 42, 42, 7, 399, 3, 250, 81]


def convert(file: Path, directory: Path) -> Path:
    directory.mkdir()
    convert_gguf(GGUFFile.open(file), directory, lambda *_, **__: None)
    return directory


def make_model(architecture: str, **changes: Any) -> Any:
    """Return a random model of `transformers` with float32 weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config: Any = AutoConfig.for_model(architecture, **{**CONFIG, "initializer_range": 0.3, **changes})
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases are 1 and 0 in a new model, which hides mistakes
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.eval()


def weights_of(model: Any) -> dict[str, Array]:
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {name: each.numpy() for name, each in model.state_dict().items() if name not in tied}


def logits_of(model: Any) -> Array:
    import torch

    with torch.no_grad():
        found: Array = model(torch.tensor([IDS])).logits.numpy()
    return found


def load(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


LLAMA_3 = {
    "rope_theta": 500_000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "head_dim": 32}),
        ("llama", {"rope_parameters": LLAMA_3, "max_position_embeddings": 131_072}),
        ("llama", {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "linear", "factor": 4.0}}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": False, "head_dim": 24}),
    ],
)
def test_a_converted_model_has_the_same_logits(architecture: str, changes: Mapping[str, Any], tmp_path: Path) -> None:
    model = make_model(architecture, **changes)
    rope = model.config.rope_parameters
    more: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    if rope["rope_type"] == "llama3":
        more["rope_freqs.weight"] = llama_3_factors(model.config)
    elif rope["rope_type"] == "linear":
        metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": rope["factor"]}
    file = write_gguf(
        tmp_path / "model.gguf",
        weights_of(model),
        {**CONFIG, **changes},
        architecture=architecture,
        metadata=metadata,
        tensors=more,
    )
    converted = load(convert(file, tmp_path / "converted"))
    np.testing.assert_allclose(logits_of(converted), logits_of(model), atol=1e-4)
    converted.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(logits_of(load(tmp_path / "saved")), logits_of(converted))


def llama_3_factors(config: Any) -> Array:
    """Return the factors that llama.cpp stores: frequencies without scaling, divided by those of `transformers`."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = LLAMA_3["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    factors: Array = (plain / scaled.numpy()).astype(np.float32)
    return factors


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
def test_quantized_weights_are_stored_as_bfloat16(kind: str, tmp_path: Path) -> None:
    weights = random_weights()
    directory = convert(write_gguf(tmp_path / "model.gguf", weights, kind=kind), tmp_path / "converted")
    as_type = gguf.GGMLQuantizationType[kind]
    import torch
    from safetensors.torch import load_file

    found = load_file(directory / "model.safetensors")
    assert json.loads((directory / "config.json").read_bytes())["dtype"] == "bfloat16"
    assert found.keys() == weights.keys()
    for name, each in weights.items():
        expected = each
        if each.ndim > 1:
            stored = gguf.quants.quantize(each, as_type)
            expected = gguf.quants.dequantize(stored, as_type)
        assert torch.equal(found[name], torch.tensor(expected).bfloat16()), name


def test_perplexity_without_torch_is_that_of_transformers(tmp_path: Path) -> None:
    import torch

    directory = convert(write_gguf(tmp_path / "model.gguf", kind="Q8_0"), tmp_path / "converted")
    ids = torch.tensor([IDS])
    with torch.no_grad():
        expected = float(torch.exp(load(directory)(ids, labels=ids).loss))
    assert compute_perplexity(directory, IDS) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("share", [0, 0.0001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "model.gguf").read_bytes()
    file = tmp_path / "short.gguf"
    file.write_bytes(data[: int(share * len(data))])
    with raises("gguf.damaged", file):
        GGUFFile.open(file)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(31, "gguf.unsupported-quantization"), (99, "gguf.unsupported-quantization"), (1000, "gguf.damaged")],
)
def test_a_removed_or_newer_type_of_tensor_is_named(kind: int, code: str, tmp_path: Path) -> None:
    file, name = write_gguf(tmp_path / "model.gguf"), b"token_embd.weight"
    data = bytearray(file.read_bytes())
    at = data.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions, and two of them
    data[at : at + 4] = kind.to_bytes(4, "little")
    file.write_bytes(data)
    with raises(code, file, kind):
        GGUFFile.open(file)


@pytest.mark.parametrize(
    ("version", "code"), [(1, "gguf.unsupported-version"), (9, "gguf.unsupported-version"), (0, "gguf.damaged")]
)
def test_another_version_of_the_format_is_named(version: int, code: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf")
    data = file.read_bytes()
    file.write_bytes(data[:4] + version.to_bytes(4, "little") + data[8:])
    with raises(code, file, version):
        GGUFFile.open(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.safetensors"
    other.write_bytes(bytes(range(256)) * 9)
    with raises("gguf.damaged", other):
        GGUFFile.open(other)
    with raises("gguf.not-readable", tmp_path / "none.gguf"):
        GGUFFile.open(tmp_path / "none.gguf")
    part = write_gguf(tmp_path / "part.gguf", metadata={"split.count": 3})
    with raises("gguf.split", part, 3):
        GGUFFile.open(part)


@pytest.mark.parametrize(
    ("code", "value", "metadata"),
    [
        ("gguf.unsupported-architecture", "yarn", {"llama.rope.scaling.type": "yarn"}),
        ("gguf.unsupported-architecture", "8", {"llama.rope.dimension_count": 8}),
        ("gguf.unsupported-architecture", "8", {"llama.rope.dimension_count": 8, "llama.rope.scaling.factor": 2.0}),
        ("gguf.unsupported-architecture", "llama.feed_forward_length", {"llama.feed_forward_length": [96, 80]}),
        ("gguf.damaged", "llama.block_count", {"llama.block_count": None}),
        ("gguf.damaged", "llama.attention.head_count", {"llama.attention.head_count": 0}),
        ("gguf.damaged", "llama.embedding_length", {"llama.embedding_length": "64"}),
        ("gguf.damaged", "3", {"tokenizer.ggml.token_type": [3, 3, 3]}),
        ("gguf.damaged", "ab", {"tokenizer.ggml.merges": ["a b", "ab"]}),
        ("gguf.unsupported-tokenizer", "bert", {"tokenizer.ggml.model": "bert"}),
        ("gguf.unsupported-tokenizer", "viking", {"tokenizer.ggml.pre": "viking"}),
        ("gguf.unsupported-tokenizer", "default", {"tokenizer.ggml.pre": None}),
        ("gguf.unsupported-tensors", "blk.2.attn_k.weight", {"llama.block_count": 3}),
        ("gguf.unsupported-tensors", "blk.1.attn_k.weight", {"llama.block_count": 1}),
        ("gguf.unsupported-tensors", "401", {"tokenizer.ggml.tokens": [*"x" * 401], "tokenizer.ggml.token_type": None}),
    ],
)
def test_what_cannot_be_converted_is_named(code: str, value: str, metadata: Mapping[str, Any], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", metadata=metadata)
    with raises(code, file, value):
        convert(file, tmp_path / "converted")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    ],
)
def test_scaling_of_rotary_embeddings_is_that_of_llama_cpp(
    metadata: Mapping[str, Any], expected: float | None, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "model.gguf", metadata={f"llama.{key}": value for key, value in metadata.items()})
    found = build_config(GGUFFile.open(file))["rope_parameters"]
    assert (found["rope_type"], found.get("factor")) == ("linear" if expected else "default", expected)


def test_a_number_of_each_layer_is_read_if_all_are_equal(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", metadata={"llama.feed_forward_length": [96, 96]})
    assert build_config(GGUFFile.open(file))["intermediate_size"] == 96


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    weights = random_weights()
    weights["model.layers.1.mlp.up_proj.weight"][7, 5] = value
    file = write_gguf(tmp_path / "model.gguf", weights)
    with raises("gguf.damaged", file, "blk.1.ffn_up.weight"):
        convert(file, tmp_path / "converted")


def test_metadata_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", metadata={"general.license": "apache-2.0"})
    file.write_bytes(file.read_bytes().replace(b"apache-2.0", b"apache-2\xff0"))
    with raises("gguf.damaged", file, "general.license"):
        GGUFFile.open(file).get("general.license")


def test_other_architectures_tensors_and_rotations_are_refused(tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "gemma.gguf", architecture="gemma")
    with raises("gguf.unsupported-architecture", "gemma", "llama, qwen2, qwen3"):
        build_config(GGUFFile.open(other))
    expert = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), np.float32)}
    mixture = write_gguf(tmp_path / "mixture.gguf", tensors=expert)
    with raises("gguf.unsupported-tensors", mixture, "blk.0.ffn_gate_inp.weight"):
        convert(mixture, tmp_path / "converted")
    factors = write_gguf(tmp_path / "long.gguf", tensors={"rope_freqs.weight": np.linspace(1, 3, 8, dtype=np.float32)})
    with raises("gguf.unsupported-architecture", factors, "rope_freqs.weight"):
        build_config(GGUFFile.open(factors))


def test_a_type_that_cannot_be_dequantized_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "dequantize", Mock(side_effect=NotImplementedError))
    file = write_gguf(tmp_path / "model.gguf", kind="Q8_0")
    with raises("gguf.unsupported-quantization", "token_embd.weight", "Q8_0"):
        convert(file, tmp_path / "converted")
