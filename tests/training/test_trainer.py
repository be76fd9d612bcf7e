"""The trainer against the papers' formulas, worked out directly: loss, gradient, masks, and what is left out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from gumshoe.environments.base import EpisodeState
from gumshoe.rollouts.trajectory import Segment, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.algorithms.lookup import BUILT_IN, find_algorithm
from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
from tests.errors import raises
from tests.models import random_model

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.ci

BETA, GENERATIONS, LENGTH = 0.1, 2, 64
ALGORITHMS = tuple(name for name in BUILT_IN if name != "turn_level")
Logprobs: TypeAlias = "Callable[[list[int]], torch.Tensor]"
"""[tokens - 1]: each token's log-probability after those before it."""


@cache
def tokenizer() -> Any:
    """Return a tokenizer of 300 tokens."""
    from gumshoe.tiny.maker import train_tokenizer

    return train_tokenizer(["the quick brown fox, 1234 <b>"], 300)


def episode(sample: int, texts: list[str]) -> Trajectory:
    """A prompt, and then turns and results in their turn."""
    origins = ["prompt", *(["sampled", "injected"] * len(texts))]
    segments = [
        Segment(origin, text, tuple(tokenizer().encode(text, add_special_tokens=False)))  # type: ignore[arg-type]
        for origin, text in zip(origins, texts, strict=False)
    ]
    turns = sum(each.origin == "sampled" for each in segments)
    return Trajectory("1", sample, "policy", "answer", "", segments, EpisodeState(), turns, 0.0, 0.0)


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
    [["fox the", " 1234"], ["fox the", " quick quick", " b", " fox 1"]],
)
REWARDS = ((1.0, -0.5), (0.25, 0.75))


@dataclass
class Bench:
    """A trainer on given episodes, and what it did with them."""

    trainer: Any = None
    given: list[RolloutBatch] = field(default_factory=list)
    shift: float = 0.0
    """How far the sampler's log-probabilities lie from the trainer's; of the first group alone, `first_shift` more."""
    first_shift: float = 0.0
    gradients: "list[dict[str, torch.Tensor]]" = field(default_factory=list)
    token_gradients: "list[torch.Tensor]" = field(default_factory=list)
    """[episodes, tokens] of each pass."""
    hooks: Any = None

    def roll_out(self, step: int) -> RolloutBatch:
        """The step's episodes, with what a sampler with these weights would say of them."""
        found = self.given[step]
        for place, group in enumerate(found.groups):
            for trajectory in group.trajectories:
                logps = self.logprobs()(trajectory.ids).detach()
                start = 0
                for number, segment in enumerate(trajectory.segments):
                    span = logps[start - 1 : start - 1 + len(segment.ids)] if start else logps[:0]
                    if segment.origin == "sampled":
                        said = span + self.shift + (self.first_shift if place == 0 else 0.0)
                        trajectory.segments[number] = Segment(
                            "sampled", segment.text, segment.ids, tuple(said.tolist())
                        )
                    start += len(segment.ids)
        return found

    def logprobs(self) -> Logprobs:
        """By the plain model, one sequence at a time."""

        import torch

        def of(ids: list[int]) -> "torch.Tensor":
            model = self.trainer.model
            was_training = model.training
            logits = model.eval()(input_ids=torch.tensor([ids])).logits[0, :-1].float()
            model.train(was_training)
            return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

        return of

    def train_seeing(self) -> dict[bool, list[int]]:
        """Train: the tokens that went through the model each time, padding among them, with gradient and without."""
        import torch

        seen: dict[bool, list[int]] = {True: [], False: []}

        def look(_: Any, __: Any, given: dict[str, Any]) -> None:
            seen[torch.is_grad_enabled()].append(given["input_ids"].numel())

        with self.trainer.model.register_forward_pre_hook(look, with_kwargs=True):
            self.trainer.train()
        self.trainer.model.eval()
        return seen

    def expected_gradients(self) -> "dict[str, torch.Tensor]":
        """Those that `backward` left."""
        return {name: each.grad for name, each in self.parameters().items() if each.grad is not None}

    def parameters(self) -> "dict[str, torch.Tensor]":
        return {name: each for name, each in self.trainer.model.named_parameters() if each.requires_grad}


def spy_on(bench: Bench, *arguments: Any, **named: Any) -> Any:
    """Make an `AgentTrainer` that gives the bench the gradients of each step, and of each token's log-probability."""
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


