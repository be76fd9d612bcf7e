"""Architectures: sampling in this process and training compute what a plain forward pass of the model computes."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.inference.policy import Completion, Sampling
from tests.architectures import ARCHITECTURES, compute_plain_logprobs, make_model
from tests.tiers import nightly_except

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.group("torch")  # which other tests of the group have imported
NATS = 1e-4  # the largest difference of log-probabilities
STOP = 2
PREFIX = [place * 7 % 90 + 3 for place in range(40)]
LINEAR_LAYERS = {"qwen3_5", "qwen3_next", "granitemoehybrid", "lfm2", "nemotron_h"}
ATTENTION, FEED_FORWARD = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
DELTA_NET = {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"}
TARGETS = dict.fromkeys(ARCHITECTURES, ATTENTION | FEED_FORWARD) | {
    "qwen3_moe": ATTENTION,
    "qwen3_5": ATTENTION | FEED_FORWARD | DELTA_NET,
    "qwen3_next": ATTENTION | {"in_proj_qkvz", "in_proj_ba", "out_proj"},
    "granitemoehybrid": ATTENTION | {"in_proj", "input_linear", "output_linear"},
    "gpt_oss": ATTENTION,
    "lfm2": {"q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"},
    "nemotron_h": ATTENTION | {"in_proj", "up_proj", "down_proj"},
}
SERVED = ["qwen3", "llama", "mistral", "gemma3", "granite"]
"""Architectures that vLLM serves with adapters without a GPU and without torchvision."""
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
some_in_ci = pytest.mark.parametrize(
    "name", nightly_except({"qwen2", "qwen3_moe", "qwen3_next", "gemma3", "llama"}, ARCHITECTURES)
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, which is faster than several for such small models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_adapted(name: str, **settings: Any) -> Any:
    """Return a model with a new adapter, by default of the default targets."""
    return add_adapter(make_model(name), **settings)


def add_adapter(model: Any, *, noise: float = 0.0, **settings: Any) -> Any:
    """Add an adapter to a model: a new one, or with `noise` one that changes the output."""
    import torch
    from peft import get_peft_model

    from gumshoe.training.models.lora_model import lora_config
    from gumshoe.training.settings_sections import LoraSettings

    adapted = get_peft_model(model, lora_config(LoraSettings(rank=2, alpha=4, **settings), model)).eval()
    if noise:
        with torch.no_grad():
            for name, value in adapted.named_parameters():
                if "lora_B" in name:
                    value.normal_(0, noise)
    return adapted


def run_conversations(model: Any) -> list[tuple[list[int], Completion]]:
    """Return prompt and completion of all turns: 5 conversations of different lengths with 2 turns each.

    Their prompts have a common prefix, and two of them are of the same length.
    """
    from gumshoe.inference.transformers_policy import TransformersPolicy

    policy = TransformersPolicy.from_model(model, "test")
    turns: list[tuple[list[int], Completion]] = []

    async def converse(number: int, conversation: Any) -> None:
        prompt = [*PREFIX, 5 + number, *range(10, 10 + 5 * (number % 4))]
        with conversation:
            for turn in range(2):
                sampling = Sampling(1.0, max_tokens=4 + 4 * number)
                found = await conversation.sample(prompt, sampling, stop_ids=[STOP], seed=number + 10 * turn)
                turns.append((prompt, found))
                prompt = [*prompt, *found.ids, *range(20, 22 + 3 * number)]

    async def run() -> None:
        opened = [policy.open_conversation() for _ in range(5)]
        await asyncio.gather(*(converse(number, each) for number, each in enumerate(opened)))

    asyncio.run(run())
    return turns


def check_turns(model: Any, turns: list[tuple[list[int], Completion]]) -> None:
    for prompt, completion in turns:
        wanted = compute_plain_logprobs(model, prompt, list(completion.ids))
        assert completion.logprobs == pytest.approx(wanted.tolist(), abs=NATS)


def make_batch(turns: list[tuple[list[int], Completion]]) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return token ids and mask [episodes, tokens], and which of the completions' tokens count, as TRL has them."""
    import torch

    width, keep = max(len(prompt) for prompt, _ in turns), max(len(each.ids) for _, each in turns)
    ids = torch.zeros(len(turns), width + keep, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(turns):
        own = slice(width - len(prompt), width + len(completion.ids))
        ids[row, own] = torch.tensor([*prompt, *completion.ids])
        mask[row, own] = 1
    counted = torch.randint(0, 2, (len(turns), keep), generator=torch.Generator().manual_seed(1))
    return ids, mask, counted


def compute_by_trainer(
    model: Any, batch: "tuple[torch.Tensor, torch.Tensor, torch.Tensor]", way: str
) -> "torch.Tensor":
    """Return log-probabilities [episodes, keep] at temperature 0.7, as the trainer computes them.

    `way` is `sequences`, `trees`, or `beginning` for trees after the common beginning. The first two episodes and the
    others are a group each.
    """
    import torch

    from gumshoe.training.grpo.logprobs import compute_logprobs, compute_tree_logprobs, read_beginning
    from gumshoe.training.grpo.passes import to_tree_rows
    from gumshoe.training.grpo.token_trees import TokenTree, TreeBatch, TreeReader

    if way == "sequences":
        return compute_logprobs(lambda ids, labels: model(input_ids=ids, labels=labels, fused_lm_head=True), *batch, 3)[
            0
        ]
    reader = TreeReader.find(model, model)
    assert reader is not None
    ids, mask, counted = batch
    keep = counted.shape[1]
    previous = mask[:, :-keep].sum(1, keepdim=True) + torch.arange(keep) - 1
    rows = to_tree_rows(ids, mask, counted, previous)
    beginning = 0

    def score(trees: Sequence[TokenTree]) -> "tuple[torch.Tensor, torch.Tensor]":
        batch = TreeBatch.of(trees, ids.device)
        found = model(**reader.arguments(batch, 0), shift_labels=batch.labels, fused_lm_head=True)
        return found.log_probs, found.entropy

    if way == "beginning":
        beginning, score = read_beginning(model, reader, rows, 0.7)  # type: ignore[assignment]
        assert beginning == len(PREFIX)
    return compute_tree_logprobs(score, rows, [0, 0, 1, 1, 1], counted, 100, beginning)[0]


def add_fused_head(model: Any) -> None:
    """Add TRL's head for log-probabilities, as its trainer does."""
    import gumshoe.training.grpo.trainer  # noqa: F401 - first, because it keeps TRL from importing vLLM

    from trl.trainer.utils import add_fused_lm_head  # isort: skip

    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))


