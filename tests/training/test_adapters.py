"""Adapters: created without loading a base model, inspected, and merged into full and quantized weights."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.model_card import find_base_revision
from gumshoe.environments.recorded import ENVIRONMENT, read_environment, write_environment
from gumshoe.environments.registry import EnvironmentSettings, open_env
from gumshoe.inference.policy_names import TINY, PolicyName, is_tiny
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings, resolve_chat_settings
from gumshoe.rollouts.policy_limits import PolicyLimits, read_trained_limits
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.training.models.base_model import AdapterBase, check_same_base, find_tensors, identify_base_model
from gumshoe.training.run_spec import check_start, open_run_env, read_prior_lineage
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import resolve
from tests.conftest import CommandResult, skip_missing
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import make_index
from tests.models import random_model
from tests.rollouts.conversations import synthetic
from tests.rollouts.test_policy_limits import write_trained

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
def requires_bitsandbytes() -> None:
    """Skip the test if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        skip_missing("bitsandbytes")


def settings(model: Path | str = "tiny", **more: Any) -> TrainSettings:
    flags = {"model.name": str(model), "lora.rank": 4, "lora.alpha": 8}
    return resolve(None, flags | {name.replace("__", "."): value for name, value in more.items()}, {}).settings


def make_adapter(out: Path, model: Path | str = "tiny", *, size: float = 0.05, **more: Any) -> Path:
    """Create an adapter whose matrices B are not 0, as after training."""
    import torch

    from gumshoe.training.adapters.adapter_files import create_adapter

    out.mkdir(parents=True)
    create_adapter(settings(model, **more), out)
    generator = torch.Generator().manual_seed(1)

    def trained(name: str, each: "torch.Tensor") -> "torch.Tensor":
        return torch.randn(each.shape, generator=generator) * size if ".lora_B." in name else each

    change_weights(out, lambda weights: {name: trained(name, each) for name, each in weights.items()})
    return out


def change_weights(adapter: Path, change: "Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]") -> None:
    from safetensors.torch import load_file, save_file

    save_file(change(load_file(adapter / WEIGHTS)), adapter / WEIGHTS, metadata={"format": "pt"})


def write_config(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def other_base(directory: Path, seed: int = 1, **more: Any) -> Path:
    """Save a random model with the tokenizer of the tiny policy."""
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


def load_model(directory: Path | str, dtype: "torch.dtype | None" = None, **more: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype or torch.float32, **more)


def compute_in_float32(model: Any) -> Any:
    """Make a 4-bit model compute in float32."""
    import torch

    for each in model.modules():
        if hasattr(each, "support_avx512bf16_for_cpu"):
            each.compute_dtype, each.support_avx512bf16_for_cpu = torch.float32, False
    return model


def logits_with_adapter(model: Any, adapter: Path) -> "torch.Tensor":
    from peft import PeftModel

    return logits(PeftModel.from_pretrained(model, str(adapter)))


def relative_difference(one: "torch.Tensor", other: "torch.Tensor") -> float:
    """Return the mean difference, as a share of the standard deviation."""
    return float((one - other).abs().mean() / other.std())


def test_a_created_adapter_has_the_initial_weights_of_training(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import set_seed

    from gumshoe.training.adapters.adapter_files import create_adapter
    from gumshoe.training.models.lora_model import load_base, lora_config

    known = settings(data__seed=7)
    report = create_adapter(known, tmp_path)
    set_seed(7)
    model = load_base(known)
    initial = get_peft_model(model, lora_config(known.lora, model))
    wanted = {name.replace(".default", ""): each for name, each in initial.named_parameters() if "lora_" in name}
    weights = load_file(tmp_path / WEIGHTS)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(each, wanted[name]) for name, each in weights.items())
    assert (report.modules, report.parameters) == (28, sum(each.numel() for each in weights.values()))
    assert report.base_parameters == 2506176
    assert report.bytes == 4 * report.parameters
    check_start(known.lora.model_copy(update={"start": tmp_path}))
    PeftModel.from_pretrained(load_base(known), str(tmp_path))
    assert (tmp_path / "chat_template.jinja").read_bytes() == (TINY / "chat_template.jinja").read_bytes()
    lineage = read_prior_lineage(settings(lora__start=str(tmp_path)))
    assert lineage is not None
    assert not lineage.questions


def test_an_adapter_of_the_upper_layers_leaves_the_others_out(tmp_path: Path) -> None:
    import torch
    from peft import get_peft_model
    from safetensors.torch import load_file

    from gumshoe.training.adapters.adapter_files import create_adapter, inspect_adapter
    from gumshoe.training.models.lora_model import load_base, lora_config

    known = settings(lora__layers=2)
    report = create_adapter(known, tmp_path)
    assert {name.split(".")[4] for name in load_file(tmp_path / WEIGHTS)} == {"2", "3"}
    assert (report.modules, inspect_adapter(tmp_path, "tiny").layout) == (14, [])
    start = known.lora.model_copy(update={"start": tmp_path})
    check_start(start)
    with raises("adapters.other-lora-settings", "lora.layers"):
        check_start(start.model_copy(update={"layers": None}))
    with raises("training.too-few-layers", "lora.layers is 5", "4 layers"):
        create_adapter(settings(lora__layers=5), tmp_path / "more")
    model = get_peft_model(load_base(known), lora_config(known.lora, load_base(known)))
    inputs: list[bool] = []
    for layer in model.get_decoder().layers:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].requires_grad))
    model(input_ids=torch.tensor([[1, 2, 3]]))
    assert inputs == [False, False, False, True], "the backward pass ends at the input of the third layer"


