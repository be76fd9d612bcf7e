"""The trainer: passes, masks, the reference of the KL term, and dropped groups. `test_loss.py` checks its loss."""

import math
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Segment, Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.algorithms.lookup import find_algorithm
from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
from tests.errors import raises
from tests.models import random_model
from tests.tiers import nightly_except

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.ci

BETA, GENERATIONS, LENGTH = 0.1, 2, 64


@cache
def tokenizer() -> Any:
    """Return a tokenizer of 300 tokens."""
    from gumshoe.tiny.maker import train_tokenizer

    return train_tokenizer(["the quick brown fox, 1234 <b>"], 300)


def episode(sample: int, texts: list[str]) -> Trajectory:
    """Return an episode with a prompt, and then turns and results in alternation."""
    origins = ["prompt", *(["sampled", "injected"] * len(texts))]
    spans = [
        Span(origin, text, tuple(tokenizer().encode(text, add_special_tokens=False)))  # type: ignore[arg-type]
        for origin, text in zip(origins, texts, strict=False)
    ]
    turns = sum(each.origin == "sampled" for each in spans)
    return Trajectory("1", sample, "policy", "answer", "", spans, EpisodeState(), turns, 0.0, 0.0)


SCENARIO = Scenario(
    id="1",
    question="Q?",
    answer="A",
    message_ids=("<1@x>",),
    inbox_address="a@x.example",
    query_date=date(2024, 1, 1),
)
GROUPS = (
    [["the", " quick brown", " fox 12", " quick"], ["the", " brown fox fox", " 3", " the", "4", " b"]],
    [["fox the", " 1234"], ["fox the", " quick", " b", " fox 1"]],
)
REWARDS = ((1.0, -0.5), (0.25, 0.75))


@dataclass
class TrainerBench:
    """A trainer on given episodes, with records of its gradients."""

    trainer: Any = None
    given: list[RolloutBatch] = field(default_factory=list)
    shift: float = 0.0
    """Difference of log-probabilities between sampler and trainer; for the first group, `first_shift` is added."""
    first_shift: float = 0.0
    gradients: "list[dict[str, torch.Tensor]]" = field(default_factory=list)
    token_gradients: "list[torch.Tensor]" = field(default_factory=list)
    """Gradients of the log-probabilities of each pass, [episodes, tokens]."""
    hooks: Any = None

    def roll_out(self, step: int) -> RolloutBatch:
        """Return the step's episodes, with log-probabilities as if sampled with the current weights, shifted."""
        found = self.given[step]
        for place, group in enumerate(found.groups):
            for trajectory in group.trajectories:
                logps = self.logprobs(trajectory.ids).detach()
                start = 0
                for number, span in enumerate(trajectory.spans):
                    own = logps[start - 1 : start - 1 + len(span.ids)] if start else logps[:0]
                    if span.origin == "sampled":
                        shifted = own + self.shift + (self.first_shift if place == 0 else 0.0)
                        trajectory.spans[number] = replace(span, logprobs=tuple(shifted.tolist()))
                    start += len(span.ids)
        return found

    def logprobs(self, ids: list[int]) -> "torch.Tensor":
        """Return the log-probability of each token given those before it, [tokens - 1], with the plain model."""
        import torch

        model = self.trainer.model
        was_training = model.training
        logits = model.eval()(input_ids=torch.tensor([ids])).logits[0, :-1].float()
        model.train(was_training)
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    def train_and_count_tokens(self) -> dict[bool, list[int]]:
        """Train, and return the tokens of each forward pass, with padding: under True with gradient, False without."""
        import torch

        seen: dict[bool, list[int]] = {True: [], False: []}

        def look(_: Any, __: Any, given: dict[str, Any]) -> None:
            seen[torch.is_grad_enabled()].append(given["input_ids"].numel())

        with self.trainer.model.register_forward_pre_hook(look, with_kwargs=True):
            self.trainer.train()
        self.trainer.model.eval()
        return seen

    def parameters(self) -> "dict[str, torch.Tensor]":
        return {name: each for name, each in self.trainer.model.named_parameters() if each.requires_grad}


