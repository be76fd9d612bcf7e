"""Adapters: made without loading a base model, looked at, and merged into full weights and into quantized ones."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.environments.registry import open_env
from gumshoe.inference.policy_names import TINY, PolicyName, is_tiny
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.training.models.base_model import AdapterBase, check_same_base, find_tensors, identify_base_model
from gumshoe.training.run_spec import check_start, open_run_env, read_prior_lineage
from gumshoe.training.settings import TrainSettings, resolve
from tests.conftest import Ran, missing
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import make_index
from tests.models import random_model
from tests.rollouts.conversations import synthetic

if TYPE_CHECKING:
    import torch

    from gumshoe.training.adapters.merge import MergeReport


WEIGHTS, ADAPTER_CONFIG, BASE = "adapter_model.safetensors", "adapter_config.json", "base_model.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mail")
    make_index(directory, synthetic().messages)
    asked = [
        each.model_copy(update={"split": "train" if number < 4 else "validation"})
        for number, each in enumerate(synthetic().scenarios.scenarios[:6])
    ]
    (directory / "scenarios.jsonl").write_text("".join(f"{each.model_dump_json()}\n" for each in asked))
    return directory


@pytest.fixture
def four_bit() -> None:
    """The test is of weights in four bits."""
    if find_spec("bitsandbytes") is None:
        missing("bitsandbytes")


def settings(model: Path | str = "tiny", **more: Any) -> TrainSettings:
    flags = {"model.name": str(model), "lora.rank": 4, "lora.alpha": 8}
    return resolve(None, flags | {name.replace("__", "."): value for name, value in more.items()}, {}).settings


def made(out: Path, model: Path | str = "tiny", *, size: float = 0.05, **more: Any) -> Path:
    """An adapter, with second matrices as if it had been trained."""
    import torch

    from gumshoe.training.adapters.adapter_files import create_adapter

    out.mkdir(parents=True)
    create_adapter(settings(model, **more), out)
    dice = torch.Generator().manual_seed(1)

    def taught(name: str, each: "torch.Tensor") -> "torch.Tensor":
        return torch.randn(each.shape, generator=dice) * size if ".lora_B." in name else each

    changed(out, lambda weights: {name: taught(name, each) for name, each in weights.items()})
    return out


def changed(adapter: Path, change: "Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]") -> None:
    from safetensors.torch import load_file, save_file

    save_file(change(load_file(adapter / WEIGHTS)), adapter / WEIGHTS, metadata={"format": "pt"})


def written(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def other_base(directory: Path, seed: int = 1, **more: Any) -> Path:
    """A model that is not the tiny policy, with its tokenizer."""
    random_model(4588, seed, **more).save_pretrained(directory)
    for name in TOKENIZER:
        shutil.copy(TINY / name, directory / name)
    return directory


def tokens() -> "torch.Tensor":
    """Return the token ids that models are compared on: [1, tokens]."""
    import torch

    return torch.arange(10, 150)[None]


def logits(model: Any) -> "torch.Tensor":
    import torch

    with torch.no_grad():
        return model.eval()(tokens()).logits[0].float()  # type: ignore[no-any-return]


def loaded(directory: Path | str, dtype: "torch.dtype | None" = None, **more: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype or torch.float32, **more)


def in_four_bits(model: Any) -> Any:
    """A model whose weights are, and which computes with them in float32."""
    import torch

    for each in model.modules():
        if hasattr(each, "support_avx512bf16_for_cpu"):
            each.compute_dtype, each.support_avx512bf16_for_cpu = torch.float32, False
    return model


def with_adapter(model: Any, adapter: Path) -> "torch.Tensor":
    from peft import PeftModel

    return logits(PeftModel.from_pretrained(model, str(adapter)))


def apart(one: "torch.Tensor", other: "torch.Tensor") -> float:
    """The mean difference, as a share of the standard deviation."""
    return float((one - other).abs().mean() / other.std())


def test_one_is_made_as_training_would_begin_without_the_weights_of_its_base(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import set_seed

    from gumshoe.training.adapters.adapter_files import create_adapter
    from gumshoe.training.models.lora_model import load_base, lora_config

    told = settings(data__seed=7)
    report = create_adapter(told, tmp_path)
    set_seed(7)
    begun = get_peft_model(load_base(told), lora_config(told.lora))
    wanted = {name.replace(".default", ""): each for name, each in begun.named_parameters() if "lora_" in name}
    weights = load_file(tmp_path / WEIGHTS)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(each, wanted[name]) for name, each in weights.items())
    assert (report.modules, report.parameters) == (28, sum(each.numel() for each in weights.values()))
    assert report.base_parameters == 2506176
    assert report.bytes == 4 * report.parameters
    check_start(told.lora.model_copy(update={"start": tmp_path}))
    PeftModel.from_pretrained(load_base(told), str(tmp_path))
    assert (tmp_path / "chat_template.jinja").read_bytes() == (TINY / "chat_template.jinja").read_bytes()
    lineage = read_prior_lineage(settings(lora__start=str(tmp_path)))
    assert lineage is not None
    assert not lineage.questions


def test_the_command_makes_one_and_names_modules_that_are_not_there(tmp_path: Path, run: Callable[..., Ran]) -> None:
    known = ["adapter", "create", "--model", "tiny", "--quantization", "nf4", "--rank", 2, "--alpha", 6]
    done = run(*known, "--target-modules", "q_proj,v_proj", "--out", tmp_path / "a", "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    parameters = 4 * 2 * (192 + 192 + 192 + 96)
    assert (told["modules"], told["parameters"], told["bytes"]) == (8, parameters, 4 * parameters)
    assert told["share"] == pytest.approx(parameters / 2506176)
    shape = json.loads((tmp_path / "a" / ADAPTER_CONFIG).read_text())
    assert (shape["r"], shape["lora_alpha"], sorted(shape["target_modules"])) == (2, 6, ["q_proj", "v_proj"])
    base = AdapterBase.read(tmp_path / "a")
    assert base is not None
    assert (base.name, base.quantization, base.stored) == ("tiny", "nf4", "full")
    again = run(*known, "--out", tmp_path / "a")
    assert (again.status, again.code) == (2, "adapters.directory-not-empty")
    wrong = run(*known, "--target-modules", "q_proj,c_attn,fc1", "--out", tmp_path / "b")
    assert (wrong.status, wrong.code) == (2, "adapters.unknown-target-module")
    assert ": c_attn, fc1;" in wrong.err
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in wrong.err
    begun = run(*known, "--set", f"lora.start={tmp_path / 'a'}", "--out", tmp_path / "c")
    assert (begun.status, begun.code) == (2, "adapters.start-given")


def test_a_base_s_fingerprint_is_the_same_in_several_files_and_other_for_other_weights(tmp_path: Path) -> None:
    import torch

    first = random_model(256, 1)
    first.save_pretrained(tmp_path / "whole")
    first.save_pretrained(tmp_path / "parts", max_shard_size="100KB")
    first.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    random_model(256, 2).save_pretrained(tmp_path / "other")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    whole, parts, half, other = (
        identify_base_model("m", str(tmp_path / name), "none") for name in ("whole", "parts", "half", "other")
    )
    assert whole == parts == half, "whichever files, and whichever precision, the weights lie in"
    assert whole.fingerprint
    assert whole.compare(parts) == (True, "the weights' fingerprint")
    assert whole.compare(other)[0] is False
    elsewhere = identify_base_model("some/model-that-is-not-here", "some/model-that-is-not-here", "nf4")
    assert (elsewhere.fingerprint, elsewhere.stored) == (None, None)
    assert elsewhere.compare(whole)[0] is None


def test_damaged_and_missing_files_of_a_base_are_told(tmp_path: Path) -> None:
    random_model(256, 1).save_pretrained(tmp_path, max_shard_size="100KB")
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    whole = parts[0].read_bytes()
    for content, value in ((whole[:-10], f"{len(whole) - 10:,} bytes"), (b"", "buffer"), (b"\xff" * 64, "header")):
        parts[0].write_bytes(content)
        with raises("training.weights-damaged", parts[0], value):
            find_tensors(tmp_path)
    parts[0].unlink()
    with raises("base-models.file-missing", parts[0]):
        find_tensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with raises("base-models.index-damaged", tmp_path / "model.safetensors.index.json"):
        find_tensors(tmp_path)


def held(report: "MergeReport", adapter: Path, base: Any, rounded: str) -> None:
    """That a merged model says what base model and adapter say, by other means than `merge` itself has."""
    from gumshoe.training.adapters.merge import TOLERANCE

    wanted = with_adapter(base, adapter)
    assert apart(logits(loaded(report.directory)), wanted) <= TOLERANCE[rounded][1]
    assert report.mean <= TOLERANCE[rounded][1] * report.spread
    assert report.effect > 10 * report.mean


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_one_is_merged_into_full_weights(dtype: Any, tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = made(tmp_path / "a")
    report = merge(adapter, None, tmp_path / "merged", dtype=dtype, max_shard_size="1MB")
    out = tmp_path / "merged"
    kind = "float32" if dtype == "float32" else "bfloat16"
    assert (report.onto, report.dtype, report.modules) == ("full", kind, 28)
    held(report, adapter, loaded(TINY), "exact" if dtype == "float32" else "weights")
    files = sorted(each.name for each in out.glob("*.safetensors"))
    assert len(files) == report.files > 1
    assert files[0] == f"model-00001-of-{report.files:05}.safetensors"
    tensors = find_tensors(out)
    assert tensors.keys() == find_tensors(TINY).keys()
    assert {each.dtype for each in tensors.values()} == {"F32" if dtype == "float32" else "BF16"}
    assert max((out / each).stat().st_size for each in files if each) < 3.6e6  # the embeddings are one tensor
    assert sum(each.size for each in tensors.values()) == report.bytes
    for name in TOKENIZER:
        assert (out / name).read_bytes() == (TINY / name).read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config == {**json.loads((TINY / "config.json").read_text()), "dtype": kind}
    assert not list(tmp_path.glob(".*")), "nothing is left of what it was made in"


def test_what_is_made_of_the_tiny_policy_is_still_asked_as_it_was_taught(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    index = make_collection(tmp_path / "documents", [page(1)])
    taught = open_env(index, None).for_tiny().provenance
    once, twice = tmp_path / "once", tmp_path / "twice"
    merge(made(tmp_path / "a"), "tiny", once)
    merge(made(tmp_path / "b", once, size=0.01), str(once), twice)
    for place in (once, twice):
        assert is_tiny(place)
        assert PolicyName.parse(f"local:{place}").is_tiny
        assert open_run_env(settings(place), index).provenance == taught
    assert identify_base_model("m", str(once), "none").compare(identify_base_model("m", str(TINY), "none"))[0] is False
    other = other_base(tmp_path / "other")
    merge(made(tmp_path / "c", other), None, tmp_path / "third")
    assert not is_tiny(tmp_path / "third")
    assert not is_tiny("some/model")
    (once / "merged.json").write_text("{")
    with raises("inference.merge-record-damaged", once):
        is_tiny(once)
    untaught = open_env(index, None).provenance
    assert open_run_env(settings(tmp_path / "third"), index).provenance == untaught != taught


def test_what_was_merged_is_never_tested_on_what_it_saw(tmp_path: Path, mail: Path, run: Callable[..., Ran]) -> None:
    from gumshoe.training.adapters.merge import merge

    asked = synthetic().scenarios.scenarios
    first, second = (made(tmp_path / name, size=0.01) for name in "ab")
    Lineage(learned_from=ScenarioSet(asked[:1]).to_record()).write(first)
    merge(first, None, tmp_path / "once")
    seen = read_prior_lineage(settings(tmp_path / "once"))
    assert seen is not None
    assert seen.learned_from.ids == (asked[0].id,)
    shutil.rmtree(second)
    made(second, tmp_path / "once", size=0.01)
    assert read_prior_lineage(settings(tmp_path / "once", lora__start=str(second))).before == seen  # type: ignore[union-attr]
    Lineage(learned_from=ScenarioSet(asked[1:2]).to_record()).write(
        second
    )  # as if nothing were known of what it began at
    merge(second, None, tmp_path / "twice")
    both = Lineage.read(tmp_path / "twice")
    assert both is not None
    assert len(both.questions) == 2
    known = ["--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--out", tmp_path / "measured"]
    done = run("evaluate", *known, "--policy", f"after=local:{tmp_path / 'twice'}", "--split", "train")
    assert (done.status, done.code) == (2, "scenarios.seen-in-training"), done.err
    assert "1 of these 4 scenarios" in done.err


@pytest.mark.usefixtures("four_bit")
@pytest.mark.parametrize("dtype", ["auto", pytest.param("float32", marks=pytest.mark.nightly)])
def test_one_of_qlora_is_merged_into_the_weights_that_it_learned_on(dtype: Any, tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge
    from gumshoe.training.models.lora_model import nf4_config

    adapter = made(tmp_path / "a", model__quantization="nf4")
    report = merge(adapter, None, tmp_path / "merged", dtype=dtype)
    assert report.onto == "nf4"
    held(report, adapter, in_four_bits(loaded(TINY, quantization_config=nf4_config())), "weights")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    full = merge(adapter, None, tmp_path / "full", dtype=dtype, onto="full")
    assert full.onto == "full"
    wanted = with_adapter(in_four_bits(loaded(TINY, quantization_config=nf4_config())), adapter)
    assert apart(logits(loaded(full.directory)), wanted) > 5 * apart(logits(loaded(report.directory)), wanted)


@pytest.mark.usefixtures("four_bit")
def test_one_is_merged_into_a_base_that_lies_in_four_bits(tmp_path: Path) -> None:
    import torch

    from gumshoe.training.adapters.merge import merge
    from gumshoe.training.models.lora_model import nf4_config

    base = tmp_path / "base"
    loaded(TINY, torch.bfloat16, quantization_config=nf4_config()).save_pretrained(base)
    for name in TOKENIZER:
        shutil.copy(TINY / name, base / name)
    adapter = made(tmp_path / "a", base)
    report = merge(adapter, str(base), tmp_path / "merged", max_shard_size="2MB")
    assert (report.onto, report.dtype, report.compared_by) == ("nf4", "bfloat16", "the weights' fingerprint")
    assert report.files > 1
    held(report, adapter, in_four_bits(loaded(base)), "weights")
    out = tmp_path / "merged"
    assert find_tensors(out).keys() == find_tensors(TINY).keys()
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    onto_full = merge(adapter, "tiny", tmp_path / "full")
    assert onto_full.onto == "nf4", "the full weights of the same model, as they come back from four bits"
    assert "embeddings" in onto_full.compared_by
    with raises("adapters.base-quantized", base):
        merge(adapter, str(base), tmp_path / "x", onto="full")
    random = other_base(tmp_path / "other", hidden_size=192, intermediate_size=512, num_hidden_layers=4,
                        num_attention_heads=6, num_key_value_heads=3)  # fmt: skip
    with raises("adapters.other-base", random, "embeddings"):
        merge(adapter, str(random), tmp_path / "x")


def test_one_is_not_merged_into_another_base(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    base = other_base(tmp_path / "base")
    adapter = made(tmp_path / "a", base)
    same_shape = other_base(tmp_path / "same", seed=2)
    wider = other_base(tmp_path / "wider", intermediate_size=256)
    deeper = made(tmp_path / "deep", other_base(tmp_path / "deeper", num_hidden_layers=3))
    for given, model, values in (
        (adapter, same_shape, (base, same_shape, "weights' fingerprint")),
        (adapter, wider, ("down_proj maps 128 values to 64", "256 to 64")),
        (deeper, base, ("7 of its modules", "model.layers.2.mlp.down_proj")),
    ):
        with raises("adapters.other-base", given, *values):
            merge(given, str(model), tmp_path / "out")
    with raises("sources.no-such-model-directory", tmp_path / "none"):
        merge(adapter, str(tmp_path / "none"), tmp_path / "out")
    with raises("adapters.other-base", adapter, base, same_shape):
        check_same_base(settings(same_shape, lora__start=str(adapter)))
    check_same_base(settings(base, lora__start=str(adapter)))
    (adapter / BASE).unlink()
    check_same_base(settings(same_shape, lora__start=str(adapter)))
    report = merge(adapter, str(same_shape), tmp_path / "out")
    assert report.compared_by.startswith("names and shapes")


@pytest.mark.parametrize(
    ("spoil", "code", "value"),
    [
        (lambda it: written(it / ADAPTER_CONFIG, use_dora=True), "adapters.not-mergeable", "DoRA"),
        (
            lambda it: written(it / ADAPTER_CONFIG, modules_to_save=["lm_head"]),
            "adapters.not-mergeable",
            "lm_head (modules_to",
        ),
        (lambda it: written(it / ADAPTER_CONFIG, bias="all"), "adapters.not-mergeable", "biases"),
        (
            lambda it: written(it / ADAPTER_CONFIG, target_parameters=["x"]),
            "adapters.not-mergeable",
            "x (target_parameters)",
        ),
        (lambda it: written(it / ADAPTER_CONFIG, peft_type="IA3"), "adapters.not-lora", "IA3"),
        (lambda it: written(it / ADAPTER_CONFIG, r=8), "adapters.damaged", "28 modules have another rank"),
        (lambda it: written(it / ADAPTER_CONFIG, target_modules=["q_proj", "c"]), "adapters.damaged", "no weights: c"),
        (lambda it: (it / ADAPTER_CONFIG).unlink(), "adapters.not-an-adapter", ADAPTER_CONFIG),
        (lambda it: (it / ADAPTER_CONFIG).write_text("[]"), "adapters.not-an-adapter", ADAPTER_CONFIG),
        (lambda it: (it / WEIGHTS).unlink(), "adapters.no-weights", WEIGHTS),
        (lambda it: (it / WEIGHTS).write_bytes((it / WEIGHTS).read_bytes()[:-8]), "training.weights-damaged", WEIGHTS),
        (lambda it: (it / BASE).write_text("{}"), "sources.invalid-metadata", BASE),
        (lambda it: changed(it, lambda all_: dict(list(all_.items())[1:])), "adapters.damaged", "1 modules"),
        (
            lambda it: changed(it, lambda all_: {n: e * float("nan") for n, e in all_.items()}),
            "adapters.not-finite",
            "lora_A.weight",
        ),
        (
            lambda it: changed(it, lambda all_: {f"x.{n}": e for n, e in all_.items()}),
            "adapters.damaged",
            "56 tensors",
        ),
        (
            lambda it: changed(it, lambda all_: {n.replace("mlp.up_proj", "lm_head"): e for n, e in all_.items()}),
            "adapters.not-mergeable",
            "lm_head, not only linear",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused(spoil: Callable[[Path], Any], code: str, value: str, tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = made(tmp_path / "a")
    spoil(adapter)
    with raises(code, adapter, value):
        merge(adapter, "tiny", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_base_that_cannot_be_merged_into_is_refused(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    base = other_base(tmp_path / "base")
    adapter = made(tmp_path / "a", base)
    config, weights = base / "config.json", base / "model.safetensors"
    kept = config.read_text()
    for how, value in (
        ({"quant_method": "gptq"}, "quantized with gptq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quantized with bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "NF4"),
    ):
        written(config, quantization_config=how)
        with raises("base-models.unsupported-quantization", base, value):
            merge(adapter, str(base), tmp_path / "out")
    config.write_text(kept)
    with raises("adapters.invalid-shard-size", "--max-shard-size", "many"):
        merge(adapter, str(base), tmp_path / "out", max_shard_size="many")
    (base / "tokenizer.json").rename(base / "elsewhere")
    with raises("base-models.no-tokenizer", base):
        merge(adapter, str(base), tmp_path / "out")
    (base / "elsewhere").rename(base / "tokenizer.json")
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with raises("training.weights-damaged", weights):
        merge(adapter, str(base), tmp_path / "out")
    weights.unlink()
    with raises("base-models.no-safetensors", base):
        merge(adapter, str(base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_holds_files_is_refused(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = made(tmp_path / "a")
    with raises("adapters.directory-not-empty", adapter):
        merge(adapter, None, adapter)
    (tmp_path / "empty").mkdir()
    assert merge(adapter, None, tmp_path / "empty").files == 1


def test_a_disk_without_room_is_told_before_anything_is_loaded(tmp_path: Path, small_disk: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    with raises("adapters.disk-too-small", "22 MB", small_disk, "5 MB"):
        merge(made(tmp_path / "a"), None, small_disk / "out")
    assert not list(small_disk.iterdir())


def test_nothing_is_left_of_a_merged_model_that_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter whose scale is read wrongly on one of the two ways."""
    from gumshoe.training.adapters.adapter_files import Adapter
    from gumshoe.training.adapters.merge import merge

    adapter = made(tmp_path / "a")
    monkeypatch.setattr(Adapter, "scale", lambda *_: 1.0)
    with raises("adapters.merge-differs"):
        merge(adapter, None, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_an_adapter_that_rounding_takes_away_is_warned_of(tmp_path: Path, run: Callable[..., Ran]) -> None:
    adapter = made(tmp_path / "a", size=2e-5)
    done = run("adapter", "merge", adapter, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "bfloat16" in done.err
    done = run("adapter", "merge", adapter, "--out", tmp_path / "exact", "--dtype", "float32", "--json")
    told = json.loads(done.out)
    assert told["mean"] < told["effect"] / 10
    assert not done.err


def test_scales_by_module_and_of_rslora_are_merged_as_peft_has_them(tmp_path: Path) -> None:
    from gumshoe.training.adapters.adapter_files import inspect_adapter
    from gumshoe.training.adapters.merge import merge

    adapter = made(tmp_path / "a", size=0.02)
    written(adapter / ADAPTER_CONFIG, use_rslora=True, alpha_pattern={"q_proj": 2, r"layers\.0\.mlp\.up_proj": 12})
    report = merge(adapter, None, tmp_path / "out", dtype="float32")
    held(report, adapter, loaded(TINY), "exact")
    assert "alpha_pattern" in inspect_adapter(adapter).unservable[0]


def test_what_an_adapter_is_can_be_seen(tmp_path: Path, run: Callable[..., Ran]) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = made(tmp_path / "a", lora__target_modules=["q_proj", "down_proj"], model__quantization="nf4")
    asked = synthetic().scenarios.scenarios
    before = Lineage(learned_from=ScenarioSet(asked[:2]).to_record())
    Lineage(
        learned_from=ScenarioSet(asked[1:4]).to_record(), chosen_on=ScenarioSet(asked[4:5]).to_record(), before=before
    ).write(adapter)
    done = run("adapter", "inspect", adapter, "--model", "tiny", "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert (told["rank"], told["alpha"], told["modules"]) == (4, 8, 8)
    assert told["target_modules"] == ["down_proj", "q_proj"]
    assert told["dtypes"] == ["F32"]
    assert (told["base"], told["quantization"]) == ("tiny", "nf4")
    assert told["fingerprint"] == identify_base_model("tiny", str(TINY), "none").fingerprint
    assert (told["learned_from"], told["chosen_on"], told["step"]) == (4, 1, None)
    assert (told["is_untouched"], told["not_finite"], told["layout"], told["misfits"]) == (False, 0, [], [])
    assert (told["unservable"], told["served_with"]) == ([], 8)
    weights = load_file(adapter / WEIGHTS)
    for kind, norm in told["norms"].items():
        products = [
            2 * each @ weights[name.replace("lora_B", "lora_A")]
            for name, each in weights.items()
            if f"{kind}.lora_B" in name
        ]
        assert norm == pytest.approx(float(torch.stack(products).norm()), rel=1e-4)
    shown = run("adapter", "inspect", adapter, "--model", "tiny")
    for text in ("rank 4, alpha 8", "in four bits (NF4)", "4 scenarios to learn from, 1 to choose on",
                 "with --max-lora-rank 8", "as peft, vLLM and Unsloth read them", "tiny, compared by"):  # fmt: skip
        assert text in shown.out


def test_what_is_wrong_with_an_adapter_is_told(tmp_path: Path, run: Callable[..., Ran]) -> None:
    from gumshoe.training.adapters.adapter_files import create_adapter, inspect_adapter
    from gumshoe.training.adapters.merge import merge

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    create_adapter(settings(), fresh)
    assert inspect_adapter(fresh).is_untouched
    assert re.search("^update +none", run("adapter", "inspect", fresh).out, re.M)
    other = other_base(tmp_path / "other")
    done = run("adapter", "inspect", fresh, "--model", other)
    assert (done.status, done.code) == (3, "adapters.unsound")
    assert f"tiny, and {other}" in done.err
    assert "weights' fingerprint" in done.err
    changed(fresh, lambda all_: {name: each / 0 for name, each in all_.items()})
    broken = run("adapter", "inspect", fresh)
    assert (broken.status, broken.code) == (3, "adapters.unsound")
    assert f"{inspect_adapter(fresh).not_finite:,} weights" in broken.err
    for name, value, said in (
        ("use_dora", True, "DoRA"),
        ("r", 1024, "rank 1024 is greater than 512"),
        ("bias", "lora_only", "biases"),
        ("rank_pattern", {"q_proj": 2}, "rank_pattern"),
    ):
        adapter = made(tmp_path / name)
        written(adapter / ADAPTER_CONFIG, **{name: value})
        assert said in "; ".join(inspect_adapter(adapter).unservable)
    (adapter / BASE).unlink()
    written(adapter / ADAPTER_CONFIG, base_model_name_or_path=None, rank_pattern={})
    found = inspect_adapter(adapter)
    (fault,) = found.layout
    assert "Unsloth" in fault
    assert (found.base, found.fingerprint, found.quantization, found.is_sound) == (None, None, None, False)
    with raises("adapters.base-unknown", adapter, "--model"):
        merge(adapter, None, tmp_path / "out")


@pytest.mark.usefixtures("four_bit")
def test_weights_in_four_bits_have_their_gradients_after_a_rollout_too(tmp_path: Path) -> None:
    """Where a CPU knows bfloat16, bitsandbytes packs them for inference, and would go on with that."""
    import torch
    from peft import PeftModel

    from gumshoe.training.models.lora_model import load_base

    told = settings(model__quantization="nf4")
    adapter = made(tmp_path / "a", model__quantization="nf4")

    def gradient(*, rolls_out: bool) -> "torch.Tensor":
        model: Any = PeftModel.from_pretrained(load_base(told), str(adapter), is_trainable=True)
        if rolls_out:
            logits(model)
        model.train()(tokens(), labels=tokens()).loss.backward()
        first: torch.Tensor = (
            model.get_submodule("base_model.model.model.layers.0.mlp.up_proj").lora_A["default"].weight
        )
        assert first.grad is not None
        return first.grad

    assert gradient(rolls_out=False).abs().max() > 0
    assert torch.equal(gradient(rolls_out=False), gradient(rolls_out=True))


@pytest.mark.ci
@pytest.mark.usefixtures("four_bit", "trains_here")
def test_training_begins_at_one_on_weights_in_four_bits_and_what_it_leaves_is_merged(
    mail: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    import torch
    from safetensors.torch import load_file

    from gumshoe.training.adapters.adapter_files import create_adapter, inspect_adapter
    from gumshoe.training.adapters.merge import merge

    start, out = tmp_path / "start", tmp_path / "run"
    start.mkdir()
    create_adapter(settings(model__quantization="nf4"), start)
    few = {
        "lora.rank": 4,
        "lora.alpha": 8,
        "lora.start": start,
        "model.quantization": "nf4",
        "rollouts.num_generations": 2,
        "rollouts.temperature": 2,
        "rollouts.max_tokens": 32,
        "rollouts.max_turns": 3,
        "rollouts.min_group_std": 0,
        "optimizer.per_device_train_batch_size": 2,
        "optimizer.gradient_accumulation_steps": 1,
        "optimizer.max_steps": 2,
        "optimizer.learning_rate": 0,
        "evaluation.baseline": "false",
        "data.eval_size": 1,
        "output.report_to": "[]",
    }
    words = [word for name, value in few.items() for word in ("--set", f"{name}={value}")]
    known = ["--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--model", "tiny"]
    done = run("train", *known, *words, "--engine", "transformers", "--out", out)
    assert done.status == 0, done.err
    base = AdapterBase.read(out / "final")
    assert base is not None
    assert base == AdapterBase.read(start)
    before, after = (load_file(each / WEIGHTS) for each in (start, out / "final"))
    assert all(torch.equal(each, before[name]) for name, each in after.items())
    found = inspect_adapter(out / "final", "tiny")
    assert (found.step, found.learned_from, found.misfits) == (2, 4, [])
    assert merge(out / "final", None, tmp_path / "merged").onto == "nf4"


def test_an_error_of_the_system_says_where(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    with raises("store.not-a-directory", tmp_path / "a" / ADAPTER_CONFIG):
        merge(made(tmp_path / "a"), None, tmp_path / "a" / ADAPTER_CONFIG / "out")
    with raises("adapters.output-unnamed", "'.'"):
        merge(tmp_path / "a", None, Path())
