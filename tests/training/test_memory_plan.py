"""Memory plans: computed by hand, compared with measurements, and rejected if the memory is too small."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gumshoe.training.models.model_shape import Linear, ModelShape, read_context, read_shape
from gumshoe.training.planning.gpu_allocation import available_memory
from gumshoe.training.planning.gpu_specs import GPUS, find_gpu
from gumshoe.training.planning.memory_estimate import (
    GIB,
    NF4,
    ComputeDevice,
    TrainingPass,
    estimate_pass,
    estimate_server_memory,
    kv_bytes,
    layer_activations,
    sampling_parts,
    trainer_parts,
    weights_bytes,
)
from gumshoe.training.planning.memory_plan import (
    GB,
    Machine,
    MemoryPlan,
    changed_settings,
    check_memory,
    make_plan,
    resolve_checkpointing,
    suggest_changes,
    to_config,
)
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import LoraSettings
from gumshoe.training.settings_sources import resolve
from tests.benchmarks.memory import CASES, MOST_OFF, RECORD, estimate, measure_case
from tests.conftest import CommandResult
from tests.errors import raises

QWEN2_5_7B = {  # as published
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
NO_ROOM = "planning.does-not-fit"
CPU, GPU = ComputeDevice(on_gpu=False, dtype=4), ComputeDevice(on_gpu=True, dtype=2)


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded measurements."""
    return json.loads(RECORD.read_text())  # type: ignore[no-any-return]


def of(**flags: Any) -> TrainSettings:
    return resolve(None, {name.replace("__", "."): value for name, value in flags.items()}, {}).settings


def config_of(directory: Path, config: dict[str, Any]) -> str:
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.fixture(scope="module")
def tiny() -> ModelShape:
    return read_shape("tiny")


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return config_of(tmp_path_factory.mktemp("7B"), QWEN2_5_7B)


@pytest.fixture(scope="module")
def large(large_model: str) -> ModelShape:
    return read_shape(large_model)


@pytest.mark.parametrize(
    ("machine", "flags", "recomputes"),
    [
        (Machine(1, 80 * GB), {}, True),  # a 7B model and vLLM on one GPU
        (Machine(2, 180 * GB), {"model__max_context": "2048"}, False),
        (Machine(2, 180 * GB), {"model__max_context": "4096", "model__gradient_checkpointing": "true"}, True),
        (Machine(1, 80 * GB), {"model__gradient_checkpointing": "false"}, False),
        (None, {}, True),
        (Machine(0, 1 * GB), {}, True),
    ],
)
def test_activations_are_kept_if_there_is_room(
    machine: Machine | None, flags: dict[str, str], recomputes: bool, large_model: str
) -> None:
    known = resolve_checkpointing(of(model__name=large_model, **flags), machine)
    assert known.model.gradient_checkpointing is recomputes
    assert known.model.recomputes is recomputes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A1000", None),
        ("", None),
    ],
)
def test_gpus_are_known_by_the_names_of_cuda(name: str, kind: str | None) -> None:
    assert find_gpu(name) == (GPUS[kind] if kind else None)


def test_activations_of_an_unknown_model_are_recomputed(tmp_path: Path) -> None:
    unknown = config_of(tmp_path, {"architectures": ["Odd"], "model_type": "odd"})
    assert resolve_checkpointing(of(model__name=unknown), Machine(8, 80 * GB)).model.gradient_checkpointing is True
    assert of(model__name=unknown).model.recomputes, "as long as it is not resolved"