def make_recording_trainer(bench: TrainerBench, *arguments: Any, **named: Any) -> Any:
    """Make an `AgentTrainer` that records the gradients of each step, and of each token's log-probability."""
    from transformers import TrainerCallback

    from gumshoe.training.grpo.trainer import AgentTrainer

    class Spy(AgentTrainer):
        def _get_per_token_logps_and_entropies(self, *given: Any, **more: Any) -> Any:
            logps, *rest = super()._get_per_token_logps_and_entropies(*given, **more)
            if logps.requires_grad:
                logps.register_hook(lambda gradient: bench.token_gradients.append(gradient.clone()))  # type: ignore[no-untyped-call]
            return logps, *rest

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            found = bench.parameters()
            bench.gradients.append({name: each.grad.clone() for name, each in found.items() if each.grad is not None})

    return Spy(*arguments, callbacks=[Keep()], **named)


def make_bench(
    tmp_path: Path,
    steps: list[RolloutBatch],
    algorithm: str = "dapo",
    *,
    train_on_tool_tokens: bool = False,
    dropout: float = 0.0,
    scale: str = "group",
    num_iterations: int = 1,
    **settings: Any,
) -> TrainerBench:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig

    from gumshoe.training.grpo.trainer import Hooks

    bench = TrainerBench(given=steps)
    wanted = {"learning_rate": 0.0, **settings}
    found = find_algorithm(algorithm, {} if algorithm == "rloo" else {"scale": scale})
    rows = steps[0].wanted * GENERATIONS
    hooks = Hooks(bench.roll_out, found, lambda: None, 0.5, train_on_tool_tokens)
    bench.hooks = hooks
    arguments = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=wanted.pop("per_device_train_batch_size", rows),
        num_generations=GENERATIONS,
        max_completion_length=LENGTH,
        max_steps=len(steps) * num_iterations,
        num_iterations=num_iterations,
        max_grad_norm=0.0,
        beta=wanted.pop("beta", BETA),
        lr_scheduler_type="constant",
        vllm_importance_sampling_mode="token_truncate",
        gradient_checkpointing=wanted.pop("gradient_checkpointing", False),
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        save_strategy=wanted.pop("save_strategy", "no"),
        logging_steps=1,
        dataloader_pin_memory=False,
        **wanted,
    )
    bench.trainer = make_recording_trainer(
        bench,
        hooks,
        model=random_model(len(tokenizer()), 1),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(each) for each in range(steps[0].wanted)]}),
        processing_class=tokenizer(),
        peft_config=LoraConfig(
            r=4, lora_alpha=8, lora_dropout=dropout, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        ),
    )
    torch.manual_seed(3)
    with torch.no_grad():
        for name, each in bench.parameters().items():
            if "lora_B" in name:
                each.normal_(0, 0.3)  # so that the adapter is not zero, and all of it has a gradient
    return bench


def make_bench_with_passes(
    tmp_path: Path, found: RolloutBatch, size: int, passes: int, **settings: Any
) -> TrainerBench:
    """Return a trainer whose step has this number of passes, each of `size` episodes."""
    shape = {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
    return make_bench(tmp_path, [found], **shape, gradient_checkpointing=True, **settings)  # type: ignore[arg-type]


def step(groups: int = 2, turn_returns: Any = ((), ())) -> RolloutBatch:
    """Return a step of two groups, of which the first `groups` exist."""
    found = RolloutBatch(2)
    for texts, rewards, turns in list(zip(GROUPS, REWARDS, turn_returns, strict=True))[:groups]:
        members = tuple(episode(sample, each) for sample, each in enumerate(texts))
        found.groups.append(ScoredGroup(SCENARIO, members, rewards, turns))
    found.scored = list(found.groups)
    return found


@pytest.mark.parametrize(("size", "passes"), [(1, 4), (2, 2)])
def test_passes_of_similar_lengths_save_tokens(tmp_path: Path, size: int, passes: int) -> None:
    bench = make_bench_with_passes(tmp_path, step(), size, passes)
    bench.trainer._tree_reader = None
    seen = bench.train_and_count_tokens()
    every = [each for group in bench.given[0].groups for each in group.trajectories]
    every.sort(key=lambda each: len(each.ids), reverse=True)
    longest = [size * len(each.ids) for each in every[::size]]
    assert seen[True][-passes:] == longest, "the longest first"
    assert seen[False][-passes:] == longest, "those of the reference"


@pytest.mark.parametrize(("size", "passes", "tokens"), [(1, 4, [24, 24, 24]), (2, 2, [48, 24]), (4, 1, [24, 48])])
def test_token_trees_fill_passes_up_to_the_tokens_of_whole_episodes(
    tmp_path: Path, size: int, passes: int, tokens: list[int]
) -> None:
    """The trees of the groups have 48 and 24 tokens, with padding."""
    bench = make_bench_with_passes(tmp_path, step(), size, passes)
    seen = bench.train_and_count_tokens()
    assert seen[True][4:] == tokens, "after those of the bench, one for each episode"
    assert seen[False][-len(tokens) :] == tokens, "those of the reference"
    phases = bench.hooks.phases
    assert phases.tokens["forward"] == sum(tokens), "activations that are recomputed do not count again"
    assert phases.tokens["reference"] > 0, "for the KL term"
    assert {"preparing", "reference", "forward", "backward"} <= set(phases.seconds)


def make_warm_bench(tmp_path: Path, steps: int) -> TrainerBench:
    """Return a trainer that starts from an adapter which differs from the base model, and keeps it as the reference."""
    from gumshoe.training.models.lora_model import add_reference_adapter

    more: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "ignore_data_skip": True}
    bench = make_bench(tmp_path, [step() for _ in range(steps)], learning_rate=0.01, **more)
    add_reference_adapter(bench.trainer.model)
    return bench


