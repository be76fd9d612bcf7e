"""TRL's GRPO trainer, with Gumshoe's rollouts instead of its own.

Invariants: tokens are exactly those that the policy saw and sampled. Tokens of the environment do not count in the
loss, except in mode `rollout`. A group is dropped if the sampler's log-probabilities do not match the trainer's.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import trl.import_utils as trl_imports
from torch.nn.utils.rnn import pad_sequence

from gumshoe.errors import UnavailableError
from gumshoe.inference.cache_rows import has_only_attention
from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch
from gumshoe.training.episode_records import SampledComparison
from gumshoe.training.grpo.logprobs import (
    common_prefix_length,
    compute_logprobs,
    compute_logprobs_after_prefix,
    sort_by_length,
)
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.grpo.samples import SegmentWeighting, TrainingSample, to_samples
from gumshoe.training.grpo.segments import has_segments, to_sequences
from gumshoe.training.launch.rendezvous import run_in_main

trl_imports.is_vllm_available = lambda min_version=None: False  # noqa: ARG005 - or TRL imports vLLM: 2 s and 100 MB
from trl import GRPOTrainer  # noqa: E402

Rows = dict[str, list[Any]]
"""A batch as TRL takes it: each list has one entry per episode."""


@dataclass(slots=True)
class StepMetrics:
    """Statistics of a step's tokens, collected by the trainer."""

    uses: int = 0
    """Optimizer steps that used these episodes so far."""
    trainable: int = 0
    """Number of tokens that are trained on."""
    tokens: int = 0
    """Number of tokens that went through the model."""
    off_policy: int = 0
    """Number of groups with an episode that another policy sampled."""
    ratio: float = 1.0
    """Mean importance ratio of trainer to sampler over sampled tokens, each at most 1: 1 minus the total variation
    distance between the two."""
    difference: float = 0.0
    """Mean absolute difference of their log-probabilities, in nats per token."""
    is_skipped: bool = False
    """No group was left, so the weights did not change."""
    comparisons: list[SampledComparison] = field(default_factory=list)
    """Comparison of sampler and trainer for each sample of the step, in their order."""


def _given_reward(reward: list[float | None], **_: Any) -> list[float | None]:
    """Return the rewards that the episodes already have."""
    return reward


@dataclass(slots=True)
class Hooks:
    """Callbacks from the trainer to its run, and the state that they share."""

    roll_out: Callable[[int], RolloutBatch]
    """Run the episodes of a step, numbered from 0. Called in the main process."""
    algorithm: Algorithm
    publish: Callable[[], None]
    """Publish the current weights as the policy of the next episodes. Called in every process."""
    most_difference: float
    """Maximum mean absolute difference of log-probabilities between sampler and trainer in an episode, in nats per
    token."""
    train_on_tool_tokens: bool = False
    segments: SegmentWeighting = "share"
    """How the segments of a split episode are weighted."""
    mask_truncated: bool = False
    """Do not train on episodes whose last turn was cut off."""
    latest: StepMetrics = field(default_factory=StepMetrics)
    rollouts: RolloutBatch = field(default_factory=lambda: RolloutBatch(0))