@pytest.mark.ci
@some_in_ci
def test_a_policy_samples_with_the_probabilities_of_a_plain_forward_pass(name: str) -> None:
    model = make_model(name)
    turns = run_conversations(model)
    assert max(len(prompt) for prompt, _ in turns) > 2 * len(PREFIX) - 10
    check_turns(model, turns)


@pytest.mark.ci
@some_in_ci
def test_the_trainer_computes_the_logprobs_of_a_plain_forward_pass(name: str) -> None:
    import torch

    from gumshoe.inference.cache_rows import has_only_attention

    model = make_model(name)
    turns = run_conversations(model)[:5]
    batch = make_batch(turns)
    wanted = torch.zeros(batch[2].shape)
    for row, (prompt, completion) in enumerate(turns):
        wanted[row, : len(completion.ids)] = compute_plain_logprobs(model, prompt, list(completion.ids), 0.7)
    wanted *= batch[2]
    add_fused_head(model)
    assert has_only_attention(model) == (name not in LINEAR_LAYERS)
    for way in ("sequences", "trees", "beginning")[: 3 if has_only_attention(model) else 1]:
        found = compute_by_trainer(model, batch, way)
        torch.testing.assert_close(found, wanted, rtol=0, atol=NATS)


@pytest.mark.ci
@some_in_ci
def test_adapters_train_and_sample_alike(name: str) -> None:
    """Two steps of training. The adapter of each target module changes the output."""
    import torch

    from gumshoe.inference.cache_rows import has_only_attention

    model = make_adapted(name)
    add_fused_head(model.get_base_model())
    trained = {each: value for each, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.05)
    for _ in range(2):
        turns = run_conversations(model)
        check_turns(model, turns)
        logprobs = compute_by_trainer(
            model, make_batch(turns[:5]), "beginning" if has_only_attention(model) else "sequences"
        )
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
        assert all(
            value.grad is not None and value.grad.abs().sum() > 0 for each, value in trained.items() if "_B" in each
        )
        optimizer.step()
        optimizer.zero_grad()
    check_turns(model, run_conversations(model))