def kl_of(bench: TrainerBench) -> list[float]:
    """Return the KL divergence that each step logged."""
    return [float(each["kl"]) for each in bench.trainer.state.log_history if "kl" in each]


def test_kl_is_measured_from_the_start_also_after_a_resume(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    bench = make_warm_bench(tmp_path, 3)
    trained = set(bench.parameters())
    bench.trainer.train()
    first, *later = kl_of(bench)
    assert first == 0
    assert min(later) > 0
    assert set(bench.parameters()) == trained, "the reference is not trained"
    checkpoint = tmp_path / "checkpoint-1"
    assert not any(each.is_dir() for each in checkpoint.iterdir())
    saved = load_file(checkpoint / "adapter_model.safetensors")
    assert len(saved) == len(trained)
    resumed = make_warm_bench(tmp_path, 3)
    resumed.trainer.train(resume_from_checkpoint=str(checkpoint))
    assert kl_of(resumed) == [first, *later]


def test_kl_is_measured_from_the_base_model_without_a_reference_adapter(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, [step()])
    bench.trainer.train()
    assert kl_of(bench)[0] > 0.001


def test_logged_numbers_do_not_depend_on_passes(tmp_path: Path) -> None:
    for groups in (1, 2):
        logged = []
        for size, passes in ((4, 1), (2, 2), (1, 4)):
            bench = make_bench_with_passes(tmp_path, step(groups), size, passes)
            bench.trainer.train()
            logged.append(
                [bench.trainer.state.log_history[0][name] for name in ("kl", "entropy", "loss", "policy_loss")]
            )
        assert logged[0][0] > 0
        assert logged[1] == pytest.approx(logged[0], rel=1e-3)
        assert logged[2] == pytest.approx(logged[0], rel=1e-3)


def test_the_policy_loss_is_the_loss_without_the_kl_term(tmp_path: Path) -> None:
    """Also if the loss is not a mean over tokens."""
    logs = []
    for beta in (BETA, 0.0):
        bench = make_bench_with_passes(tmp_path, step(), 2, 2, algorithm="dr_grpo", beta=beta)
        bench.trainer.train()
        logs.append(bench.trainer.state.log_history[0])
    assert logs[0]["loss"] > logs[0]["policy_loss"] + 1e-6
    assert logs[0]["policy_loss"] == pytest.approx(logs[1]["loss"], rel=1e-3)
    assert logs[1]["policy_loss"] == pytest.approx(logs[1]["loss"], rel=1e-3)


@pytest.mark.parametrize("reads_trees", [True, False])
def test_a_missing_group_costs_almost_nothing(tmp_path: Path, reads_trees: bool) -> None:
    bench = make_bench_with_passes(tmp_path, step(1), 2, 2)
    if reads_trees:
        alone = make_bench_with_passes(tmp_path, RolloutBatch(1, groups=step(1).groups, scored=step(1).groups), 2, 1)
        assert sum(bench.train_and_count_tokens()[True]) == sum(alone.train_and_count_tokens()[True])
    else:
        bench.trainer._tree_reader = None
        assert bench.train_and_count_tokens()[True][-1] == 2 * 2


def test_turn_advantages_do_not_depend_on_passes(tmp_path: Path) -> None:
    import torch

    turns = (((0.5, -1.0), (2.0, 0.25, -0.75)), ((1.0,), (0.5, -0.5)))
    found = []
    for size, passes in ((4, 1), (2, 2)):
        bench = make_bench_with_passes(tmp_path, step(turn_returns=turns), size, passes, algorithm="turn_level")
        bench.trainer.train()
        found.append(bench.gradients[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


def test_passes_stay_mixed_if_the_loss_is_a_mean_over_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.training.grpo import trainer

    monkeypatch.setattr(trainer, "fill_by_group", None)
    make_bench_with_passes(tmp_path, step(), 2, 2, algorithm="bnpo").trainer.train()
    with pytest.raises(TypeError):
        make_bench_with_passes(tmp_path, step(), 2, 2, algorithm="dapo").trainer.train()


def gradients_by_origin(bench: TrainerBench) -> "dict[str, list[torch.Tensor]]":
    """Return the gradients of tokens by origin; episodes are shuffled, and identified by their tokens."""
    *discarded, gradients = bench.token_gradients
    assert len(discarded) == (bench.hooks.latest.off_policy > 0), "a step starts again only if it drops groups"
    assert not any(each.any() for each in discarded)
    found: dict[str, list[torch.Tensor]] = {"sampled": [], "injected": []}
    ids = bench.trainer._buffered_inputs[0]["completion_ids"]
    for group in bench.given[0].groups:
        for trajectory in group.trajectories:
            completion = trajectory.ids[len(trajectory.spans[0].ids) :]
            row = next(place for place, each in enumerate(ids.tolist()) if each[: len(completion)] == completion)
            start = 0
            for span in trajectory.spans[1:]:
                found[span.origin].append(gradients[row, start : start + len(span.ids)])
                start += len(span.ids)
    return found


def test_injected_tokens_have_no_gradient(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, [step()])
    bench.trainer.train()
    found = gradients_by_origin(bench)
    assert len(found["injected"]) == 4
    assert all((each == 0).all() for each in found["injected"])
    assert all((each != 0).all() for each in found["sampled"])


def test_injected_tokens_have_gradients_in_mode_rollout(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, [step()], train_on_tool_tokens=True)
    bench.trainer.train()
    found = gradients_by_origin(bench)
    assert all((each != 0).all() for each in [*found["injected"], *found["sampled"]])


def test_each_turn_has_its_own_advantage(tmp_path: Path) -> None:
    import torch

    turns = (((1.0, -1.0), (0.5, 0.0, 2.0)), ((3.0,), (1.0, -2.0)))
    bench = make_bench(tmp_path, [step(turn_returns=turns)], "turn_level", scale="none", beta=0.0)
    bench.trainer.train()
    sampled = gradients_by_origin(bench)["sampled"]
    flat = [value for group in turns for member in group for value in member]
    tokens = sum(len(each) for each in sampled)
    for gradient, advantage in zip(sampled, flat, strict=True):
        torch.testing.assert_close(gradient, torch.full_like(gradient, -advantage / tokens), rtol=1e-4, atol=1e-7)


def sampled_tokens(bench: TrainerBench) -> list[int]:
    """Return the number of sampled tokens of each episode of the first step."""
    return [each.sampled_tokens for group in bench.given[0].groups for each in group.trajectories]


def test_off_policy_groups_are_dropped(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, [step()])
    bench.first_shift = -0.8
    bench.trainer.train()
    found = gradients_by_origin(bench)["sampled"]
    first = sum(len(texts) // 2 for texts in GROUPS[0])
    assert all((each == 0).all() for each in found[:first])
    assert all((each != 0).all() for each in found[first:])
    assert bench.hooks.latest.off_policy == 1
    compared, tokens = bench.hooks.latest.comparisons, sampled_tokens(bench)
    assert [each.rejected for each in compared] == [True, True, False, False]
    assert [each.trained for each in compared] == [0, 0, *tokens[2:]]
    assert [each.tokens for each in compared] == tokens
    assert [each.difference for each in compared] == pytest.approx([0.8, 0.8, 0, 0], abs=1e-4)


def test_dropped_groups_do_not_weaken_the_others(tmp_path: Path) -> None:
    import torch

    dropped, alone = step(), step()
    alone.groups = alone.scored = alone.groups[1:]
    benches = [make_bench(tmp_path, [each]) for each in (dropped, alone)]
    benches[0].first_shift = -0.8
    for bench in benches:
        bench.trainer.train()
    assert [bench.hooks.latest.off_policy for bench in benches] == [1, 0]
    torch.testing.assert_close(benches[0].gradients[0], benches[1].gradients[0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("staleness", "off_policy"), [(0, 1), (1, 0)])
def test_an_older_policy_may_differ_more(tmp_path: Path, staleness: int, off_policy: int) -> None:
    found = step()
    found.groups[0] = replace(found.groups[0], staleness=staleness)
    bench = make_bench(tmp_path, [found])
    bench.first_shift = -0.8
    bench.trainer.train()
    assert bench.hooks.latest.off_policy == off_policy


@pytest.mark.parametrize("difference", [0.8, -0.8, math.nan])
def test_one_off_policy_episode_drops_its_group(difference: float) -> None:
    import torch

    from gumshoe.training.grpo.sampler_check import StepMetrics, compare_episodes

    ones, sampled = torch.ones(4, 3, dtype=torch.long), torch.full((4, 3), -1.0)
    batch = dict.fromkeys(("prompt_mask", "completion_mask", "tool_mask"), ones)
    batch |= {"sampling_per_token_logps": sampled}
    logprobs = sampled.clone()
    logprobs[1] += difference
    metrics = StepMetrics()
    assert metrics.record(compare_episodes(batch, logprobs).tolist(), GENERATIONS, [0.5] * 4) == [0]
    assert (metrics.off_policy, metrics.trainable, metrics.tokens, metrics.is_skipped) == (1, 6, 12, False)
    assert [each.rejected for each in metrics.comparisons] == [True, True, False, False]


@pytest.mark.parametrize("shift", ["first_shift", "shift"])
@pytest.mark.parametrize(("size", "passes"), nightly_except([(2, 2)], [(1, 4), (2, 2), (4, 1)]))
def test_a_check_in_the_loss_has_the_same_outcome_as_one_before_it(
    tmp_path: Path, size: int, passes: int, shift: str
) -> None:
    """With a group of another policy, which a pass after others may find, and without one."""
    import torch

    found = []
    for checks_in_loss in (True, False):
        bench = make_bench_with_passes(tmp_path, step(), size, passes)
        bench.trainer._checks_in_loss = checks_in_loss
        setattr(bench, shift, -0.6 if shift == "first_shift" else 0.01)
        seen = bench.train_and_count_tokens()
        (logged, _) = bench.trainer.state.log_history
        found.append((bench.gradients[0], logged, bench.hooks.latest, sum(seen[False])))
    (gradients, logged, metrics, tokens), (others, logged_before, metrics_before, tokens_before) = found
    torch.testing.assert_close(gradients, others, rtol=1e-4, atol=1e-7)
    for name in ("loss", "kl", "entropy"):
        assert logged[name] == pytest.approx(logged_before[name], rel=1e-4, abs=1e-7)
    assert metrics.off_policy == metrics_before.off_policy == (shift == "first_shift")
    assert metrics.trainable == metrics_before.trainable
    assert [each.model_dump() for each in metrics.comparisons] == [
        pytest.approx(each.model_dump(), rel=1e-4, abs=1e-6) for each in metrics_before.comparisons
    ]
    if shift == "shift":
        assert tokens < tokens_before, "there was no pass before the loss"


def test_ratios_above_and_below_1_do_not_cancel_out(tmp_path: Path) -> None:
    """Each ratio counts at most 1, because the mean of plain ratios is 1 for any two policies."""
    bench = make_bench(tmp_path, [step()])
    bench.shift, bench.first_shift = -0.3, 0.6
    bench.trainer.train()
    first, second = (sum(each.sampled_tokens for each in group.trajectories) for group in bench.given[0].groups)
    assert bench.hooks.latest.ratio == pytest.approx((first * math.exp(-0.3) + second) / (first + second), abs=1e-4)
    compared, low, high = bench.hooks.latest.comparisons, math.exp(-0.3), math.exp(0.3)
    for name, wanted in (("min_ratio", (low, high)), ("max_ratio", (low, high)), ("mean_ratio", (low, 1.0))):
        found = [getattr(each, name) for each in compared]
        assert found == pytest.approx([wanted[0]] * 2 + [wanted[1]] * 2, abs=1e-4), name
    assert bench.hooks.latest.off_policy == 0


def test_dropout_does_not_affect_importance_ratios(tmp_path: Path) -> None:
    """Dropout is only used in passes with gradient."""
    bench = make_bench(tmp_path, [step()], dropout=0.5)
    bench.trainer.train()
    assert bench.hooks.latest.difference == pytest.approx(0, abs=1e-5)
    assert bench.hooks.latest.ratio == pytest.approx(1, abs=1e-5)
    assert any(each.abs().sum() > 0 for each in bench.gradients[0].values())


def test_sharded_segments_of_a_model_that_reads_no_trees_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.training.grpo.trainer import AgentTrainer

    found = step()
    member = found.groups[0].trajectories[1]
    *_, last = member.spans
    member.spans[-1] = replace(last, segment=1)
    member.segments.append(Segment(0, 2, (), "history edited"))
    bench = make_bench(tmp_path, [found, step()])
    monkeypatch.setattr(AgentTrainer, "_is_sharded", True)
    bench.trainer._tree_reader = None
    with raises("training.segments-not-supported", "step 1"):
        bench.trainer._roll_out(["0"] * 4)
    bench.trainer.state.global_step = 1
    assert len(bench.trainer._roll_out(["0"] * 4)["reward"]) == 4, "without segments"


def test_a_step_with_only_off_policy_groups_fails(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, [step()])
    bench.shift = 0.7
    with raises("training.off-policy-step", "0.7 nats"):
        bench.trainer.train()


def test_a_missing_group_does_not_affect_the_others(tmp_path: Path) -> None:
    alone = make_bench(tmp_path, [step(1)])
    alone.trainer.train()
    assert alone.hooks.latest.trainable == sum(sum(each.mask) for each in alone.given[0].groups[0].trajectories)
    sampled = gradients_by_origin(alone)["sampled"]
    assert all((each != 0).all() for each in sampled)
    assert sum(int((row != 0).any()) for row in alone.token_gradients[0]) == GENERATIONS


def test_a_step_without_groups_changes_no_weight(tmp_path: Path) -> None:
    import torch
    from transformers import TrainerCallback

    bench = make_bench(tmp_path, [step(), step(0), step()], learning_rate=0.01)
    seen: list[dict[str, torch.Tensor]] = []
    bench.hooks.publish = lambda: None

    class Weights(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append({name: each.detach().clone() for name, each in bench.parameters().items()})

    bench.trainer.add_callback(Weights())
    bench.trainer.train()
    first, skipped, third = seen
    assert all(torch.equal(first[name], skipped[name]) for name in first)
    assert not any(torch.equal(skipped[name], third[name]) for name in first)


def test_a_step_without_a_finite_gradient_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    from gumshoe.training.grpo.run import Run
    from gumshoe.training.launch.lifecycle import EventsCallback

    broken = step()
    broken.groups[0] = replace(broken.groups[0], rewards=(math.inf, 0.0))
    bench = make_bench(tmp_path, [step(), broken], learning_rate=0.01, save_strategy="steps", save_steps=1)

    class Events:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def on_metrics(self, logs: dict[str, float], control: Any) -> None:
            if (number := bench.trainer.state.global_step) > 1:
                Run.on_metrics(cast(Any, SimpleNamespace(_lifecycle=SimpleNamespace(step=number))), logs, control)

    bench.trainer.add_callback(EventsCallback(cast(Any, Events())))
    with raises("training.not-finite", "nan"):
        bench.trainer.train()
    assert [each.name for each in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


def test_episodes_of_a_chat_model_are_rejected() -> None:
    from gumshoe.training.grpo.samples import to_sample

    spans = [Span("prompt", "Q?"), Span("sampled", "A.")]
    with raises("rollouts.no-token-ids", "gpt"):
        to_sample(Trajectory("1", 0, "gpt", "answer", "", spans, EpisodeState(), 1, 0.0, 0.0), 1.0, [0.0])