class TestByHand:
    """The tiny policy: 4 layers, width 192, 6 heads of 32 with 3 key heads, feed-forward 512, 4,588 tied tokens."""

    def test_parameters_are_counted_exactly(self, tiny: ModelShape, large: ModelShape) -> None:
        attention = 192 * 192 + 192 + 2 * (192 * 96 + 96) + 192 * 192
        layer = attention + 3 * 192 * 512 + 2 * 192
        assert tiny.parameters == 4588 * 192 + 4 * layer + 192
        assert large.parameters == 7_615_616_512, "as the model's page says: 7.61 billion"
        assert (tiny.quantizable, tiny.multiplied) == (1_622_016, 1_622_016 + 4588 * 192)

    def test_adapters_have_r_times_inputs_and_outputs(self, tiny: ModelShape) -> None:
        assert tiny.adapter_parameters(LoraSettings(rank=8)) == 110_592
        assert tiny.adapter_parameters(LoraSettings(rank=8, target_modules=("q_proj",))) == 4 * 8 * (192 + 192)
        assert tiny.adapter_parameters(LoraSettings(rank=8, layers=1)) == 110_592 / 4

    def test_layers_without_an_adapter_keep_nothing_unless_activations_are_recomputed(self, tiny: ModelShape) -> None:
        def kept(**flags: Any) -> int:
            known = of(lora__rank="8", **flags)
            return estimate_pass(tiny, known, CPU, TrainingPass(1, 1000, 100))[0]

        layer = 1000 * layer_activations(tiny, of(lora__rank="8"), CPU)
        plain = {"model__gradient_checkpointing": "false"}
        assert kept(**plain) - kept(**plain, lora__layers="1") == 3 * layer
        assert kept(lora__layers="1") == kept()

    def test_quantized_weights_have_constants(self, tiny: ModelShape) -> None:
        assert pytest.approx(4.127, abs=5e-4) == NF4 * 8, "https://arxiv.org/abs/2305.14314, section 3"
        found = weights_bytes(tiny, of(model__quantization="nf4", rollouts__engine="transformers"), GPU)
        assert found == round(1_622_016 * 0.515869140625) + (2_506_176 - 1_622_016) * 2
        assert weights_bytes(tiny, of(), CPU) == 4 * 2_506_176

    def test_activations_of_a_layer(self, tiny: ModelShape) -> None:
        small = of(lora__rank="8", model__gradient_checkpointing="false")
        norms = 2 * 4 * 192
        of_32_bits = norms + 4 * 4 * 192 + 4 * 6 + 4 * 3 * 512 + 4 * 8 * 7 + 4 * (192 + 192 + 512)
        assert layer_activations(tiny, small, CPU) == of_32_bits
        of_16_bits = norms + 2 * 4 * 192 + 4 * 6 + 2 * 3 * 512 + 2 * 8 * 7 + 2 * (192 + 192 + 512)
        assert layer_activations(tiny, small, GPU) == of_16_bits

    def test_keys_and_values_of_a_token(self, tiny: ModelShape, large: ModelShape) -> None:
        assert kv_bytes(tiny, 4, 1) == 4 * 2 * 3 * 32 * 4
        assert kv_bytes(large, 2, 8192) == 8192 * 28 * 2 * 4 * 128 * 2

    def test_adapter_gradients_and_optimizer(self, tiny: ModelShape) -> None:
        found = {
            each.name: each.bytes for each in trainer_parts(tiny, of(lora__rank="8"), GPU, TrainingPass(1, 100, 10))
        }
        assert (found["adapter"], found["gradients"], found["optimizer"]) == (442_368, 442_368, 884_736)

    @pytest.mark.parametrize("quantization", ["none", "nf4"])
    def test_the_adapter_is_in_32_bits(self, tiny: ModelShape, quantization: str) -> None:
        known = of(lora__rank="8", model__quantization=quantization, rollouts__engine="transformers")
        found = {each.name: each.bytes for each in trainer_parts(tiny, known, GPU, TrainingPass(1, 100, 10))}
        assert (found["adapter"], found["optimizer"]) == (4 * 110_592, 2 * 4 * 110_592)

    @pytest.mark.parametrize(
        ("flags", "device", "wanted"),
        [
            ({}, GPU, 4 * 110_592),
            ({"model__quantization": "nf4", "rollouts__engine": "transformers"}, GPU, 4 * 110_592),
            ({}, CPU, 2 * 4 * 110_592),
            ({"optimizer__reference": "base"}, GPU, None),
            ({"optimizer__beta": "0"}, GPU, None),
        ],
    )
    def test_reference_adapter(
        self, tiny: ModelShape, flags: dict[str, str], device: ComputeDevice, wanted: int | None
    ) -> None:
        started = of(lora__rank="8", lora__start="warm", **flags)
        found = {each.name: each.bytes for each in trainer_parts(tiny, started, device, TrainingPass(1, 100, 10))}
        assert found.get("reference") == wanted