class AgentTrainer(GRPOTrainer):  # type: ignore[misc] # TRL has no types
    """Train on the episodes of an agent with a group-relative algorithm."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None
    """The passes of an optimizer step, an attribute of TRL's trainer."""

    def __init__(self, hooks: Hooks, **arguments: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func', which is an experimental feature")
            super().__init__(
                reward_funcs=[_given_reward],
                rollout_func=lambda prompts, trainer: trainer._roll_out(prompts),
                **arguments,
            )
        self._hooks = hooks
        # With this, TRL publishes the weights before a step's rollouts, and corrects for differences between sampler
        # and trainer by importance sampling.
        self.use_vllm = True
        self._last_loaded_step = -1
        self.vllm_generation = _WeightSync(hooks.publish)
        self._token_advantages: list[list[float]] = []
        self._previous = torch.zeros(0, 0, dtype=torch.long)  # [episodes, completion tokens], as the loss mask
        self._loss_mask = torch.zeros(0, 0)  # [episodes, completion tokens]: of the next forward pass

    @property
    def _shares_prefix(self) -> bool:
        """True if the common prefix of all prompts goes through the model once: on a CPU, where it costs the most."""
        return (
            self.accelerator.num_processes == 1  # several processes wrap the model, and must call it as a whole
            and self.accelerator.device.type == "cpu"
            and not self.args.gradient_checkpointing
            and has_only_attention(self.model)
        )

    def _roll_out(self, prompts: Sequence[Any]) -> Rows:
        self._hooks.latest = StepMetrics()
        every = run_in_main(self.accelerator, self._collect_samples)
        first = self.accelerator.process_index * len(prompts)
        rows = every[first : first + len(prompts)]
        if len(every) != self.accelerator.num_processes * len(prompts):
            raise AssertionError(f"{len(every)} episodes for {self.accelerator.num_processes} times {len(prompts)}")
        self._token_advantages = [row.advantages for row in rows]
        self._loss_mask = pad_sequence([torch.tensor(row.mask) for row in rows], batch_first=True)
        self._previous = pad_sequence([torch.tensor(row.previous) for row in rows], batch_first=True)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "reward": [row.reward for row in rows],
        }

    def _collect_samples(self) -> list[TrainingSample]:
        """Return the samples of all processes."""
        found = self._hooks.rollouts = self._hooks.roll_out(self.state.global_step)
        filler = self._tokenizer.eos_token_id
        return to_samples(
            found,
            self._hooks.algorithm,
            self.num_generations,
            filler,
            train_on_tool_tokens=self._hooks.train_on_tool_tokens,
            weighting=self._hooks.segments,
            mask_truncated=self._hooks.mask_truncated,
            alike=self._shares_prefix,
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch["advantages"] = _pad(self._token_advantages, batch["completion_ids"])
        batch["previous"] = self._previous.to(batch["completion_ids"].device)
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
        """Compute log-probabilities and entropies as TRL does, with five differences.

        Dropout is off if no gradient is needed. Padding is only as long as the batch requires. Tokens that are not
        trained on are skipped and get 0. On a CPU, the common prefix of the prompts goes through the model once. The
        segments of an episode go through the model as sequences of their own.
        """
        if model.training and not torch.is_grad_enabled():
            model.eval()
            try:
                return self._get_per_token_logps_and_entropies(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more
                )
            finally:
                model.train()
        if self.aux_loss_enabled:  # of a mixture of experts; it depends on all tokens
            whole: tuple[Any, Any, Any] = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **more
            )
            return whole
        size = batch_size or len(input_ids)
        previous = self._previous.to(input_ids.device)
        if not has_segments(previous, attention_mask):
            logprobs, entropies = self._compute_logprobs(model, input_ids, attention_mask, self._loss_mask, size)
        else:
            found = to_sequences(input_ids, attention_mask, self._loss_mask, previous)
            values = self._compute_logprobs(model, found.input_ids, found.attention_mask, found.counted, size)
            logprobs, entropies = (found.to_rows(each, previous) for each in values)
        return logprobs, entropies if compute_entropy else None, None

    def _compute_logprobs(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, counted: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of sequences in TRL's layout, both [sequences, keep]."""
        prefix = common_prefix_length(input_ids, attention_mask, counted.shape[1]) if self._shares_prefix else 0
        if not prefix:
            with self.accelerator.autocast():
                return compute_logprobs(
                    lambda ids, labels: model(input_ids=ids, labels=labels, fused_lm_head=True),
                    input_ids,
                    attention_mask,
                    counted,
                    size,
                )
        split = (torch.split(whole, size) for whole in (input_ids, attention_mask, counted))
        parts = [
            compute_logprobs_after_prefix(model, ids, mask, asked, prefix, self.temperature)
            for ids, mask, asked in zip(*split, strict=True)
        ]
        logprobs, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
        return logprobs, entropies

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Prepare passes as TRL does, but with episodes of similar length in each, the longest first.

        The cost of a pass grows with its longest episode. Passes stay mixed if the loss is a mean over each pass.
        """
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        passes = self._buffered_inputs
        is_by_pass = self._hooks.algorithm.by_pass or self.aux_loss_enabled
        if passes is not None and passes is not before and not is_by_pass:
            self._buffered_inputs = passes = sort_by_length(passes)
            inputs = passes[self._step % len(passes)]
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return a pass's share of the algorithm's loss, with importance weights and the KL term of `beta`."""
        if self._hooks.latest.is_skipped and self.is_deepspeed_enabled:
            # DeepSpeed steps as soon as it has the gradient of the last pass, so make this pass not the last one.
            self.accelerator.gradient_state._set_sync_gradients(False)
        algorithm = self._hooks.algorithm
        self._loss_mask = inputs["completion_mask"] * inputs["tool_mask"]
        self._previous = inputs["previous"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logprobs, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model,
            ids,
            attended,
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
        )
        passes = int(self.current_gradient_accumulation_steps)
        share = passes / self.args.steps_per_generation / self.accelerator.num_processes
        batch = TokenBatch(
            logprobs=logprobs,
            old_logprobs=inputs["old_per_token_logps"],
            advantages=inputs["advantages"],
            mask=self._loss_mask,
            step_tokens=inputs["num_items_in_batch"].clamp(min=1.0) * share,
            passes=passes,
            max_length=self.max_completion_length,
        )
        losses = algorithm.token_loss(batch) * inputs["importance_sampling_ratio"]
        values = {"entropy": cast(torch.Tensor, entropies), "clip_ratio": algorithm.clipped(batch).float()}
        if self.beta:
            difference = inputs["ref_per_token_logps"] - logprobs
            # The unbiased estimate of the KL divergence (https://arxiv.org/abs/2512.02556).
            kl = (difference.exp() - difference - 1) * algorithm.ratio(batch)
            losses = losses + self.beta * kl
            values["kl"] = kl
        self._log_means(values, inputs["num_items_in_batch"])
        loss = algorithm.reduce(losses, batch)
        return loss + self.router_aux_loss_coef * aux_loss / passes if self.aux_loss_enabled else loss

    def _log_means(self, values: Mapping[str, torch.Tensor], step_tokens: torch.Tensor) -> None:
        """Log means over the trained tokens of a step. TRL averages what passes log, so each logs its share.

        `values` are [episodes, tokens], or [episodes, 1] if all tokens of an episode share one.
        """
        weight = float(self.args.steps_per_generation / step_tokens.clamp(min=1))
        sums = torch.stack([(each.detach() * self._loss_mask).sum() for each in values.values()])
        for name, value in zip(values, self.accelerator.reduce(sums, reduction="sum").tolist(), strict=True):
            self._metrics["train"][name].append(value * weight)

    def _drop_off_policy_groups(self, batch: dict[str, Any]) -> None:
        """Mask the groups whose episodes were sampled from other weights than the trainer's.

        Raises:
            UnavailableError: all groups are off-policy.
        """
        mask = batch["completion_mask"] * batch["tool_mask"]  # [episodes, tokens]
        sampled = mask.bool() & ~torch.isnan(batch["sampling_per_token_logps"])
        difference = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).where(sampled, 0.0)
        counts = sampled.sum(1)
        by_episode = difference.abs().sum(1) / counts.clamp(min=1)
        by_group = by_episode.view(-1, self.num_generations).amax(1)
        off_policy = ~(by_group <= self._hooks.most_difference)  # [groups]; NaN is off-policy too
        there = counts.view(-1, self.num_generations).sum(1) > 0
        kept = (~off_policy).repeat_interleave(self.num_generations)
        batch["tool_mask"] = batch["tool_mask"] * kept.unsqueeze(1)
        mask = mask * kept.unsqueeze(1)
        read = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)  # [episodes]
        compared = compare_episodes(difference, sampled, mask.sum(1), ~kept)
        ratios = difference.exp().clamp(max=1).where(sampled, 0.0).sum()
        sums = (mask.sum(), read[counts > 0].sum(), off_policy.sum(), (there & ~off_policy).sum(), counts.sum())
        own = torch.stack([*(each.double() for each in sums), ratios.double(), difference.abs().sum().double()])
        trainable, tokens, dropped, left, total, ratios, differences = self.accelerator.gather(own[None]).sum(0)
        batch["num_items_in_batch"] = trainable.long()
        latest = self._hooks.latest
        latest.comparisons = list(map(_to_comparison, self.accelerator.gather(compared).tolist()))
        latest.trainable, latest.tokens, latest.off_policy = int(trainable), int(tokens), int(dropped)
        latest.ratio = float(ratios / total) if total else 1.0
        latest.difference = float(differences / total.clamp(min=1))
        latest.is_skipped = not trainable
        if latest.off_policy and not left:
            most = self.accelerator.gather(by_group.max()[None]).max()
            raise UnavailableError(
                "training.off-policy-step",
                f"all episodes of step {self.state.global_step} are off-policy: the sampler's log-probabilities differ "
                f"by up to {float(most):.3g} nats per token; check that no other run uses the server",
            )

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Train on a pass as TRL does. If no group is left, no weight changes, not even by the optimizer's momentum."""
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
class _WeightSync:
    """Stand in for TRL's connection to vLLM."""

    sync_weights: Callable[[], None]


