"""TRL's GRPO trainer, with our rollouts in place of its own.

What always holds: tokens are those that the policy saw and sampled; what the environment gave counts for nothing in the
loss (but in the mode `rollout`); and an episode that the sampler's log-probabilities do not vouch for is left out.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import trl.import_utils as trl_imports
from torch.nn.utils.rnn import pad_sequence

from gumshoe.errors import UnavailableError
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.training.grpo.logprobs import by_length, common_beginning, completion_logprobs, passed_logprobs
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.launch.rendezvous import in_main

trl_imports.is_vllm_available = lambda min_version=None: False  # noqa: ARG005 - TRL would import vLLM: 2 s and 100 MB
from trl import GRPOTrainer  # noqa: E402

Rows = dict[str, list[Any]]
"""What TRL takes: one entry an episode in each list."""


@dataclass(slots=True)
class StepMetrics:
    """What the trainer found out about a step's tokens."""

    trainable: int = 0
    tokens: int = 0
    refused: int = 0
    """Groups with an episode whose log-probabilities are another policy's."""
    ratio: float = 1.0
    """Mean importance ratio of trainer to sampler, at most 1 each, of sampled tokens: 1 less the total variation
    between the two."""
    difference: float = 0.0
    """Mean difference of their log-probabilities, in nats."""
    is_skipped: bool = False
    """No group was left, and the weights stayed as they were."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One episode as the trainer takes it. All lists are of one length, but for the prompt."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float | None]
    """The sampler's; None where a token was not sampled and still counts."""
    mask: list[int]
    """1 where a token counts."""
    reward: float | None
    advantages: list[float] | None = None
    """[completion tokens], where each turn has its own."""


def to_sample(
    trajectory: Trajectory, reward: float, turns: Sequence[float] | None = None, *, injected_too: bool = False
) -> TrainingSample:
    """An episode: its prompt, and all that came after it.

    Raises:
        NotTokenExactError: a chat model wrote it.
    """
    prompt, *rest = trajectory.segments
    ids = trajectory.ids[len(prompt.ids) :]
    mask, logprobs, advantages = list[int](), list[float | None](), list[float]()
    turn = 0
    for segment in rest:
        is_sampled = segment.origin == "sampled"
        mask += [int(is_sampled or injected_too)] * len(segment.ids)
        given = [None] * len(segment.ids) if injected_too else [0.0] * len(segment.ids)
        logprobs += list(segment.logprobs) if is_sampled else given
        if turns is not None:
            advantages += [turns[min(turn, len(turns) - 1)]] * len(segment.ids)
        turn += is_sampled
    return TrainingSample(list(prompt.ids), ids, logprobs, mask, reward, None if turns is None else advantages)


def to_samples(
    found: RolloutBatch, generations: int, filler: int, *, injected_too: bool = False, alike: bool = False
) -> list[TrainingSample]:
    """The rows of a step, group after group. A group that is missing is made up with rows in which nothing counts, and
    which begin as the others do where they are to be `alike`.
    """
    rows: list[TrainingSample] = []
    for group in found.groups:
        turns: Sequence[Sequence[float] | None] = group.turn_advantages or [None] * len(group.trajectories)
        for trajectory, reward, own in zip(group.trajectories, group.rewards, turns, strict=True):
            rows.append(
                to_sample(trajectory, reward, own, injected_too=injected_too)
                if trajectory.turns
                else TrainingSample([filler], [filler], [0.0], [0], reward)  # the prompt alone fills the context
            )
    missing = found.wanted - len(found.groups)
    prompt = rows[0].prompt_ids if rows and alike else [filler]
    empty = TrainingSample(prompt, [filler], [0.0], [0], None)
    return [*rows, *[empty] * (missing * generations)]


def _given_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """The reward that an episode has already."""
    return reward


@dataclass(slots=True)
class Hooks:
    """What the trainer asks of the run that it is part of."""

    roll_out: Callable[[int], RolloutBatch]
    """The episodes of a step, from 0; asked in the main process."""
    publish: Callable[[], None]
    """Make the weights as they are what the next episodes come from; asked in every process."""
    most_difference: float
    """Nats a token by which sampler and trainer may differ, as the mean of an episode."""
    injected_too: bool = False
    latest: StepMetrics = field(default_factory=StepMetrics)
    rollouts: RolloutBatch = field(default_factory=lambda: RolloutBatch(0))