class TestOtherShapes:
    """Models with other layers than plain attention."""

    def test_a_file_is_enough(self, tmp_path: Path, large: ModelShape) -> None:
        file = tmp_path / "seven.json"
        file.write_text(json.dumps(QWEN2_5_7B))
        assert read_shape(str(file)).linears == large.linears

    def test_sliding_windows(self, tmp_path: Path) -> None:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2}
        kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16, "vocab_size": 300}
        gemma = {"model_type": "gemma2", "num_key_value_heads": 1, "head_dim": 32, **sizes, **kinds}
        shape = read_shape(config_of(tmp_path, gemma))
        assert shape.kv_tokens(100) == 2 * 100 + 2 * 16
        assert shape.list_uncounted() == ("2 layers with a sliding window of 16 tokens",)

    def test_a_mixture_of_experts(self, tmp_path: Path) -> None:
        mixtral = {
            "model_type": "mixtral",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 300,
        }
        shape = read_shape(config_of(tmp_path, mixtral))
        experts = 2 * 8 * 3 * 64 * 128
        assert shape.intermediate == 2 * 128
        assert shape.multiplied == shape.parameters - 300 * 64 - experts * 6 // 8
        assert "experts" in shape.list_uncounted()[0]

    def test_compressed_keys_and_values(self, tmp_path: Path) -> None:
        deepseek = {
            "model_type": "deepseek_v2",
            "hidden_size": 64,
            "intermediate_size": 128,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "kv_lora_rank": 24,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "vocab_size": 300,
        }
        shape = read_shape(config_of(tmp_path, deepseek))
        assert kv_bytes(shape, 2, 10) == 10 * 2 * (24 + 8) * 2
        assert "MLA" in " ".join(shape.list_uncounted())

    @pytest.mark.parametrize(
        ("config", "code"),
        [
            ({}, "base-models.not-a-causal-lm"),
            (
                {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300},
                "planning.unsupported-model",
            ),
        ],
    )
    def test_unsupported_model_is_reported_and_may_be_trained(
        self, config: dict[str, Any], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = config_of(tmp_path, config)
        with raises(code, model):
            read_shape(model)
        check_memory(of(model__name=model), Machine(1, 80 * GB))
        assert f"[{code}]" in capsys.readouterr().err


class TestContext:
    """The tokens that a model supports, from its config.json."""

    @pytest.mark.parametrize(
        ("config", "context"),
        [
            ({"model_type": "qwen2", "max_position_embeddings": 64}, 64),
            ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 65}}, 65),
            ({"model_type": "gpt2", "n_positions": 66}, 66),
            ({"model_type": "mistral"}, 4096 * 32),
            ({"model_type": "mamba"}, None),
        ],
        ids=["its own key", "of text and pictures", "another name", "default of its class", "no limit"],
    )
    def test_it_is_found_wherever_a_model_stores_it(
        self, config: dict[str, Any], context: int | None, tmp_path: Path
    ) -> None:
        assert read_context(config_of(tmp_path, config)) == context

    @pytest.mark.parametrize(
        "config",
        [
            {"model_type": "nonsense", "max_position_embeddings": 64},
            {"max_position_embeddings": 64},
            {"model_type": "qwen2", "max_position_embeddings": "64"},
            {"model_type": "qwen2", "max_position_embeddings": None},
            {"model_type": ["qwen2"], "max_position_embeddings": 64},
            {"model_type": "gemma3", "text_config": []},
            [],
        ],
    )
    def test_a_damaged_config_is_reported(self, config: Any, tmp_path: Path) -> None:
        model = config_of(tmp_path, config)
        for read in (read_context, read_shape):
            with raises("base-models.not-a-causal-lm", model):
                read(model)