def bench(
    tmp_path: Path,
    steps: list[RolloutBatch],
    algorithm: str = "dapo",
    *,
    train_on_tool_tokens: bool = False,
    dropout: float = 0.0,
    scale: str = "group",
    num_iterations: int = 1,
    **settings: Any,
) -> Bench:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig

    from gumshoe.training.grpo.trainer import Hooks

    made = Bench(given=steps)
    wanted = {"learning_rate": 0.0, **settings}
    found = find_algorithm(algorithm, {} if algorithm == "rloo" else {"scale": scale})
    rows = steps[0].wanted * GENERATIONS
    hooks = Hooks(made.roll_out, found, lambda: None, 0.5, train_on_tool_tokens)
    made.hooks = hooks
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
        save_strategy="no",
        logging_steps=1,
        dataloader_pin_memory=False,
        **wanted,
    )
    made.trainer = spy_on(
        made,
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
        for name, each in made.parameters().items():
            if "lora_B" in name:
                each.normal_(0, 0.3)  # so that the adapter does something, and all of it has a gradient
    return made


def in_passes(tmp_path: Path, found: RolloutBatch, size: int, passes: int, **settings: Any) -> Bench:
    """A step in passes of a size, each of which goes through the model as a whole."""
    shape = {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
    return bench(tmp_path, [found], **shape, gradient_checkpointing=True, **settings)  # type: ignore[arg-type]


def step(groups: int = 2, turn_advantages: Any = ((), ())) -> RolloutBatch:
    """The first so many groups; those that are missing of two are made up."""
    found = RolloutBatch(2)
    for texts, rewards, turns in list(zip(GROUPS, REWARDS, turn_advantages, strict=True))[:groups]:
        members = tuple(episode(sample, each) for sample, each in enumerate(texts))
        found.groups.append(ScoredGroup(SCENARIO, members, rewards, turns))
    found.scored = list(found.groups)
    return found


def token_gain(algorithm: str, ratio: "torch.Tensor", advantage: "torch.Tensor", new: "torch.Tensor") -> "torch.Tensor":
    """What the papers maximize for each token of an episode, [tokens], before means are taken."""
    import torch

    if algorithm == "cispo":
        return ratio.clamp(max=5.0).detach() * advantage * new
    if algorithm == "sapo":
        temperature = 1.0 if advantage > 0 else 1.05
        return 4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantage
    high = 1.2 if algorithm == "rloo" else 1.28
    return torch.minimum(ratio * advantage, ratio.clamp(0.8, high) * advantage)


def expected_loss(
    made: Bench,
    algorithm: str,
    *,
    train_on_tool_tokens: bool,
    scale: str = "group",
    old: "list[torch.Tensor] | None" = None,
) -> "torch.Tensor":
    """The objective of GRPO (https://arxiv.org/abs/2402.03300, equation 3) with truncated importance sampling, written
    out episode by episode. `old` has the log-probabilities of each episode's tokens when it was sampled, [tokens - 1];
    without it, the policy is the one that sampled, so that every ratio is 1 and has a gradient.
    """
    import torch

    logprobs = made.logprobs()
    every = [value for group in REWARDS for value in group]
    sums, counts, means = [], [], []
    before = iter(old or [])
    for place, group in enumerate(made.given[0].groups):
        rewards = torch.tensor(group.rewards)
        spreads = {"group": rewards.std() + 1e-4, "batch": torch.tensor(every).std() + 1e-4, "none": torch.tensor(1.0)}
        spread = spreads[scale]
        for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
            new = logprobs(trajectory.ids)
            with torch.no_grad(), made.trainer.model.disable_adapter():
                reference = logprobs(trajectory.ids)
            advantage = (reward - rewards.mean()) / spread
            if algorithm == "rloo":
                advantage = reward - (rewards.sum() - reward) / (len(rewards) - 1)
            correction = torch.exp(torch.tensor(-(made.shift + (made.first_shift if place == 0 else 0.0)))).clamp(max=3)
            weights = torch.tensor(trajectory.mask[1:]) * correction  # injected tokens have no sampler: 1 for them
            start = len(trajectory.segments[0].ids) - 1
            mask = torch.tensor(trajectory.mask[1:], dtype=torch.bool)
            if train_on_tool_tokens:
                weights = torch.where(mask, weights, torch.tensor(1.0))
                mask = torch.arange(len(new)) >= start
            apart = new - next(before, new.detach())
            if algorithm == "gspo":
                apart = ((apart * mask).sum() / mask.sum()).expand(len(new))
            ratio = torch.exp(apart)
            kl = (torch.exp(reference - new) - (reference - new) - 1) * ratio  # unbiased: arXiv 2512.02556
            gain = token_gain(algorithm, ratio, torch.as_tensor(advantage), new)
            loss = torch.where(mask, -gain * weights + BETA * kl, torch.tensor(0.0))
            sums.append(loss.sum())
            counts.append(mask.sum())
            means.append(loss.sum() / mask.sum())
    if algorithm in ("grpo", "sapo", "gspo"):
        return torch.stack(means).mean()
    if algorithm == "rloo":
        return torch.stack(sums).mean()
    if algorithm == "dr_grpo":
        return torch.stack(sums).sum() / (len(sums) * LENGTH)
    return torch.stack(sums).sum() / torch.stack(counts).sum()


@pytest.mark.parametrize(
    ("algorithm", "train_on_tool_tokens"),
    [
        *[pytest.param(each, False, id=f"{each}-masked") for each in ALGORITHMS],
        *[pytest.param(each, True, id=f"{each}-rollout") for each in ("grpo", "dapo")],
        *[
            pytest.param(each, True, id=f"{each}-rollout", marks=pytest.mark.nightly)
            for each in ("dr_grpo", "bnpo", "cispo", "sapo", "gspo", "rloo")
        ],
    ],
)
def test_loss_and_gradient_are_those_of_the_formula(tmp_path: Path, algorithm: str, train_on_tool_tokens: bool) -> None:
    import torch

    made = bench(tmp_path, [step()], algorithm, train_on_tool_tokens=train_on_tool_tokens)
    made.shift, made.first_shift = 0.1, -0.3
    made.trainer.train()
    made.trainer.model.eval()
    made.trainer.model.zero_grad()
    wanted = expected_loss(made, algorithm, train_on_tool_tokens=train_on_tool_tokens)
    wanted.backward()  # type: ignore[no-untyped-call]
    assert made.trainer.state.log_history[0]["loss"] == pytest.approx(wanted.item(), abs=2e-5)
    (found,) = made.gradients
    torch.testing.assert_close(found, made.expected_gradients(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    ["dapo", "cispo", *[pytest.param(each, marks=pytest.mark.nightly) for each in ("gspo", "sapo", "rloo")]],
)
def test_a_second_step_on_the_same_episodes_is_clipped_against_the_policy_that_sampled(
    tmp_path: Path, algorithm: str
) -> None:
    import torch
    from transformers import TrainerCallback

    made = bench(tmp_path, [step()], algorithm, num_iterations=2, learning_rate=0.05)
    weights: list[dict[str, torch.Tensor]] = [{name: each.detach().clone() for name, each in made.parameters().items()}]

    class Weights(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            weights.append({name: each.detach().clone() for name, each in made.parameters().items()})

    made.trainer.add_callback(Weights())
    made.trainer.train()
    made.trainer.model.eval()

    def load(values: dict[str, torch.Tensor]) -> None:
        for name, each in made.parameters().items():
            each.data.copy_(values[name])

    load(weights[0])
    old = [made.logprobs()(each.ids).detach() for group in made.given[0].groups for each in group.trajectories]
    load(weights[1])
    made.trainer.model.zero_grad()
    expected_loss(made, algorithm, train_on_tool_tokens=False, old=old).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(made.gradients[1], made.expected_gradients(), rtol=1e-3, atol=1e-6)
    clipped = made.trainer.state.log_history[1]["clip_ratio"]
    assert (clipped > 0) == (algorithm in {"dapo", "rloo"}), "the first update is a large one"


@pytest.mark.parametrize(
    ("algorithm", "size", "passes"),
    [
        *[(each, 1, 4) for each in ALGORITHMS if each != "bnpo"],
        ("dapo", 2, 2),
        *[
            pytest.param(each, 2, 2, marks=pytest.mark.nightly)
            for each in ("grpo", "dr_grpo", "cispo", "sapo", "gspo", "rloo")
        ],
    ],
)
def test_passes_of_like_lengths_learn_the_same_from_fewer_tokens(
    tmp_path: Path, algorithm: str, size: int, passes: int
) -> None:
    import torch

    made = in_passes(tmp_path, step(), size, passes, algorithm=algorithm)
    made.shift, made.first_shift = 0.1, -0.3
    seen = made.train_seeing()
    made.trainer.model.zero_grad()
    wanted = expected_loss(made, algorithm, train_on_tool_tokens=False)
    wanted.backward()  # type: ignore[no-untyped-call]
    assert made.trainer.state.log_history[0]["loss"] == pytest.approx(wanted.item(), abs=2e-5)
    torch.testing.assert_close(made.gradients[0], made.expected_gradients(), rtol=1e-3, atol=1e-6)
    every = [each for group in made.given[0].groups for each in group.trajectories]
    every.sort(key=lambda each: len(each.ids), reverse=True)
    longest = [size * len(each.ids) for each in every[::size]]
    assert seen[True][-passes:] == longest, "the longest first"
    assert seen[False][-2 * passes :] == longest * 2, "of the sampler, and of the base model"


def test_what_is_told_of_a_step_does_not_depend_on_its_passes(tmp_path: Path) -> None:
    for groups in (1, 2):
        told = []
        for size, passes in ((4, 1), (2, 2), (1, 4)):
            made = in_passes(tmp_path, step(groups), size, passes)
            made.trainer.train()
            told.append([made.trainer.state.log_history[0][name] for name in ("kl", "entropy", "loss")])
        assert told[0][0] > 0
        assert told[1] == pytest.approx(told[0], rel=1e-3)
        assert told[2] == pytest.approx(told[0], rel=1e-3)


def test_what_stands_in_for_a_group_costs_nothing_to_speak_of(tmp_path: Path) -> None:
    seen = in_passes(tmp_path, step(1), 2, 2).train_seeing()
    assert seen[True][-1] == 2 * 2


def test_turns_in_passes_have_the_advantage_of_their_own(tmp_path: Path) -> None:
    import torch

    turns = (((0.5, -1.0), (2.0, 0.25, -0.75)), ((1.0,), (0.5, -0.5)))
    found = []
    for size, passes in ((4, 1), (2, 2)):
        made = in_passes(tmp_path, step(turn_advantages=turns), size, passes)
        made.trainer.train()
        found.append(made.gradients[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


def test_where_a_loss_is_the_mean_of_a_pass_passes_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.training.grpo import trainer

    monkeypatch.setattr(trainer, "by_length", None)
    in_passes(tmp_path, step(), 2, 2, algorithm="bnpo").trainer.train()
    with pytest.raises(TypeError):
        in_passes(tmp_path, step(), 2, 2, algorithm="dapo").trainer.train()


@pytest.mark.parametrize("scale", ["batch", "none"])
def test_advantages_are_scaled_as_it_is_set(tmp_path: Path, scale: str) -> None:
    import torch

    made = bench(tmp_path, [step()], scale=scale)
    made.trainer.train()
    made.trainer.model.zero_grad()
    expected_loss(made, "dapo", train_on_tool_tokens=False, scale=scale).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(made.gradients[0], made.expected_gradients(), rtol=1e-3, atol=1e-6)


def by_origin(made: Bench) -> "dict[str, list[torch.Tensor]]":
    """The gradients of tokens by where they come from; episodes are shuffled, and told apart by their lengths."""
    (gradients,) = made.token_gradients
    found: dict[str, list[torch.Tensor]] = {"sampled": [], "injected": []}
    ids = made.trainer._buffered_inputs[0]["completion_ids"]
    for group in made.given[0].groups:
        for trajectory in group.trajectories:
            completion = trajectory.ids[len(trajectory.segments[0].ids) :]
            row = next(place for place, each in enumerate(ids.tolist()) if each[: len(completion)] == completion)
            start = 0
            for segment in trajectory.segments[1:]:
                found[segment.origin].append(gradients[row, start : start + len(segment.ids)])
                start += len(segment.ids)
    return found


def test_no_injected_token_has_any_gradient(tmp_path: Path) -> None:
    made = bench(tmp_path, [step()])
    made.trainer.train()
    found = by_origin(made)
    assert len(found["injected"]) == 4
    assert all((each == 0).all() for each in found["injected"])
    assert all((each != 0).all() for each in found["sampled"])


def test_in_mode_rollout_injected_tokens_have_one_too(tmp_path: Path) -> None:
    made = bench(tmp_path, [step()], train_on_tool_tokens=True)
    made.trainer.train()
    found = by_origin(made)
    assert all((each != 0).all() for each in [*found["injected"], *found["sampled"]])


def test_each_turn_has_the_advantage_of_its_own(tmp_path: Path) -> None:
    import torch

    turns = (((1.0, -1.0), (0.5, 0.0, 2.0)), ((3.0,), (1.0, -2.0)))
    made = bench(tmp_path, [step(turn_advantages=turns)], beta=0.0)
    made.trainer.train()
    sampled = by_origin(made)["sampled"]
    flat = [value for group in turns for member in group for value in member]
    tokens = sum(len(each) for each in sampled)
    for gradient, advantage in zip(sampled, flat, strict=True):
        torch.testing.assert_close(gradient, torch.full_like(gradient, -advantage / tokens), rtol=1e-4, atol=1e-7)


def test_a_group_that_other_weights_sampled_is_left_out(tmp_path: Path) -> None:
    made = bench(tmp_path, [step()])
    made.first_shift = -0.8
    made.trainer.train()
    found = by_origin(made)["sampled"]
    first = sum(len(texts) // 2 for texts in GROUPS[0])
    assert all((each == 0).all() for each in found[:first])
    assert all((each != 0).all() for each in found[first:])
    assert made.hooks.latest.refused == 1


def test_ratios_of_both_directions_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    """The mean of plain ratios is 1 however far apart sampler and trainer are."""
    made = bench(tmp_path, [step()])
    made.shift, made.first_shift = -0.3, 0.6
    made.trainer.train()
    first, second = (sum(each.sampled_tokens for each in group.trajectories) for group in made.given[0].groups)
    assert made.hooks.latest.ratio == pytest.approx((first * math.exp(-0.3) + second) / (first + second), abs=1e-4)
    assert made.hooks.latest.refused == 0


def test_dropout_is_no_difference_between_sampler_and_trainer(tmp_path: Path) -> None:
    """It is for what is learned from alone."""
    made = bench(tmp_path, [step()], dropout=0.5)
    made.trainer.train()
    assert made.hooks.latest.difference == pytest.approx(0, abs=1e-5)
    assert made.hooks.latest.ratio == pytest.approx(1, abs=1e-5)
    assert any(each.abs().sum() > 0 for each in made.gradients[0].values())


def test_when_all_were_sampled_by_other_weights_the_step_fails(tmp_path: Path) -> None:
    made = bench(tmp_path, [step()])
    made.shift = 0.7
    with raises("training.off-policy-step", "0.7 nats"):
        made.trainer.train()


def test_a_group_that_is_missing_changes_nothing_for_the_others(tmp_path: Path) -> None:
    alone = bench(tmp_path, [step(1)])
    alone.trainer.train()
    assert alone.hooks.latest.trainable == sum(sum(each.mask) for each in alone.given[0].groups[0].trajectories)
    sampled = by_origin(alone)["sampled"]
    assert all((each != 0).all() for each in sampled)
    assert sum(int((row != 0).any()) for row in alone.token_gradients[0]) == GENERATIONS


def test_a_step_without_a_group_moves_no_weight_nor_does_momentum(tmp_path: Path) -> None:
    import torch
    from transformers import TrainerCallback

    made = bench(tmp_path, [step(), step(0), step()], learning_rate=0.01)
    seen: list[dict[str, torch.Tensor]] = []
    made.hooks.publish = lambda: None

    class Weights(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append({name: each.detach().clone() for name, each in made.parameters().items()})

    made.trainer.add_callback(Weights())
    made.trainer.train()
    first, skipped, third = seen
    assert all(torch.equal(first[name], skipped[name]) for name in first)
    assert not any(torch.equal(skipped[name], third[name]) for name in first)


def test_what_a_chat_model_wrote_is_refused() -> None:
    from gumshoe.training.grpo.trainer import to_sample

    said = [Segment("prompt", "Q?"), Segment("sampled", "A.")]
    with raises("rollouts.no-token-ids", "gpt"):
        to_sample(Trajectory("1", 0, "gpt", "answer", "", said, EpisodeState(), 1, 0.0, 0.0), 1.0, [0.0])