@every_architecture
def test_default_targets_are_the_linear_modules_of_the_layers(name: str) -> None:
    model = make_adapted(name)
    adapted = {each.partition(".lora_A")[0] for each, _ in model.named_parameters() if ".lora_A" in each}
    assert {each.rpartition(".")[2] for each in adapted} == TARGETS[name]
    assert set(model.peft_config["default"].target_modules) == TARGETS[name], "names, as other programs read them"


@every_architecture
def test_plans_count_the_parameters_of_adapters(name: str) -> None:
    from gumshoe.training.models.model_shape import inspect_shape
    from gumshoe.training.settings_sections import LoraSettings

    shape = inspect_shape(make_model(name), name)
    of_all = [{}, {"target_parameters": "experts"}] if shape.experts else [{}]
    for settings in of_all:
        counted = shape.adapter_parameters(LoraSettings(rank=2, **settings))
        assert counted == sum(
            each.numel() for each in make_adapted(name, **settings).parameters() if each.requires_grad
        )


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_experts_train_and_sample_alike(name: str) -> None:
    model = make_adapted(name, noise=0.1, target_parameters="experts")
    assert sorted(model.peft_config["default"].target_parameters) == sorted(EXPERTS)
    turns = run_conversations(model)
    check_turns(model, turns)
    with model.disable_adapter():
        prompt, completion = turns[-1]
        base = compute_plain_logprobs(model, prompt, list(completion.ids))
    assert completion.logprobs != pytest.approx(base.tolist(), abs=0.01)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mistral", {}),
        ("qwen3_moe", {}),
        ("qwen3_next", {}),
        ("nemotron_h", {}),
        ("gpt_oss", {"target_parameters": "experts"}),
    ],
)
def test_a_saved_adapter_samples_like_the_trained_one(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """`peft` renames targets of mixtures of experts when it adds an adapter and when it loads one."""
    import torch

    from gumshoe.inference.transformers_policy import TransformersPolicy

    make_model(name).save_pretrained(tmp_path / "model")
    adapted = make_adapted(name, noise=0.1, **settings)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    policy = TransformersPolicy(tmp_path / "model", tmp_path / "adapter", device="cpu")
    ids = torch.tensor([PREFIX])
    with torch.no_grad():
        torch.testing.assert_close(policy._model(ids).logits, adapted(ids).logits)
        assert not torch.allclose(make_model(name)(ids).logits, adapted(ids).logits, atol=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SERVED)
def test_vllm_samples_with_the_probabilities_of_a_plain_forward_pass(tmp_path: Path, name: str) -> None:
    """A real server with a random model and a random adapter of the default targets."""
    import shutil

    from gumshoe.inference.policy_names import TINY, load_tokenizer
    from gumshoe.inference.vllm_policy import VLLMPolicy
    from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, is_vllm_installed, load_adapter
    from tests.conftest import skip_missing

    if not is_vllm_installed():
        skip_missing("vLLM")
    sizes = {"vocab_size": len(load_tokenizer(TINY)), "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}
    model = make_model(name, **sizes, num_key_value_heads=1)
    model.save_pretrained(tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / file, tmp_path / "model" / file)
    adapted = add_adapter(model, noise=0.1)
    adapted.save_pretrained(str(tmp_path / "adapter"))

    async def sample(url: str) -> list[Completion]:
        async with VLLMPolicy([url], "noisy") as policy:
            asked = [
                policy.sample([*PREFIX, *range(5, 10 + each)], Sampling(1.0, max_tokens=20), stop_ids=[STOP], seed=each)
                for each in range(4)
            ]
            return await asyncio.gather(*asked)

    options = ServerOptions(max_model_len=256, dtype="float32")
    with VLLMServer(tmp_path / "model", log=tmp_path / "vllm.log", options=options) as server:
        load_adapter(server.url, "noisy", tmp_path / "adapter", options.adapter_deadline)
        found = asyncio.run(sample(server.url))
    for each, completion in enumerate(found):
        wanted = compute_plain_logprobs(adapted, [*PREFIX, *range(5, 10 + each)], list(completion.ids))
        assert completion.logprobs == pytest.approx(wanted.tolist(), abs=1e-3)


def test_a_model_without_expert_parameters_has_no_experts_to_adapt() -> None:
    from tests.errors import raises

    with raises("adapters.no-expert-parameters", "lora.target_parameters"):
        make_adapted("llama", target_parameters="experts")


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_the_router_loss_is_a_setting(tmp_path: Path, loss: float) -> None:
    """The model's own files ask for it; TRL would compute it."""
    from gumshoe.training.grpo.trl_config import grpo_config
    from gumshoe.training.models.lora_model import load_base
    from gumshoe.training.settings import TrainSettings
    from gumshoe.training.settings_sections import ModelSettings, OptimizerSettings
    from tests.errors import raises

    make_model("qwen3_moe", output_router_logits=True).save_pretrained(tmp_path / "model")
    settings = TrainSettings(
        model=ModelSettings(name=str(tmp_path / "model")), optimizer=OptimizerSettings(router_loss=loss)
    )
    assert grpo_config(settings, tmp_path, 1).router_aux_loss_coef == loss
    assert load_base(settings).config.output_router_logits == bool(loss)
    make_model("llama").save_pretrained(tmp_path / "dense")
    dense = settings.model_copy(update={"model": ModelSettings(name=str(tmp_path / "dense"))})
    if loss:
        with raises("training.no-router-loss", "optimizer.router_loss is 0.5", tmp_path / "dense"):
            load_base(dense)
    else:
        load_base(dense)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_experts_that_vllm_cannot_load_are_rejected_before_training(tmp_path: Path, name: str) -> None:
    from gumshoe.training.models.base_model import check_servable
    from gumshoe.training.settings import TrainSettings
    from gumshoe.training.settings_sections import LoraSettings, ModelSettings, RolloutSettings
    from tests.errors import raises

    make_model(name).config.save_pretrained(tmp_path)
    lora = LoraSettings(target_parameters="experts")
    settings = TrainSettings(model=ModelSettings(name=str(tmp_path)), lora=lora)
    if name == "gpt_oss":
        check_servable(settings)
    else:
        with raises("adapters.experts-not-servable", "lora.target_parameters", name):
            check_servable(settings)
    own = RolloutSettings(engine="transformers")
    check_servable(settings.model_copy(update={"rollouts": own}))


def test_a_model_whose_text_part_vllm_would_not_adapt_is_rejected_before_training(tmp_path: Path) -> None:
    from gumshoe.training.models.base_model import check_servable
    from gumshoe.training.settings import TrainSettings
    from gumshoe.training.settings_sections import ModelSettings, RolloutSettings
    from tests.errors import raises

    stored = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    settings = TrainSettings(model=ModelSettings(name=str(tmp_path)))
    with raises("adapters.text-part-not-servable", "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", tmp_path):
        check_servable(settings)
    check_servable(settings.model_copy(update={"rollouts": RolloutSettings(engine="transformers")}))
    make_model("qwen3_5").save_pretrained(tmp_path / "text")
    check_servable(settings.model_copy(update={"model": ModelSettings(name=str(tmp_path / "text"))}))


def test_modules_that_peft_takes_for_experts_are_rejected() -> None:
    from tests.errors import raises

    with raises("adapters.unknown-target-module", ": gate_proj, up_proj;", "q_proj"):
        make_adapted("qwen3_next", target_modules=("q_proj", "gate_proj", "up_proj"))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("MambaConfig", {}),  # no attention
        ("JambaConfig", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "use_mamba_kernels": False}),
        ("MiniMaxConfig", {"layer_types": ["linear_attention", "full_attention"]}),  # a class of cache of its own
    ],
)
def test_a_model_that_cannot_continue_from_its_cache_is_rejected(kind: str, settings: dict[str, Any]) -> None:
    """Jamba forgets its states if it reads several tokens at once."""
    import transformers

    from gumshoe.inference.transformers_policy import TransformersPolicy
    from tests.errors import raises

    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    config = getattr(transformers, kind)(**sizes, **heads, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with raises("inference.unsupported-attention", "own", config.model_type):
        TransformersPolicy.from_model(model, "own")