class TestMeasured:
    """Compare estimates with the measurements that `python -m tests.benchmarks.memory --write` recorded."""

    @pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)
    def test_the_estimate_is_within_15_percent(self, case: Any, tmp_path: Path) -> None:
        found = next(each for each in recorded()["cases"] if each["name"] == case.name)
        assert found["model"] == case.model, "the record is of another shape; measure again"
        assert (found["context"], found["settings"], found["at_once"]) == (case.context, case.settings, case.at_once)
        model = config_of(tmp_path, case.config())
        wanted = estimate(case, read_shape(model), case.train_settings(tmp_path))
        assert sum(wanted.values()) == pytest.approx(found["measured"], rel=MOST_OFF)

    def test_at_least_six_shapes_were_measured(self) -> None:
        assert len({json.dumps(each["model"]) for each in recorded()["cases"]}) >= 6
        assert {"torch", "trl", "peft", "transformers"} <= set(recorded()["versions"])

    @pytest.mark.nightly
    @pytest.mark.timeout(560)
    def test_a_new_measurement_is_close(self) -> None:
        found = measure_case(next(each for each in CASES if each.name == "long, kept"))
        assert abs(found["off"]) <= MOST_OFF


sizes = st.fixed_dictionaries(
    {
        "model.max_context": st.integers(256, 8192),
        "model.gradient_checkpointing": st.booleans(),
        "model.quantization": st.sampled_from(["none", "nf4"]),
        "lora.rank": st.sampled_from([8, 16, 64]),
        "rollouts.engine": st.sampled_from(["vllm", "transformers"]),
        "rollouts.concurrency": st.integers(1, 64),
        "optimizer.per_device_train_batch_size": st.integers(1, 8),
    }
).filter(lambda each: each["model.quantization"] == "none" or each["rollouts.engine"] == "transformers")
MORE = {
    "model.max_context": 4096,
    "lora.rank": 8,
    "rollouts.concurrency": 8,
    "optimizer.per_device_train_batch_size": 1,
}