class AgentTrainer(GRPOTrainer):  # type: ignore[misc] # TRL has no types
    """GRPO on episodes of an agent."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None
    """TRL's: the passes of an optimizer step."""

    def __init__(self, hooks: Hooks, **arguments: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func', which is an experimental feature")
            super().__init__(
                reward_funcs=[_given_reward],
                rollout_func=lambda prompts, trainer: trainer._roll_out(prompts),
                **arguments,
            )
        self._hooks = hooks
        # So TRL publishes the weights before a step's rollouts, and corrects for what sampler and trainer differ in.
        self.use_vllm = True
        self._last_loaded_step = -1
        self.vllm_generation = _Publisher(hooks.publish)
        self._token_advantages: list[list[float] | None] = []
        self._counted = torch.zeros(0, 0)  # [episodes, completion tokens]: of what goes through the model next

    @property
    def _begins_once(self) -> bool:
        """Whether what all prompts begin with goes through the model once: on a CPU, where that is most of the work."""
        return (
            self.accelerator.num_processes == 1  # several have a wrapped model, which is called as a whole
            and self.accelerator.device.type == "cpu"
            and not self.args.gradient_checkpointing
        )

    def _roll_out(self, prompts: Sequence[Any]) -> Rows:
        self._hooks.latest = StepMetrics()
        every = in_main(self.accelerator, self._samples)
        first = self.accelerator.process_index * len(prompts)
        rows = every[first : first + len(prompts)]
        if len(every) != self.accelerator.num_processes * len(prompts):
            raise AssertionError(f"{len(every)} episodes for {self.accelerator.num_processes} times {len(prompts)}")
        self._token_advantages = [row.advantages for row in rows]
        self._counted = pad_sequence([torch.tensor(row.mask) for row in rows], batch_first=True)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "reward": [row.reward for row in rows],
        }

    def _samples(self) -> list[TrainingSample]:
        """Those of all processes."""
        found = self._hooks.rollouts = self._hooks.roll_out(self.state.global_step)
        filler = self._tokenizer.eos_token_id
        injected_too = self._hooks.injected_too
        return to_samples(found, self.num_generations, filler, injected_too=injected_too, alike=self._begins_once)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if any(each is not None for each in self._token_advantages):
            batch["advantages"] = _padded(self._token_advantages, batch["completion_ids"])
        self._drop_off_policy_groups(batch)
        return batch

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """As TRL's, but without dropout where nothing is learned from it, without padding that is longer than what goes
        through the model together, and 0 for what does not count, which is not asked for; on a CPU, what the prompts
        begin with alike goes through the model once.
        """
        if model.training and not torch.is_grad_enabled():
            model.eval()
            try:
                return self._get_per_token_logps_and_entropies(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more
                )
            finally:
                model.train()
        if self.aux_loss_enabled:  # a mixture's, of all that goes through the model
            made: tuple[Any, Any, Any] = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more
            )
            return made
        beginning = common_beginning(input_ids, attention_mask, logits_to_keep) if self._begins_once else 0
        size = batch_size or len(input_ids)
        if not beginning:
            with self.accelerator.autocast():
                logprobs, entropies = passed_logprobs(
                    lambda ids, labels: model(input_ids=ids, labels=labels, fused_lm_head=True),
                    input_ids,
                    attention_mask,
                    self._counted,
                    size,
                )
            return logprobs, entropies if compute_entropy else None, None
        split = (torch.split(whole, size) for whole in (input_ids, attention_mask, self._counted))
        parts = [
            completion_logprobs(model, ids, mask, counted, beginning, self.temperature)
            for ids, mask, counted in zip(*split, strict=True)
        ]
        logprobs, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
        return logprobs, entropies if compute_entropy else None, None

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """As TRL's, but passes have episodes of like lengths, the longest first: a pass costs what its longest episode
        does for each. Not where a pass is what a loss is a mean over.
        """
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        made = self._buffered_inputs
        is_by_pass = self.loss_type == "bnpo" or self.aux_loss_enabled
        if made is not None and made is not before and not is_by_pass:
            self._buffered_inputs = made = by_length(made)
            inputs = made[self._step % len(made)]
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._counted = inputs["completion_mask"] * inputs["tool_mask"]
        if self._hooks.latest.is_skipped and self.is_deepspeed_enabled:
            # It takes its step as soon as it has the last pass's gradient, and has that wait for passes to come.
            self.accelerator.gradient_state._set_sync_gradients(False)
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        # TRL's means are over the tokens of a pass, and what it tells of a step is the mean of its passes.
        counted = self.accelerator.reduce(self._counted.sum().float(), reduction="sum")
        weight = float(counted * self.args.steps_per_generation / inputs["num_items_in_batch"].clamp(min=1))
        for name in ("kl", "entropy"):
            if values := self._metrics["train"].get(name):
                values[-1] *= weight
        return loss

    def _drop_off_policy_groups(self, batch: dict[str, Any]) -> None:
        """Leave out the groups of episodes that came from other weights than these.

        Raises:
            UnavailableError: that is all of them.
        """
        mask = batch["completion_mask"] * batch["tool_mask"]  # [episodes, tokens]
        sampled = mask.bool() & ~torch.isnan(batch["sampling_per_token_logps"])
        apart = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).where(sampled, 0.0)
        counts = sampled.sum(1)
        by_episode = apart.abs().sum(1) / counts.clamp(min=1)
        by_group = by_episode.view(-1, self.num_generations).amax(1)
        alien = ~(by_group <= self._hooks.most_difference)  # [groups]; what is no number is alien too
        there = counts.view(-1, self.num_generations).sum(1) > 0
        kept = (~alien).repeat_interleave(self.num_generations)
        batch["tool_mask"] = batch["tool_mask"] * kept.unsqueeze(1)
        mask = mask * kept.unsqueeze(1)
        read = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)  # [episodes]
        ratios = apart.exp().clamp(max=1).where(sampled, 0.0).sum()
        sums = (mask.sum(), read[counts > 0].sum(), alien.sum(), (there & ~alien).sum(), counts.sum())
        own = torch.stack([*(each.double() for each in sums), ratios.double(), apart.abs().sum().double()])
        trainable, tokens, refused, left, total, ratios, apart_by = self.accelerator.gather(own[None]).sum(0)
        batch["num_items_in_batch"] = trainable.long()
        latest = self._hooks.latest
        latest.trainable, latest.tokens, latest.refused = int(trainable), int(tokens), int(refused)
        latest.ratio = float(ratios / total) if total else 1.0
        latest.difference = float(apart_by / total.clamp(min=1))
        latest.is_skipped = not trainable
        if latest.refused and not left:
            most = self.accelerator.gather(by_group.max()[None]).max()
            raise UnavailableError(
                "training.off-policy-step",
                f"all episodes of step {self.state.global_step} are off-policy: the sampler's log-probabilities differ "
                f"by up to {float(most):.3g} nats per token; check that no other run uses the server",
            )

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """As TRL's; where nothing is left to learn from, no weight moves, not by the optimizer's momentum either."""
        state = self.accelerator.gradient_state
        is_last = state.sync_gradients
        try:
            loss: torch.Tensor = super().training_step(*arguments, **named)
        finally:
            state._set_sync_gradients(is_last)
        if self._hooks.latest.is_skipped:
            for parameter in self.model.parameters():
                parameter.grad = None
        return loss


@dataclass(frozen=True, slots=True)
class _Publisher:
    """What TRL takes for its connection to vLLM."""

    sync_weights: Callable[[], None]


def _padded(rows: Sequence[Sequence[float] | None], like: torch.Tensor) -> torch.Tensor:
    """[episodes, tokens]: rows of advantages, 0 where they end."""
    made = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for place, row in enumerate(rows):
        if row:
            made[place, : len(row)] = torch.tensor(row)
    return made
