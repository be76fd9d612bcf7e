"""Loss and gradient of the trainer against `loss_reference.py`: every algorithm, mode, path and number of passes."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.training.algorithms.lookup import BUILT_IN, find_algorithm
from gumshoe.training.algorithms.turn_level import TurnLevel
from gumshoe.training.grpo.rollout_collector import RolloutBatch, ScoredGroup
from tests.models import random_model
from tests.tiers import nightly_except
from tests.training.loss_reference import Episode, episode_advantages, step_loss, token_losses, turn_advantages
from tests.training.test_trainer import LENGTH, SCENARIO, TrainerBench, episode, make_bench, tokenizer

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.ci

PROMPT = "the quick brown fox 1234" * 5  # of more tokens than it takes to compute a common prefix once
GROUPS = (
    ((f"{PROMPT} a", " quick brown", " fox 12", " quick"), (f"{PROMPT} a", " brown fox fox", " 3", " the", "4", " b")),
    ((f"{PROMPT} fox b", " 1234"), (f"{PROMPT} fox b", " quick quick", " b", " fox 1")),
)
REWARDS = ((1.0, -0.5), (0.25, 0.75))
TURN_REWARDS = (((0.2, -0.5), (0.02, -0.07, 1.0)), ((-0.5,), (0.2, 1.0)))
TEMPERATURE = 0.8
TOLERANCES = {"loss": 1e-6, "gradient": 3e-6}
"""Relative. Float32 rounds a log-probability of -5.6, as random models give, by 2e-7, and gradients of tokens with
advantages of both signs partly cancel out."""


@dataclass(frozen=True)
class Case:
    algorithm: str
    loss: str
    """The algorithm whose loss `turn_level` uses; else the algorithm itself."""
    train_on_tool_tokens: bool
    beta: float


ALGORITHMS = [(each, each) for each in BUILT_IN if each != "turn_level"]
ALGORITHMS += [("turn_level", each) for each in ("dapo", "grpo", "dr_grpo", "bnpo")]
CASES = [Case(*names, *more) for names in ALGORITHMS for more in ((False, 0.0), (False, 0.1), (True, 0.1))]


@dataclass
class Step:
    """What the trainer did in an optimizer step."""

    passes: list[list[int]]
    """Numbers of the episodes, [passes][episodes]."""
    loss: float
    weights: "dict[str, torch.Tensor]"
    """The adapter, before the update."""
    gradients: "dict[str, torch.Tensor]"


class LossBench:
    """Train two steps per case with one trainer, always from the same weights, and repeat them with the reference."""

    def __init__(self, place: Path, size: int, passes: int, *, shares_prefix: bool) -> None:
        import torch
        from peft import get_peft_model

        every = RolloutBatch(len(GROUPS))
        more: dict[str, Any] = {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
        more |= {"gradient_checkpointing": not shares_prefix, "temperature": TEMPERATURE, "learning_rate": 0.05}
        self.bench: TrainerBench = make_bench(place, [every] * len(CASES), num_iterations=2, **more)
        self.trainer, self.hooks = self.bench.trainer, self.bench.hooks
        assert self.trainer._shares_beginning == shares_prefix
        config = deepcopy(self.trainer.model.peft_config["default"])
        self.reference: Any = get_peft_model(random_model(len(tokenizer()), 1), config).double().eval()
        self.weights = {name: each.detach().clone() for name, each in self.bench.parameters().items()}
        self.load(self.weights)
        self.episodes = [episode(number, list(texts)) for group in GROUPS for number, texts in enumerate(group)]
        with torch.no_grad():
            self.old = self.logprobs()
            with self.reference.disable_adapter():
                self.base = self.logprobs()
        generator = torch.Generator().manual_seed(4)
        shifts = [0.3 * torch.randn(len(each), generator=generator, dtype=torch.float64) for each in self.old]
        shifts[0][0] = -1.5  # so that the importance weight is truncated
        self.sampler = [old + shift for old, shift in zip(self.old, shifts, strict=True)]
        self.steps: list[Step] = []
        self._passes: list[list[int]] = []
        self._loss = 0.0

    def train(self) -> None:
        from transformers import PrinterCallback, TrainerCallback

        bench = self

        class Record(TrainerCallback):
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                values = bench.bench.parameters()
                weights = {name: each.detach().clone() for name, each in values.items()}
                gradients = {name: each.grad.double() for name, each in values.items()}  # type: ignore[union-attr]
                bench.steps.append(Step(bench._passes, bench._loss, weights, gradients))
                bench._passes, bench._loss = [], 0.0

        compute = self.trainer._compute_loss

        def compute_loss(model: Any, inputs: dict[str, Any]) -> "torch.Tensor":
            rows = [ids[mask.bool()].tolist() for ids, mask in zip(*self._completions(inputs), strict=True)]
            known = [self.completion(each) for each in self.episodes]
            self._passes.append([known.index(each) for each in rows])
            loss: torch.Tensor = compute(model, inputs)
            self._loss += float(loss.detach())
            return loss

        self.trainer._compute_loss = compute_loss
        self.hooks.roll_out = self.roll_out
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(Record())
        self.trainer.train()

    @staticmethod
    def _completions(inputs: dict[str, Any]) -> "tuple[torch.Tensor, torch.Tensor]":
        return inputs["completion_ids"], inputs["completion_mask"]

    def completion(self, trajectory: Trajectory) -> list[int]:
        return trajectory.ids[len(trajectory.spans[0].ids) :]

    def roll_out(self, step: int) -> RolloutBatch:
        """Return the episodes of a case with its settings, and restore the weights."""
        case = CASES[step // 2]
        is_turn_level = case.algorithm == "turn_level"
        self.hooks.algorithm = found = find_algorithm(case.algorithm, {"loss": case.loss} if is_turn_level else {})
        self.hooks.train_on_tool_tokens, self.trainer.beta = case.train_on_tool_tokens, case.beta
        for name, each in self.bench.parameters().items():
            each.data.copy_(self.weights[name])
        members = [self._sampled(*each) for each in zip(self.episodes, self.sampler, strict=True)]
        batch = RolloutBatch(len(GROUPS))
        for place, rewards in enumerate(REWARDS):
            returns = found.relative_returns(TURN_REWARDS[place]) if isinstance(found, TurnLevel) else ()
            own = tuple(members[2 * place : 2 * place + 2])
            batch.groups.append(ScoredGroup(SCENARIO, own, rewards, tuple(returns)))
        batch.scored = list(batch.groups)
        return batch

    @staticmethod
    def _sampled(trajectory: Trajectory, logprobs: "torch.Tensor") -> Trajectory:
        spans, start = [trajectory.spans[0]], 0
        for span in trajectory.spans[1:]:
            end = start + len(span.ids)
            known = tuple(logprobs[start:end].tolist()) if span.origin == "sampled" else ()
            spans.append(Span(span.origin, span.text, span.ids, known))
            start = end
        trajectory.spans = spans
        return trajectory

    def load(self, weights: "dict[str, torch.Tensor]") -> None:
        """Give the reference model this adapter."""
        for name, each in weights.items():
            self.reference.get_parameter(name).data.copy_(each)

    def logprobs(self) -> "list[torch.Tensor]":
        """Return the log-probabilities of the completions under the reference model, [episodes][tokens]."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        rows = [torch.tensor(each.ids) for each in self.episodes]
        logits = self.reference(input_ids=pad_sequence(rows, batch_first=True)).logits / TEMPERATURE
        found = logits.log_softmax(-1)[:, :-1]  # no token attends to the padding on the right
        starts = [len(each.spans[0].ids) for each in self.episodes]
        return [
            each[start - 1 : len(row) - 1].gather(1, row[start:, None])[:, 0]
            for each, row, start in zip(found, rows, starts, strict=True)
        ]

    def expected_losses(self, case: Case, weights: "dict[str, torch.Tensor]") -> "list[torch.Tensor]":
        """Return the reference's losses of trained tokens with these weights, [episodes][tokens]."""
        import torch

        self.load(weights)
        flat = [value for group in REWARDS for value in episode_advantages(group, case.algorithm)]
        by_turn: list[Sequence[float]] = [(value,) * 9 for value in flat]
        if case.algorithm == "turn_level":
            by_turn = [value for group in TURN_REWARDS for value in turn_advantages(group)]
        losses, new = [], self.logprobs()
        for place, trajectory in enumerate(self.episodes):
            rest = trajectory.spans[1:]
            sampled = torch.tensor([span.origin == "sampled" for span in rest for _ in span.ids])
            turns = torch.tensor([(number + 1) // 2 for number, span in enumerate(rest) for _ in span.ids])
            kept = sampled | case.train_on_tool_tokens
            every = (new[place], self.old[place], self.sampler[place], self.base[place], sampled)
            found = Episode(*(each[kept] for each in every))
            advantages = torch.tensor(by_turn[place], dtype=torch.float64)[turns[kept]]
            losses.append(token_losses(found, advantages, case.loss, case.beta))
        return losses

    def errors(self, case: Case, step: Step) -> "dict[str, float]":
        """Return the relative errors of loss and gradient."""
        import torch

        losses = self.expected_losses(case, step.weights)
        passes = [[losses[number] for number in part] for part in step.passes]
        wanted = step_loss(passes, case.loss, LENGTH)
        size = step_loss([[each.detach().abs() for each in part] for part in passes], case.loss, LENGTH)
        self.reference.zero_grad()
        wanted.backward()  # type: ignore[no-untyped-call]
        mine = torch.cat([each.flatten() for each in step.gradients.values()])
        theirs = torch.cat([self.reference.get_parameter(name).grad.flatten() for name in step.gradients])
        return {
            "loss": abs(step.loss - wanted.item()) / size.item(),
            "gradient": float((mine - theirs).norm() / theirs.norm()),
        }


@pytest.mark.parametrize(
    ("size", "passes", "shares_prefix"),
    nightly_except([(4, 1, False), (2, 2, True)], [(4, 1, False), (4, 1, True), (2, 2, False), (2, 2, True)]),
)
def test_loss_and_gradient_equal_the_reference(tmp_path: Path, size: int, passes: int, shares_prefix: bool) -> None:
    """The first step of a case has ratios of 1; the second one works on the same episodes, and some are clipped."""
    bench = LossBench(tmp_path, size, passes, shares_prefix=shares_prefix)
    bench.train()
    assert len(bench.steps) == 2 * len(CASES)
    assert all(sorted(chain.from_iterable(each.passes)) == [0, 1, 2, 3] for each in bench.steps)
    wrong = []
    for number, step in enumerate(bench.steps):
        errors = bench.errors(CASES[number // 2], step)
        if not all(errors[name] <= most for name, most in TOLERANCES.items()):
            wrong.append((CASES[number // 2], number % 2, errors))
    assert not wrong
    logs = bench.trainer.state.log_history[1::2]
    clipped = {case.algorithm for case, log in zip(CASES, logs, strict=False) if log["clip_ratio"] > 0}
    assert {"grpo", "dapo", "bnpo", "dr_grpo", "rloo", "turn_level"} <= clipped
    assert not {"cispo", "sapo"} & clipped
