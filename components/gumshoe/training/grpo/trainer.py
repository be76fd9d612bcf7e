"""TRL's GRPO trainer, with Gumshoe's rollouts instead of its own.

Invariants: tokens are exactly those that the policy saw and sampled. Tokens of the environment do not count in the
loss, except in mode `rollout`. A group is dropped if the sampler's log-probabilities do not match the trainer's.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
import trl.import_utils as trl_imports
from torch.nn.utils.rnn import pad_sequence

from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch
from gumshoe.training.grpo.logprobs import compute_logprobs, compute_tree_logprobs, read_beginning
from gumshoe.training.grpo.passes import (
    fill_by_group,
    loss_mask,
    sort_by_group,
    sort_by_length,
    to_tree_rows,
    whole_rows,
)
from gumshoe.training.grpo.phase_clock import PhaseClock
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.grpo.sampler_check import StepMetrics, compare_episodes, difference_to_sampler
from gumshoe.training.grpo.samples import SegmentWeighting, TrainingSample, to_samples
from gumshoe.training.grpo.segments import has_segments, to_sequences
from gumshoe.training.grpo.token_trees import TokenTree, TreeBatch, TreeReader, TreeRow, divide
from gumshoe.training.launch.rendezvous import run_in_main
from gumshoe.training.models.lora_model import leave_casts_to_autocast, reads_reference

trl_imports.is_vllm_available = lambda min_version=None: False  # noqa: ARG005 - or TRL imports vLLM: 2 s and 100 MB
from trl import GRPOTrainer  # noqa: E402
from trl.models.utils import disable_gradient_checkpointing  # noqa: E402

_MEANS = ("entropy", "clip_ratio", "kl")  # over the trained tokens of a step
_POLICY_LOSS = "policy_loss"
Rows = dict[str, list[Any]]
"""A batch as TRL takes it: each list has one entry per episode."""


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
    token; this times 1 + its staleness."""
    train_on_tool_tokens: bool = False
    segments: SegmentWeighting = "share"
    """How the segments of a split episode are weighted."""
    mask_truncated: bool = False
    """Do not train on episodes whose last turn was cut off."""
    latest: StepMetrics = field(default_factory=StepMetrics)
    rollouts: RolloutBatch = field(default_factory=lambda: RolloutBatch(0))
    phases: PhaseClock = field(default_factory=PhaseClock)


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
        self.use_vllm = True  # with this, TRL publishes the weights before a step's rollouts
        self.vllm_importance_sampling_correction = False  # TRL's needs log-probabilities before the loss
        self._last_loaded_step = -1
        self.vllm_generation = _WeightSync(hooks.publish)
        self._token_advantages: list[list[float]] = []
        self._previous = torch.zeros(0, 0, dtype=torch.long)  # [episodes, completion tokens], as the loss mask
        self._loss_mask = torch.zeros(0, 0)  # [episodes, completion tokens]: of the next forward pass
        self._groups = torch.zeros(0, dtype=torch.long)  # [episodes], as the loss mask
        self._losses = 0.0  # of the passes of the step so far
        self._limits: list[float] = []  # for the differences of the step's episodes, of all processes
        if self.accelerator.device.type == "cuda":
            hooks.phases.synchronize = torch.cuda.synchronize
        embeddings = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        embeddings.register_forward_pre_hook(lambda _, given: hooks.phases.count(given[0].numel()))

    @cached_property
    def _tree_reader(self) -> TreeReader | None:
        """How the model reads the token trees of groups; None if it takes whole sequences.

        It is found at the first use: sharded weights are there only if all processes call the wrapped model. From then
        on, all calls of a model of 16 bits use autocast, unless they share a beginning.
        """
        with self.accelerator.autocast():
            reader = TreeReader.find(self.model, self.model_wrapped)
        if self.args.bf16 and not self._is_sharded and not (reader and self._shares_beginning):
            leave_casts_to_autocast(self.model)
        return reader

    @property
    def _shares_beginning(self) -> bool:
        """True if the common beginning of all groups goes through the model once: on a CPU, where it costs the most."""
        return (
            self.accelerator.num_processes == 1  # several processes wrap the model, and must call it as a whole
            and self.accelerator.device.type == "cpu"
            and not self.args.gradient_checkpointing
        )

    def _roll_out(self, prompts: Sequence[Any]) -> Rows:
        self._hooks.latest = StepMetrics()
        every = run_in_main(self.accelerator, self._collect_samples)
        self._check_segments(every)
        first = self.accelerator.process_index * len(prompts)
        rows = every[first : first + len(prompts)]
        if len(every) != self.accelerator.num_processes * len(prompts):
            raise AssertionError(f"{len(every)} episodes for {self.accelerator.num_processes} times {len(prompts)}")
        self._token_advantages = [row.advantages for row in rows]
        self._limits = [self._hooks.most_difference * (1 + row.staleness) for row in every]
        self._loss_mask = pad_sequence([torch.tensor(row.mask) for row in rows], batch_first=True)
        self._previous = pad_sequence([torch.tensor(row.previous) for row in rows], batch_first=True)
        self._groups = torch.arange(first, first + len(rows)) // self.num_generations
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
        )

    def _check_segments(self, samples: Sequence[TrainingSample]) -> None:
        """Check that all processes call a sharded model equally often. Call it in all of them with all samples.

        Raises:
            GumshoeError: there are segments, and the model reads these as sequences, so that it would be called more
                often for some episodes than for others.
        """
        if self._is_sharded and any(each.is_split for each in samples) and self._tree_reader is None:
            raise GumshoeError(
                "training.segments-not-supported",
                f"episodes of step {self.state.global_step + 1} are split into segments, because the agent rewrote its "
                f"history, and {type(self.accelerator.unwrap_model(self.model)).__name__} does not support that with "
                "sharded weights; set optimizer.distribution to ddp, or let the agent keep its history",
            )

    @cached_property
    def _checks_in_loss(self) -> bool:
        """True if episodes are checked with the log-probabilities of their loss, and so need no pass before it.

        These must be what the episodes were sampled with: without dropout, and used for one optimizer step. If the
        check fails, the gradients so far are discarded, which DeepSpeed does not allow.
        """
        arguments = self.args
        passes = arguments.steps_per_generation
        is_used_once = self.num_iterations == 1 and passes == arguments.gradient_accumulation_steps
        return is_used_once and not self.is_deepspeed_enabled and not _has_dropout(self.model)

    @property
    def _is_sharded(self) -> bool:
        """True if each process has a part of the weights only, so that all must call the model equally often."""
        return bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        device = batch["completion_ids"].device
        batch["advantages"] = _pad(self._token_advantages, batch["completion_ids"])
        batch["previous"], batch["group"] = self._previous.to(device), self._groups.to(device)
        batch["episode"] = torch.arange(len(self._groups), device=device)
        self._losses = 0.0
        if self._checks_in_loss:
            self._hooks.latest.is_skipped = not batch["num_items_in_batch"]
        else:
            if "old_per_token_logps" not in batch:  # TRL computes them if a batch is used several times
                batch["old_per_token_logps"] = self._compute_old_logprobs(batch)
            self._drop_off_policy_groups([batch])
        return batch

    @torch.no_grad()
    def _compute_old_logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of a batch under the current weights, [episodes, completion tokens]."""
        self._set_rows(batch)
        keep, size = batch["completion_ids"].size(1), self.args.per_device_train_batch_size
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            found, *_ = self._get_per_token_logps_and_entropies(self.model, *whole_rows(batch), keep, size)
        return found

    def _set_rows(self, batch: dict[str, Any]) -> None:
        """Set what the next forward pass has to know of its rows."""
        self._loss_mask, self._previous, self._groups = loss_mask(batch), batch["previous"], batch["group"]

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
        """Compute log-probabilities and entropies as TRL does, with three differences.

        Dropout is off if no gradient is needed. Tokens that are not trained on are skipped and get 0. Each different
        token of a group goes through the model once, or the segments of an episode as sequences of their own.
        """
        if model.training and not torch.is_grad_enabled():
            model.eval()
            try:
                with self._hooks.phases.phase("reference" if reads_reference(model) else "old"):
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
        if (reader := self._tree_reader) is not None:
            rows = to_tree_rows(input_ids, attention_mask, self._loss_mask, previous)
            logprobs, entropies = self._compute_tree_logprobs(model, reader, rows, previous, size)
        elif not has_segments(previous, attention_mask):
            logprobs, entropies = self._compute_logprobs(model, input_ids, attention_mask, self._loss_mask, size)
        else:
            found = to_sequences(input_ids, attention_mask, self._loss_mask, previous)
            values = self._compute_logprobs(model, found.input_ids, found.attention_mask, found.counted, size)
            logprobs, entropies = (found.to_rows(each, previous) for each in values)
        return logprobs, entropies if compute_entropy else None, None

    def _compute_tree_logprobs(
        self, model: Any, reader: TreeReader, rows: Sequence[TreeRow], like: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of rows, both in the shape of `like` [rows, keep].

        A forward pass has at most as many tokens as `size` of the longest rows.
        """
        groups = self._groups.tolist()
        if self._shares_beginning:
            beginning, score = read_beginning(model, reader, rows, self.temperature)
            return compute_tree_logprobs(score, rows, groups, like, reader.width, beginning)

        def score_with_fused_head(trees: Sequence[TokenTree]) -> tuple[torch.Tensor, torch.Tensor]:
            batch = TreeBatch.of(trees, like.device)
            with self.accelerator.autocast():
                found = model(**reader.arguments(batch, 0), shift_labels=batch.labels, fused_lm_head=True)
            return found.log_probs.float(), found.entropy.float()

        if self._is_sharded:
            parts = [each.tolist() for each in torch.split(torch.arange(len(rows)), size)]
        else:
            parts = divide(rows, groups, 0, reader.width, size * max(len(row.ids) for row in rows))
        found = [
            compute_tree_logprobs(
                score_with_fused_head,
                [rows[each] for each in part],
                [groups[each] for each in part],
                like[part],
                reader.width,
                at_once=self._is_sharded,
            )
            for part in parts
        ]
        back = torch.tensor([each for part in parts for each in part], device=like.device).argsort()
        logprobs, entropies = (torch.cat(each)[back] for each in zip(*found, strict=True))
        return logprobs, entropies

    def _compute_logprobs(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, counted: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of sequences in TRL's layout, both [sequences, keep]."""
        with self.accelerator.autocast():
            return compute_logprobs(
                lambda ids, labels: model(input_ids=ids, labels=labels, fused_lm_head=True),
                input_ids,
                attention_mask,
                counted,
                size,
            )

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Prepare passes as TRL does, but with episodes that go well together in each, larger ones first.

        These are the episodes of a group if the model reads token trees, else episodes of similar length. A process
        with the whole model then puts as many into a pass as `per_device_train_batch_size` of the longest episodes have
        tokens, so that passes may be empty. Passes stay mixed if the loss is a mean over each pass.
        """
        before = self._buffered_inputs
        with self._hooks.phases.phase("preparing"):
            inputs = super()._prepare_inputs(generation_batch)
            passes = self._buffered_inputs
            is_by_pass = self._hooks.algorithm.by_pass or self.aux_loss_enabled
            if passes is not None and passes is not before and not is_by_pass:
                self._buffered_inputs = passes = self._arrange(passes)
                inputs = passes[self._step % len(passes)]
        return inputs

    def _arrange(self, passes: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        if (reader := self._tree_reader) is None:
            return sort_by_length(passes)
        if self._is_sharded:
            return sort_by_group(passes)
        # After its first exchange of gradients, DDP broadcasts in the next forward pass, the first of all processes.
        size, is_alone = self.args.per_device_train_batch_size, self.accelerator.num_processes == 1
        return fill_by_group(passes, size, reader.width, shares_beginning=self._shares_beginning, starts_empty=is_alone)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        with self._hooks.phases.phase("forward"):
            return self._compute_share_of_loss(model, inputs)

    def _compute_share_of_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return a pass's share of the algorithm's loss, with importance weights and the KL term of `beta`."""
        if self._hooks.latest.is_skipped and self.is_deepspeed_enabled:
            # DeepSpeed steps as soon as it has the gradient of the last pass, so make this pass not the last one.
            self.accelerator.gradient_state._set_sync_gradients(False)
        algorithm = self._hooks.algorithm
        self._set_rows(inputs)
        if not len(self._groups):
            names = _MEANS if self.beta else _MEANS[:-1]
            self._log(self._loss_mask.sum(), dict.fromkeys(names, self._loss_mask), inputs["num_items_in_batch"])
            nothing: torch.Tensor = next(each for each in model.parameters() if each.requires_grad).sum() * 0
            return nothing
        ids, attended = whole_rows(inputs)
        logprobs, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model,
            ids,
            attended,
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
        )
        if "old_per_token_logps" not in inputs:
            inputs["old_per_token_logps"] = logprobs.detach()
            if self._is_last_pass and self._drop_off_policy_groups(self._buffered_inputs or [inputs]):
                nothing = logprobs.sum() * 0
                del logprobs, entropies, aux_loss
                return self._start_again(model, inputs, nothing)
        passes = self.current_gradient_accumulation_steps
        share = passes / self.args.steps_per_generation / self.accelerator.num_processes
        batch = TokenBatch(
            logprobs=logprobs,
            old_logprobs=inputs["old_per_token_logps"],
            advantages=inputs["advantages"],
            mask=self._loss_mask,
            step_tokens=inputs["num_items_in_batch"].clamp(min=1.0) * share,
            passes=passes * self.args.per_device_train_batch_size / len(ids),
            max_length=self.max_completion_length,
        )
        # Corrects for what differs between sampler and trainer, truncated (https://fengyao.notion.site/off-policy-rl).
        weights = difference_to_sampler(inputs, batch.old_logprobs).exp()
        weights = weights.clamp(self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max)
        losses = algorithm.token_loss(batch) * weights
        values = {"entropy": cast(torch.Tensor, entropies), "clip_ratio": algorithm.clipped(batch).float()}
        policy_loss = loss = algorithm.reduce(losses, batch)
        if self.beta:
            difference = inputs["ref_per_token_logps"] - logprobs
            # The unbiased estimate of the KL divergence (https://arxiv.org/abs/2512.02556).
            kl = (difference.exp() - difference - 1) * algorithm.ratio(batch)
            loss = algorithm.reduce(losses + self.beta * kl, batch)
            values["kl"] = kl
        if self.aux_loss_enabled:
            router_loss = self.router_aux_loss_coef * aux_loss / passes
            loss, policy_loss = loss + router_loss, policy_loss + router_loss
        self._log(policy_loss, values, inputs["num_items_in_batch"])
        self._losses += float(loss.detach())
        return loss

    def _log(self, policy_loss: torch.Tensor, values: Mapping[str, torch.Tensor], step_tokens: torch.Tensor) -> None:
        """Log a pass's share of the loss without the KL term, and of means over the trained tokens of the step.

        `values` are [episodes, tokens], or [episodes, 1] if all tokens of an episode share one. The loss of a step is
        the sum over its passes, averaged over processes.
        """
        shares = {
            _POLICY_LOSS: policy_loss.detach().float() / self.accelerator.num_processes,
            **{
                name: (each.detach() * self._loss_mask).sum().float() / step_tokens.clamp(min=1)
                for name, each in values.items()
            },
        }
        sums = self.accelerator.reduce(torch.stack([*shares.values()]), reduction="sum").tolist()
        for name, value in zip(shares, sums, strict=True):
            # TRL averages what the passes log.
            self._metrics["train"][name].append(value * self.args.steps_per_generation)

    @property
    def _is_last_pass(self) -> bool:
        return bool((self._step + 1) % len(self._buffered_inputs or [()]) == 0)

    def _start_again(self, model: Any, last: dict[str, Any], nothing: torch.Tensor) -> torch.Tensor:
        """Repeat the passes of a step, of which groups have been dropped since, and return the loss of the last one.

        `nothing` is a loss of 0 from the forward pass of the last one. Its backward pass frees the activations, and
        ends the exchange of gradients that several processes expect after a forward pass.

        The returned loss contains the change of the loss of the earlier passes.
        """
        with self._hooks.phases.phase("backward"):
            self.accelerator.backward(nothing)
        model.zero_grad()
        passes = self._buffered_inputs or [last]
        for name in (_POLICY_LOSS, *_MEANS):
            values = self._metrics["train"].get(name, [])
            del values[len(values) - len(passes) + 1 :]
        before, self._losses = self._losses, 0.0
        with self.accelerator.no_sync(model):
            for each in passes[:-1]:
                loss = self._compute_loss(model, each)
                with self._hooks.phases.phase("backward"):
                    self.accelerator.backward(loss)
        correction = self._losses - before
        return self._compute_share_of_loss(model, last) + correction

    def _drop_off_policy_groups(self, passes: Sequence[dict[str, Any]]) -> bool:
        """Mask the groups of a step whose episodes were sampled from other weights than the trainer's.

        Returns:
            True if there are any, in all processes.

        Raises:
            UnavailableError: all groups are off-policy.
        """
        given = [each for each in passes if len(each["episode"])]
        found = torch.cat([compare_episodes(each, each["old_per_token_logps"]) for each in given])
        order = torch.cat([each["episode"] for each in given]).argsort()
        compared = self.accelerator.gather(found[order]).tolist()
        off_policy = self._hooks.latest.record(compared, self.num_generations, self._limits)
        left = any(each.tokens and not each.rejected for each in self._hooks.latest.comparisons)
        if off_policy and not left:
            raise UnavailableError(
                "training.off-policy-step",
                f"all episodes of step {self.state.global_step} are off-policy: the sampler's log-probabilities differ "
                f"by up to {max(each[1] for each in compared):.3g} nats per token; check that no other run uses the "
                "server",
            )
        for each in passes:
            kept = ~torch.isin(each["group"], torch.tensor(off_policy, dtype=torch.long, device=each["group"].device))
            each["tool_mask"] = each["tool_mask"] * kept.unsqueeze(1)
            each["num_items_in_batch"] = torch.tensor(self._hooks.latest.trainable, device=kept.device)
        return bool(off_policy)

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Train on a pass as TRL does. If no group is left, no weight changes, not even by the optimizer's momentum."""
        state = self.accelerator.gradient_state
        is_last = state.sync_gradients
        try:
            with self._hooks.phases.phase("backward"):  # what remains of it without preparing and the forward pass
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


def _has_dropout(model: torch.nn.Module) -> bool:
    """Return True if a model drops out anything while it is trained."""
    config = model.config.to_dict()  # type: ignore[operator, union-attr]
    functional = (value for name, value in config.items() if "dropout" in name or name.endswith("pdrop"))
    modules = (each.p for each in model.modules() if isinstance(each, torch.nn.Dropout))
    return any(isinstance(each, float) and each > 0 for each in (*functional, *modules))


def _pad(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Return rows of advantages as a tensor [episodes, tokens], padded with 0."""
    padded = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = torch.tensor(row)
    return padded