def test_with_autocast_adapters_take_inputs_of_16_bits_and_compute_the_same() -> None:
    """`peft` would cast them to 32 bits, and autocast back."""
    import torch
    from peft import get_peft_model

    from gumshoe.training.models.lora_model import leave_casts_to_autocast, lora_config

    model = random_model(60, 1).to(torch.bfloat16)
    adapted: Any = get_peft_model(model, lora_config(TrainSettings().lora, model))
    for name, each in adapted.named_parameters():
        if "lora_" in name:
            each.data = torch.randn_like(each.data, dtype=torch.float32) * 0.1
    taken: set[torch.dtype] = set()
    for name, module in adapted.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_pre_hook(lambda _, given: taken.add(given[0].dtype))
    logits = []
    for is_changed in (False, True):
        if is_changed:
            leave_casts_to_autocast(adapted)
        taken.clear()
        with torch.autocast("cpu", torch.bfloat16):
            logits.append(adapted(input_ids=torch.arange(20)[None]).logits)
        assert taken == {torch.bfloat16 if is_changed else torch.float32}
    assert torch.equal(*logits)


def test_the_command_creates_an_adapter_and_checks_modules(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    known = ["adapter", "create", "--model", "tiny", "--quantization", "nf4", "--rank", 2, "--alpha", 6]
    done = run(*known, "--target-modules", "q_proj,v_proj", "--out", tmp_path / "a", "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    parameters = 4 * 2 * (192 + 192 + 192 + 96)
    assert (report["modules"], report["parameters"], report["bytes"]) == (8, parameters, 4 * parameters)
    assert report["share"] == pytest.approx(parameters / 2506176)
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
    with_start = run(*known, "--set", f"lora.start={tmp_path / 'a'}", "--out", tmp_path / "c")
    assert (with_start.status, with_start.code) == (2, "adapters.start-given")


def test_the_fingerprint_depends_on_weights_only(tmp_path: Path) -> None:
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
    assert whole == parts == half, "files and dtype do not matter"
    assert whole.fingerprint
    assert whole.compare(parts) == (True, "the weights' fingerprint")
    assert whole.compare(other)[0] is False
    elsewhere = identify_base_model("some/model-that-is-not-here", "some/model-that-is-not-here", "nf4")
    assert (elsewhere.fingerprint, elsewhere.stored) == (None, None)
    assert elsewhere.compare(whole)[0] is None


def test_damaged_and_missing_files_are_reported(tmp_path: Path) -> None:
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


def check_merged(report: "MergeReport", adapter: Path, base: Any, rounded: str) -> None:
    """Check that a merged model has the logits of base model and adapter, independently of `merge`."""
    from gumshoe.training.adapters.merge import TOLERANCE

    wanted = logits_with_adapter(base, adapter)
    assert relative_difference(logits(load_model(report.directory)), wanted) <= TOLERANCE[rounded][1]
    assert report.mean <= TOLERANCE[rounded][1] * report.spread
    assert report.effect > 10 * report.mean


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_merging_into_full_weights(dtype: Any, tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = make_adapter(tmp_path / "a")
    report = merge(adapter, None, tmp_path / "merged", dtype=dtype, max_shard_size="1MB")
    out = tmp_path / "merged"
    kind = "float32" if dtype == "float32" else "bfloat16"
    assert (report.onto, report.dtype, report.modules) == ("full", kind, 28)
    check_merged(report, adapter, load_model(TINY), "exact" if dtype == "float32" else "weights")
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
    assert not list(tmp_path.glob(".*")), "no temporary directory is left"


@pytest.mark.ci
def test_a_merged_tiny_policy_keeps_its_environment_chat_settings_and_limits(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    index = make_collection(tmp_path / "documents", [page(1)])
    taught = open_env(index, None).for_tiny().provenance
    once, twice = tmp_path / "once", tmp_path / "twice"
    first = make_adapter(tmp_path / "a")
    ChatSettings(thinking_budget=5).write(first)
    write_trained(first)
    write_environment(open_env(index, EnvironmentSettings(name="documents", arguments={"hits": 3})), first)
    merge(first, "tiny", once)
    assert open_run_env(settings(once), index).arguments["hits"] == read_environment(once).arguments["hits"] == 3
    (once / ENVIRONMENT).unlink()
    assert resolve_chat_settings(None, *PolicyName.parse(f"local:{once}").directories).thinking_budget == 5
    merge(make_adapter(tmp_path / "b", once, size=0.01), str(once), twice)
    for place in (once, twice):
        assert read_trained_limits(place) == PolicyLimits(6, 120, 4096)
        assert is_tiny(place)
        assert PolicyName.parse(f"local:{place}").is_tiny
        assert open_run_env(settings(place), index).provenance == taught
    assert identify_base_model("m", str(once), "none").compare(identify_base_model("m", str(TINY), "none"))[0] is False
    other = other_base(tmp_path / "other")
    merge(make_adapter(tmp_path / "c", other), None, tmp_path / "third")
    assert not is_tiny(tmp_path / "third")
    assert not is_tiny("some/model")
    (once / "merged.json").write_text("{")
    with raises("inference.merge-record-damaged", once):
        is_tiny(once)
    untaught = open_env(index, None).provenance
    assert open_run_env(settings(tmp_path / "third"), index).provenance == untaught != taught


@pytest.mark.nightly
def test_a_merged_model_is_not_tested_on_seen_scenarios(
    tmp_path: Path, mail: Path, run: Callable[..., CommandResult]
) -> None:
    from gumshoe.training.adapters.merge import merge

    asked = synthetic().scenarios.scenarios
    first, second = (make_adapter(tmp_path / name, size=0.01) for name in "ab")
    Lineage(learned_from=ScenarioSet(asked[:1]).to_record()).write(first)
    merge(first, None, tmp_path / "once")
    seen = read_prior_lineage(settings(tmp_path / "once"))
    assert seen is not None
    assert seen.learned_from.ids == (asked[0].id,)
    shutil.rmtree(second)
    make_adapter(second, tmp_path / "once", size=0.01)
    assert read_prior_lineage(settings(tmp_path / "once", lora__start=str(second))).before == seen  # type: ignore[union-attr]
    Lineage(learned_from=ScenarioSet(asked[1:2]).to_record()).write(second)  # without the lineage of its base model
    merge(second, None, tmp_path / "twice")
    both = Lineage.read(tmp_path / "twice")
    assert both is not None
    assert len(both.questions) == 2
    known = ["--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--out", tmp_path / "measured"]
    done = run("evaluate", *known, "--policy", f"after=local:{tmp_path / 'twice'}", "--split", "train")
    assert (done.status, done.code) == (2, "scenarios.seen-in-training"), done.err
    assert "1 of these 4 scenarios" in done.err


@pytest.mark.nightly
@pytest.mark.usefixtures("requires_bitsandbytes")
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_merging_qlora_into_dequantized_weights(dtype: Any, tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge
    from gumshoe.training.models.lora_model import nf4_config

    adapter = make_adapter(tmp_path / "a", model__quantization="nf4")
    report = merge(adapter, None, tmp_path / "merged", dtype=dtype)
    assert report.onto == "nf4"
    check_merged(report, adapter, compute_in_float32(load_model(TINY, quantization_config=nf4_config())), "weights")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    full = merge(adapter, None, tmp_path / "full", dtype=dtype, onto="full")
    assert full.onto == "full"
    wanted = logits_with_adapter(compute_in_float32(load_model(TINY, quantization_config=nf4_config())), adapter)
    assert relative_difference(logits(load_model(full.directory)), wanted) > 5 * relative_difference(
        logits(load_model(report.directory)), wanted
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("requires_bitsandbytes")
def test_merging_into_a_base_model_stored_in_4_bits(tmp_path: Path) -> None:
    import torch

    from gumshoe.training.adapters.merge import merge
    from gumshoe.training.models.lora_model import nf4_config

    base = tmp_path / "base"
    load_model(TINY, torch.bfloat16, quantization_config=nf4_config()).save_pretrained(base)
    for name in TOKENIZER:
        shutil.copy(TINY / name, base / name)
    adapter = make_adapter(tmp_path / "a", base)
    report = merge(adapter, str(base), tmp_path / "merged", max_shard_size="2MB")
    assert (report.onto, report.dtype, report.compared_by) == ("nf4", "bfloat16", "the weights' fingerprint")
    assert report.files > 1
    check_merged(report, adapter, compute_in_float32(load_model(base)), "weights")
    out = tmp_path / "merged"
    assert find_tensors(out).keys() == find_tensors(TINY).keys()
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    onto_full = merge(adapter, "tiny", tmp_path / "full")
    assert onto_full.onto == "nf4", "the full weights of the same model, quantized and dequantized"
    assert "embeddings" in onto_full.compared_by
    with raises("adapters.base-quantized", base):
        merge(adapter, str(base), tmp_path / "x", onto="full")
    random = other_base(tmp_path / "other", hidden_size=192, intermediate_size=512, num_hidden_layers=4,
                        num_attention_heads=6, num_key_value_heads=3)  # fmt: skip
    with raises("adapters.other-base", random, "embeddings"):
        merge(adapter, str(random), tmp_path / "x")


@pytest.mark.ci
def test_merging_into_another_base_model_is_rejected(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    base = other_base(tmp_path / "base")
    adapter = make_adapter(tmp_path / "a", base)
    same_shape = other_base(tmp_path / "same", seed=2)
    wider = other_base(tmp_path / "wider", intermediate_size=256)
    deeper = make_adapter(tmp_path / "deep", other_base(tmp_path / "deeper", num_hidden_layers=3))
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
        (lambda it: write_config(it / ADAPTER_CONFIG, use_dora=True), "adapters.not-mergeable", "DoRA"),
        (
            lambda it: write_config(it / ADAPTER_CONFIG, modules_to_save=["lm_head"]),
            "adapters.not-mergeable",
            "lm_head (modules_to",
        ),
        (lambda it: write_config(it / ADAPTER_CONFIG, bias="all"), "adapters.not-mergeable", "biases"),
        (
            lambda it: write_config(it / ADAPTER_CONFIG, target_parameters=["x"]),
            "adapters.not-mergeable",
            "x (target_parameters)",
        ),
        (lambda it: write_config(it / ADAPTER_CONFIG, peft_type="IA3"), "adapters.not-lora", "IA3"),
        (lambda it: write_config(it / ADAPTER_CONFIG, r=8), "adapters.damaged", "28 modules have another rank"),
        (
            lambda it: write_config(it / ADAPTER_CONFIG, target_modules=["q_proj", "c"]),
            "adapters.damaged",
            "no weights: c",
        ),
        (lambda it: (it / ADAPTER_CONFIG).unlink(), "adapters.not-an-adapter", ADAPTER_CONFIG),
        (lambda it: (it / ADAPTER_CONFIG).write_text("[]"), "adapters.not-an-adapter", ADAPTER_CONFIG),
        (lambda it: (it / WEIGHTS).unlink(), "adapters.no-weights", WEIGHTS),
        (lambda it: (it / WEIGHTS).write_bytes((it / WEIGHTS).read_bytes()[:-8]), "training.weights-damaged", WEIGHTS),
        (lambda it: (it / BASE).write_text("{}"), "sources.invalid-metadata", BASE),
        (lambda it: change_weights(it, lambda all_: dict(list(all_.items())[1:])), "adapters.damaged", "1 modules"),
        (
            lambda it: change_weights(it, lambda all_: {n: e * float("nan") for n, e in all_.items()}),
            "adapters.not-finite",
            "lora_A.weight",
        ),
        (
            lambda it: change_weights(it, lambda all_: {f"x.{n}": e for n, e in all_.items()}),
            "adapters.damaged",
            "56 tensors",
        ),
        (
            lambda it: change_weights(
                it, lambda all_: {n.replace("mlp.up_proj", "lm_head"): e for n, e in all_.items()}
            ),
            "adapters.not-mergeable",
            "lm_head, not only linear",
        ),
    ],
)
def test_adapters_that_cannot_be_merged_are_rejected(
    spoil: Callable[[Path], Any], code: str, value: str, tmp_path: Path
) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = make_adapter(tmp_path / "a")
    spoil(adapter)
    with raises(code, adapter, value):
        merge(adapter, "tiny", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unusable_base_models_are_rejected(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    base = other_base(tmp_path / "base")
    adapter = make_adapter(tmp_path / "a", base)
    config, weights = base / "config.json", base / "model.safetensors"
    kept = config.read_text()
    for how, value in (
        ({"quant_method": "gptq"}, "quantized with gptq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quantized with bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "NF4"),
    ):
        write_config(config, quantization_config=how)
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


@pytest.mark.ci
def test_a_directory_with_files_is_rejected(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    adapter = make_adapter(tmp_path / "a")
    with raises("adapters.directory-not-empty", adapter):
        merge(adapter, None, adapter)
    (tmp_path / "empty").mkdir()
    assert merge(adapter, None, tmp_path / "empty").files == 1


def test_a_small_disk_is_reported_before_loading(tmp_path: Path, small_disk: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    with raises("adapters.disk-too-small", "22 MB", small_disk, "5 MB"):
        merge(make_adapter(tmp_path / "a"), None, small_disk / "out")
    assert not list(small_disk.iterdir())


@pytest.mark.ci
def test_a_wrong_merge_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of the adapter is read wrongly for the merge."""
    from gumshoe.training.adapters.adapter_files import Adapter
    from gumshoe.training.adapters.merge import merge

    adapter = make_adapter(tmp_path / "a")
    monkeypatch.setattr(Adapter, "scale", lambda *_: 1.0)
    with raises("adapters.merge-differs"):
        merge(adapter, None, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.ci
def test_an_adapter_lost_in_rounding_gets_a_warning(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    adapter = make_adapter(tmp_path / "a", size=2e-5)
    done = run("adapter", "merge", adapter, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "bfloat16" in done.err
    done = run("adapter", "merge", adapter, "--out", tmp_path / "exact", "--dtype", "float32", "--json")
    report = json.loads(done.out)
    assert report["mean"] < report["effect"] / 10
    assert not done.err


@pytest.mark.ci
def test_rslora_and_alpha_patterns_are_merged(tmp_path: Path) -> None:
    from gumshoe.training.adapters.adapter_files import inspect_adapter
    from gumshoe.training.adapters.merge import merge

    adapter = make_adapter(tmp_path / "a", size=0.02)
    write_config(adapter / ADAPTER_CONFIG, use_rslora=True, alpha_pattern={"q_proj": 2, r"layers\.0\.mlp\.up_proj": 12})
    report = merge(adapter, None, tmp_path / "out", dtype="float32")
    check_merged(report, adapter, load_model(TINY), "exact")
    assert "alpha_pattern" in inspect_adapter(adapter).unservable[0]


def test_inspect_shows_an_adapter(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = make_adapter(tmp_path / "a", lora__target_modules=["q_proj", "down_proj"], model__quantization="nf4")
    asked = synthetic().scenarios.scenarios
    before = Lineage(learned_from=ScenarioSet(asked[:2]).to_record())
    Lineage(
        learned_from=ScenarioSet(asked[1:4]).to_record(), chosen_on=ScenarioSet(asked[4:5]).to_record(), before=before
    ).write(adapter)
    done = run("adapter", "inspect", adapter, "--model", "tiny", "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    assert (report["rank"], report["alpha"], report["modules"]) == (4, 8, 8)
    assert report["target_modules"] == ["down_proj", "q_proj"]
    assert report["dtypes"] == ["F32"]
    assert (report["base"], report["quantization"]) == ("tiny", "nf4")
    assert report["fingerprint"] == identify_base_model("tiny", str(TINY), "none").fingerprint
    assert (report["learned_from"], report["chosen_on"], report["step"]) == (4, 1, None)
    assert (report["is_untouched"], report["not_finite"], report["layout"], report["misfits"]) == (False, 0, [], [])
    assert (report["unservable"], report["served_with"]) == ([], 8)
    weights = load_file(adapter / WEIGHTS)
    for kind, norm in report["norms"].items():
        products = [
            2 * each @ weights[name.replace("lora_B", "lora_A")]
            for name, each in weights.items()
            if f"{kind}.lora_B" in name
        ]
        assert norm == pytest.approx(float(torch.stack(products).norm()), rel=1e-4)
    shown = run("adapter", "inspect", adapter, "--model", "tiny")
    for text in ("rank 4, alpha 8", "4 bits (NF4)", "trained on 4, validated on 1", "--max-lora-rank 8"):
        assert text in shown.out


@pytest.mark.ci
def test_inspect_shows_faults(tmp_path: Path, run: Callable[..., CommandResult]) -> None:
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
    change_weights(fresh, lambda all_: {name: each / 0 for name, each in all_.items()})
    broken = run("adapter", "inspect", fresh)
    assert (broken.status, broken.code) == (3, "adapters.unsound")
    assert f"{inspect_adapter(fresh).not_finite:,} weights" in broken.err
    for name, value, reason in (
        ("use_dora", True, "DoRA"),
        ("r", 1024, "rank 1024 is greater than 512"),
        ("bias", "lora_only", "biases"),
        ("rank_pattern", {"q_proj": 2}, "rank_pattern"),
    ):
        adapter = make_adapter(tmp_path / name)
        write_config(adapter / ADAPTER_CONFIG, **{name: value})
        assert reason in "; ".join(inspect_adapter(adapter).unservable)
    (adapter / BASE).unlink()
    write_config(adapter / ADAPTER_CONFIG, base_model_name_or_path=None, rank_pattern={})
    found = inspect_adapter(adapter)
    (fault,) = found.layout
    assert "Unsloth" in fault
    assert (found.base, found.fingerprint, found.quantization, found.is_sound) == (None, None, None, False)
    with raises("adapters.base-unknown", adapter, "--model"):
        merge(adapter, None, tmp_path / "out")


@pytest.mark.ci
@pytest.mark.usefixtures("requires_bitsandbytes")
def test_4_bit_weights_have_gradients_after_a_rollout(tmp_path: Path) -> None:
    """On a CPU with bfloat16, bitsandbytes repacks them for inference, without gradients."""
    import torch
    from peft import PeftModel

    from gumshoe.training.models.lora_model import load_base

    known = settings(model__quantization="nf4")
    adapter = make_adapter(tmp_path / "a", model__quantization="nf4")

    def gradient(*, rolls_out: bool) -> "torch.Tensor":
        model: Any = PeftModel.from_pretrained(load_base(known), str(adapter), is_trainable=True)
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


@pytest.mark.nightly
@pytest.mark.usefixtures("requires_bitsandbytes", "train_in_process")
def test_training_on_4_bit_weights_starts_from_an_adapter(
    mail: Path, tmp_path: Path, run: Callable[..., CommandResult]
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


def test_operating_system_errors_name_the_path(tmp_path: Path) -> None:
    from gumshoe.training.adapters.merge import merge

    with raises("store.not-a-directory", tmp_path / "a" / ADAPTER_CONFIG):
        merge(make_adapter(tmp_path / "a"), None, tmp_path / "a" / ADAPTER_CONFIG / "out")
    with raises("adapters.output-unnamed", "'.'"):
        merge(tmp_path / "a", None, Path())


def test_a_base_model_on_the_hub_is_recorded_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "c" * 40
    model = tmp_path / "models--acme--model"
    shutil.copytree(TINY, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("acme/model", f"acme/model:{commit}"):
        found = identify_base_model(name, name, "none")
        assert (found.revision, found.fingerprint is None) == (commit, False)
    assert identify_base_model("acme/model:other", "acme/model:other", "none").revision is None
    cached = model / "snapshots" / commit
    assert identify_base_model("acme/model", str(cached), "none").revision == commit, "downloaded for this run"
    own = shutil.copytree(TINY, tmp_path / "snapshots" / "monday")
    assert identify_base_model(str(own), str(own), "none").revision is None, "a directory of the user"
    found.write(tmp_path)
    assert find_base_revision(tmp_path) == {"base_model_revision": commit}
    AdapterBase(name="tiny", quantization="none").write(tmp_path)
    assert find_base_revision(tmp_path) == {}