class TestPlans:
    @settings(deadline=None, max_examples=30)
    @given(given=sizes, more=st.sampled_from(sorted(MORE)), gpus=st.integers(0, 3))
    def test_larger_settings_need_no_less_memory(
        self, large: ModelShape, given: dict[str, Any], more: str, gpus: int
    ) -> None:
        machine = Machine(gpus, 80 * GB)
        less = make_plan(resolve(None, given, {}).settings, large, machine)
        other = make_plan(resolve(None, {**given, more: given[more] + MORE[more]}, {}).settings, large, machine)
        for one, two in zip(less.devices, other.devices, strict=True):
            assert sum(part.bytes for who, part in two.parts if who == "trainer") >= sum(
                part.bytes for who, part in one.parts if who == "trainer"
            )
        assert (other.kv_tokens or 0) <= (less.kv_tokens or 0)

    @settings(deadline=None, max_examples=40)
    @given(given=sizes, memory=st.integers(4, 160))
    def test_suggestions_fit_and_keep_the_step(self, large: ModelShape, given: dict[str, Any], memory: int) -> None:
        wanted = resolve(None, {**given, "optimizer.gradient_accumulation_steps": 4}, {}).settings
        plan = make_plan(wanted, large, Machine(1, memory * GB))
        found = suggest_changes(plan, large)
        if found is None:
            assert not plan.fits
            return
        assert found.fits
        assert found.settings.groups == wanted.groups
        again = TrainSettings.model_validate(found.settings.model_dump())
        assert again == found.settings
        if plan.fits:
            assert not changed_settings(wanted, found.settings), "nothing is changed without need"

    def test_a_7b_model_fits_one_80_gb_gpu_with_defaults(self, large: ModelShape) -> None:
        plan = make_plan(TrainSettings(), large, Machine(1, 80 * GB))
        assert plan.fits
        assert plan.max_at_once >= TrainSettings().groups * TrainSettings().rollouts.num_generations
        assert {who for who, _ in plan.devices[0].parts} == {"trainer", "vLLM"}

    def test_a_7b_model_fits_one_24_gb_gpu_with_qlora(self, large: ModelShape) -> None:
        assert not make_plan(TrainSettings(), large, Machine(1, 24 * GB)).fits
        qlora = resolve("qlora-24gb", {}, {}).settings
        assert make_plan(qlora, large, Machine(1, 24 * GB)).fits
        assert qlora.groups == TrainSettings().groups
        found = suggest_changes(make_plan(TrainSettings(), large, Machine(1, 24 * GB)), large)
        assert found is not None
        assert found.settings == qlora, "the suggestion is the shipped configuration"

    def test_a_suggestion_is_a_configuration(self, large: ModelShape, tmp_path: Path) -> None:
        before = resolve(None, {"rewards.functions": "[{name: exact}]", "output.directory": "o"}, {}).settings
        found = suggest_changes(make_plan(before, large, Machine(1, 40 * GB)), large)
        assert found is not None
        file = tmp_path / "suggested.yaml"
        file.write_text(to_config(found.settings))
        assert resolve(str(file), {}, {}).settings == found.settings
        assert "rewards.functions" not in changed_settings(before, found.settings)

    def test_trainers_and_server_get_their_own_gpus_if_there_are_enough(self, large: ModelShape) -> None:
        def owners(plan: MemoryPlan) -> list[set[str]]:
            return [{who for who, _ in each.parts} for each in plan.devices]

        machine = Machine(4, 80 * GB)
        assert owners(make_plan(of(), large, machine)) == [{"trainer"}, {"vLLM"}, {"vLLM"}]
        assert owners(make_plan(of(optimizer__processes="4"), large, machine)) == [{"trainer"}] * 3 + [
            {"trainer", "vLLM"}
        ]
        two = make_plan(of(), large, machine)
        assert two.kv_tokens == pytest.approx(2 * (make_plan(of(), large, Machine(2, 80 * GB)).kv_tokens or 0), rel=0.2)
        with raises("planning.too-few-gpus", "5 trainers", "at most 4"):
            make_plan(of(optimizer__processes="5"), large, machine)

    def test_several_servers_have_equal_parts(self, large: ModelShape) -> None:
        def of_two(**flags: Any) -> MemoryPlan:
            return make_plan(of(rollouts__num_servers="2", **flags), large, Machine(4, 80 * GB))

        alone = make_plan(of(), large, Machine(2, 80 * GB))
        two = of_two()
        assert [{who for who, _ in each.parts} for each in two.devices] == [{"trainer"}, {"vLLM"}, {"vLLM"}]
        assert two.kv_tokens == alone.kv_tokens, "per server"
        on_one = make_plan(of(rollouts__num_servers="2"), large, Machine(2, 80 * GB))
        assert [who for who, part in on_one.devices[1].parts if part.name == "weights"] == ["vLLM", "vLLM"]
        assert not of_two(optimizer__processes="3", rollouts__gpu_memory="0.6").fits, "1.2 of one GPU"

    def test_sharded_weights_need_less_memory(self, large: ModelShape) -> None:
        def weights(machines: int = 1, **flags: Any) -> int:
            plan = make_plan(
                of(optimizer__processes="8", **flags), large, Machine(8 // machines, 80 * GB, count=machines)
            )
            return sum(part.bytes for who, part in plan.devices[0].parts if (who, part.name) == ("trainer", "weights"))

        whole, shared = weights(), weights(optimizer__distribution="fsdp2")
        assert whole / 8 < shared < whole / 2
        assert weights(2, optimizer__distribution="fsdp2") == shared, "on one or two machines"

    def test_sharded_experts_are_gathered_layer_by_layer(self, large: ModelShape) -> None:
        experts = tuple(Linear(name, 2048, 2048, 28 * 256) for name in ("gate_up_proj", "down_proj"))
        more = sum(each.weights for each in experts)  # 60 billion
        mixture = replace(large, experts=experts, parameters=large.parameters + more)
        known = of(optimizer__processes="8", optimizer__distribution="fsdp2")
        plan = make_plan(known, mixture, Machine(8, 80 * GB))
        (weights,) = (part.bytes for who, part in plan.devices[0].parts if (who, part.name) == ("trainer", "weights"))
        whole = mixture.parameters * 2
        assert whole / 8 < weights < whole / 8 + 3 * whole / 28

    def test_vllm_makes_room_for_adapters_of_experts(self, large: ModelShape) -> None:
        """A slot has rank x (inputs + outputs) numbers for each of the modules w1, w2 and w3 of an expert."""
        width, count = 768, 28 * 128
        experts = (Linear("gate_up_proj", 2 * width, 3584, count), Linear("down_proj", 3584, width, count))
        mixture = replace(large, experts=experts)

        def slots(shape: ModelShape, gpus: int) -> int:
            parts = estimate_server_memory(shape, GPU, 80 * GB, gpus, batch=(8192, 256), rank=64).parts
            return next(part.bytes for part in parts if part.name == "adapters")

        one, two = (slots(mixture, gpus) - slots(large, gpus) for gpus in (1, 2))
        assert one == 2 * 2 * 64 * 3 * (3584 + width) * count
        assert two == 2 * 2 * 64 * 3 * (3584 + width // 2) * count

    def test_settings_that_need_vllm_are_not_quantized(self, large: ModelShape) -> None:
        for flags in ({"rollouts__lag": "1"}, {"rollouts__num_servers": "2"}):
            assert suggest_changes(make_plan(of(**flags), large, Machine(1, 24 * GB)), large) is None

    def test_evaluations_in_mode_simple_run_episodes(self, large: ModelShape) -> None:
        def needed(concurrency: int, context: int = 8192) -> int:
            flags = {"rollouts__concurrency": str(concurrency), "model__max_context": str(context)}
            plan = make_plan(of(mode="simple", **flags), large, Machine(1, 80 * GB))
            return plan.devices[0].needed

        assert needed(64) > needed(64, 4096) > needed(32, 4096)
        assert needed(1) == needed(2), "the first turns of a step need more"

    def test_no_suggestion_if_nothing_helps(self, large: ModelShape) -> None:
        plan = make_plan(TrainSettings(), large, Machine(1, 4 * GB))
        assert suggest_changes(plan, large) is None

    def test_time_depends_on_gpu_and_settings(self, large: ModelShape) -> None:
        def seconds(kind: str, **flags: Any) -> tuple[float, float]:
            found = make_plan(of(**flags), large, Machine(2, 80 * GB, kind)).time
            assert found is not None
            return found.rollouts, found.training

        rollouts, training = seconds("a100")
        assert all(new < old for new, old in zip(seconds("h100"), (rollouts, training), strict=True))
        assert seconds("a100", optimizer__beta="0")[1] == pytest.approx(training * 4 / 5)
        short = {"model__max_context": "2048"}
        once = seconds("a100", model__gradient_checkpointing="false", **short)[1]
        assert once == pytest.approx(seconds("a100", **short)[1] * 4 / 5)
        assert seconds("a100", rollouts__concurrency="1")[0] > 2 * rollouts
        forward = 2 * (7_615_616_512 - 152064 * 3584 - 28 * (3584 + 2 * 512 + 2 * 3584) - 3584) * 4096
        forward += 2 * 28 * 3584 * 4096**2
        assert training == pytest.approx(16 * 5 * forward / (0.35 * GPUS["a100"].flops * 1e12))
        assert make_plan(of(), large, Machine(2, 80 * GB)).time is None, "no estimate for an unknown GPU"


class TestRejections:
    def test_a_run_that_does_not_fit_is_rejected_with_changes(self, large_model: str) -> None:
        wanted = of(model__name=large_model)
        changed = "model.quantization=nf4, rollouts.engine=transformers"
        with raises(NO_ROOM, "GPU 0", "40.0 GB", "activations (trainer)", changed, "model.check_memory=false"):
            check_memory(wanted, Machine(1, 40 * GB))
        with raises(NO_ROOM, "smaller model", "model.check_memory=false") as refused:
            check_memory(wanted, Machine(1, 4 * GB))
        assert "model.quantization" not in refused.value.message, "nothing helps"

    def test_a_run_that_almost_fits_gets_a_warning(
        self, large_model: str, large: ModelShape, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wanted = of(model__name=large_model)
        check_memory(wanted, Machine(1, 80 * GB))
        assert capsys.readouterr().err == ""
        needed = make_plan(wanted, large, Machine(2, 80 * GB)).devices[0].needed
        check_memory(wanted, Machine(2, int(needed / 1.1)))
        warned = capsys.readouterr().err
        assert "warning:" in warned
        assert "GPU 0" in warned
        with raises(NO_ROOM, "GPU 0"):
            check_memory(wanted, Machine(2, int(needed / 1.2)))

    def test_a_server_without_room_for_one_episode_is_rejected(self, large_model: str) -> None:
        wanted = of(model__name=large_model, rollouts__gpu_memory="0.19")
        with raises(NO_ROOM, "keys and values of 0 tokens", "8,192"):
            check_memory(wanted, Machine(1, 80 * GB))

    def test_without_a_gpu_a_typical_episode_counts(self, tiny: ModelShape) -> None:
        wanted = resolve("tiny", {}, {}).settings
        whole, usual = (make_plan(wanted, tiny, Machine(0, GB), context=each).tightest.needed for each in (None, 2048))
        assert usual < whole
        check_memory(wanted, Machine(0, usual))
        with raises(NO_ROOM, "the machine"):
            check_memory(wanted, Machine(0, usual // 2))
        check_memory(wanted, None)

    def test_train_checks_memory_before_it_starts(self, run: Callable[..., CommandResult], tmp_path: Path) -> None:
        from gumshoe.mail.build import build_mail_index
        from gumshoe.synthesis.mailboxes import synthesize_mail, write_mail

        write_mail(synthesize_mail(8, 6, 900, "easy"), tmp_path)
        build_mail_index([f"jsonl:{tmp_path / 'mail.jsonl'}"], tmp_path / "index")
        out = tmp_path / "out"
        size = 40_000  # episodes of a pass
        sets = [f"rollouts.num_generations={size}", f"optimizer.per_device_train_batch_size={size}"]
        sets += ["optimizer.gradient_accumulation_steps=1", "rollouts.engine=transformers"]
        words = [each for one in sets for each in ("--set", one)]
        where = ["--index", tmp_path / "index", "--scenarios", tmp_path / "scenarios.jsonl", "--out", out]
        ran = run("train", "--model", "tiny", *where, *words)
        assert (ran.status, ran.code) == (2, NO_ROOM)
        assert "the machine" in ran.err
        assert not out.exists()


class TestAvailable:
    MEMINFO = "MemTotal: 4000 kB\nMemAvailable: 1000 kB\n"

    def test_the_smallest_limit_counts(self, tmp_path: Path) -> None:
        assert available_memory(tmp_path) is None
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(self.MEMINFO)
        assert available_memory(tmp_path) == 1_024_000
        groups = tmp_path / "sys/fs/cgroup"
        groups.mkdir(parents=True)
        (groups / "memory.max").write_text("max\n")
        (groups / "memory.current").write_text("5\n")
        (groups / "memory.stat").write_text("inactive_file 100000\n")
        assert available_memory(tmp_path) == 1_024_000
        (groups / "memory.max").write_text("800000\n")
        (groups / "memory.current").write_text("500000\n")
        assert available_memory(tmp_path) == 400_000
        (groups / "memory").mkdir()
        (groups / "memory/memory.limit_in_bytes").write_text("300000\n")
        (groups / "memory/memory.usage_in_bytes").write_text("400000\n")
        (groups / "memory/memory.stat").write_text("total_inactive_file 50000\n")
        assert available_memory(tmp_path) == 0


class TestCommand:
    def test_a_table_by_part_and_a_verdict(self, run: Callable[..., CommandResult], large_model: str) -> None:
        ran = run("plan", "--model", large_model, "--gpu", "h100")
        assert ran.status == 0
        for part in ("weights", "optimizer", "activations", "logits and loss", "keys and values", "CUDA graphs"):
            assert part in ran.out
        assert "57,344 bytes" in ran.out
        assert "It fits" in ran.out
        assert "rollouts," in ran.out

    def test_json_has_bytes(self, run: Callable[..., CommandResult], large_model: str) -> None:
        ran = run("plan", "--model", large_model, "--gpus", 1, "--gpu-memory", 24, "--json")
        found = json.loads(ran.out)
        assert ran.status == 3
        assert not found["fits"]
        device = found["devices"][0]
        assert device["needed_bytes"] == sum(part["bytes"] for part in device["parts"])
        assert found["suggested"]["changes"]["model.quantization"] == "nf4"

    def test_the_command_prints_a_configuration_that_fits(
        self, run: Callable[..., CommandResult], large_model: str, tmp_path: Path
    ) -> None:
        ran = run("plan", "--model", large_model, "--gpu-memory", 24)
        assert (ran.status, ran.code) == (3, NO_ROOM)
        assert "GPU 0" in ran.err
        file = tmp_path / "suggested.yaml"
        file.write_text(ran.out.split("--config`:\n\n")[1])
        assert run("plan", "--config", file, "--gpu-memory", 24).status == 0

    def test_an_environment_that_fits_the_context_is_suggested(
        self, run: Callable[..., CommandResult], large_model: str
    ) -> None:
        given: list[Any] = ["plan", "--model", large_model, "--gpu", "h100", "--json"]
        found = json.loads(run(*given).out)["episode"]
        assert (found["context"], found["turns"], found["fits"]) == (8192, 10, False)
        suggested = json.dumps(found["suggested_environment"])
        assert json.loads(run(*given, "--set", f"environment={suggested}").out)["episode"]["fits"]
        assert f"environment: {suggested}" in run(*given[:-1]).out

    def test_the_suggested_environment_fits_the_context_of_the_suggested_settings(
        self, run: Callable[..., CommandResult], large_model: str, tmp_path: Path
    ) -> None:
        given: list[Any] = ["plan", "--model", large_model, "--gpu-memory", 12]
        found = json.loads(run(*given, "--json").out)
        changes = found["suggested"]["changes"]
        assert found["episode"]["context"] == changes["model.max_context"] < found["context"]
        text = run(*given).out.split("--config`:\n\n")[1]
        assert text == found["suggested"]["config"] + "\n"
        keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
        assert len(keys) == len(set(keys))
        assert "environment" in keys
        (tmp_path / "suggested.yaml").write_text(text)
        again = run("plan", "--config", tmp_path / "suggested.yaml", "--gpu-memory", 12, "--json")
        assert (again.status, json.loads(again.out)["episode"]["fits"]) == (0, True)

    def test_without_a_gpu(self, run: Callable[..., CommandResult]) -> None:
        ran = run("plan", "--config", "tiny", "--gpus", 0, "--gpu-memory", 64)
        assert ran.status == 0
        assert "without a GPU" in ran.out
        assert "64.0 GB" in ran.out
        assert "tiny: 2,506,176 parameters" in ran.out

    @pytest.mark.parametrize(
        ("words", "code", "value"),
        [
            (["--gpus", 1], "planning.memory-unknown", "--gpu-memory"),
            (["--gpu", "abacus"], "planning.unknown-gpu", "a10, a100"),
            (["--gpu-memory", 80, "--set", "optimizer.processes=3"], "planning.too-few-gpus", "3 trainers"),
            (["--gpu-memory", 80, "--model", "nowhere/at-all-here"], "sources.model-not-found", "nowhere/at-all-here"),
        ],
    )
    def test_invalid_arguments_are_rejected(
        self, run: Callable[..., CommandResult], words: list[Any], code: str, value: str
    ) -> None:
        ran = run("plan", *words) if "--model" in words else run("plan", "--model", "tiny", *words)
        assert (ran.status, ran.code) == (2, code)
        assert value in ran.err


def test_episodes_in_the_trainer_need_memory_each(tiny: ModelShape) -> None:
    def needed(at_once: int) -> int:
        wanted = of(rollouts__engine="transformers", rollouts__concurrency=str(at_once))
        return sum(each.bytes for each in sampling_parts(tiny, wanted, CPU, 2048))

    assert needed(64) == 64 * needed(1)
    assert needed(64) > 2 * 64 * kv_bytes(tiny, 4, 2048) > GIB // 2