def compare_episodes(
    difference: torch.Tensor, sampled: torch.Tensor, trained: torch.Tensor, rejected: torch.Tensor
) -> torch.Tensor:
    """Return the fields of `SampledComparison` of each episode, in their order [episodes, fields].

    `difference` and `sampled` are [episodes, tokens]: the trainer's log-probabilities minus the sampler's, and the
    tokens that have both. `trained` is the number of tokens that are trained on, and `rejected` is True for episodes of
    off-policy groups, [episodes].
    """
    counts, ratios = sampled.sum(1), difference.exp()
    fields = (
        counts,
        difference.abs().sum(1) / counts.clamp(min=1),
        ratios.clamp(max=1).where(sampled, 0.0).sum(1) / counts.clamp(min=1),
        ratios.where(sampled, math.inf).amin(1).where(counts > 0, 0.0),
        ratios.where(sampled, 0.0).amax(1),
        trained,
        rejected,
    )
    return torch.stack([each.double() for each in fields], dim=1)


def _to_comparison(fields: Sequence[float]) -> SampledComparison:
    tokens, difference, mean_ratio, min_ratio, max_ratio, trained, rejected = fields
    return SampledComparison(
        tokens=int(tokens),
        difference=difference,
        mean_ratio=mean_ratio,
        min_ratio=min_ratio,
        max_ratio=max_ratio,
        trained=int(trained),
        rejected=bool(rejected),
    )


def _pad(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Return rows of advantages as a tensor [episodes, tokens], padded with 0."""
    padded = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = torch.tensor(row)
    return padded
