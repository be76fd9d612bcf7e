"""A policy in this process, for machines without vLLM. Sampling is reproducible: seeds determine the tokens.

Invariant: each batch holds one turn of every open conversation. The same conversations with the same seeds therefore
form the same batches, and floating-point results, which depend on the batch, are the same.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.cpu_memory import keep_freed_memory
from gumshoe.inference.policy import Completion, PolicyError, Sampling, check_not_empty, refuse_schema

if TYPE_CHECKING:
    from gumshoe.inference.turn_batch import PastKeyValues, PendingTurn

_SETTLE_ROUNDS = 50  # rounds of the event loop in which new conversations replace ended ones


class TransformersPolicy:
    """Sample from a model of `transformers`, with or without a `peft` adapter.

    Each conversation samples through its own `open_conversation()`. A batch runs when every open conversation waits for
    its turn. `version` is recorded in each turn; the default is the names of model and adapter.

    Raises:
        UsageError: if the model or the adapter does not exist, or cannot be loaded, or is of an architecture that is
            not supported.
    """

    def __init__(
        self, model: Path | str, adapter: Path | None = None, *, version: str | None = None, device: str | None = None
    ) -> None:
        place = find_model(model, "config.json")
        if adapter is not None:
            find_model(adapter, "adapter_config.json")  # fail before the imports, which take seconds

        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        from gumshoe.inference.generation import use_flash_attention

        disable_progress_bar()  # type: ignore[no-untyped-call]
        use_flash_attention()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            keep_freed_memory()
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(place.name, dtype=dtype, **place.options)
            if adapter is not None:
                from peft import PeftModel

                loaded = PeftModel.from_pretrained(loaded, str(adapter))
        except Exception as error:  # noqa: BLE001 - damaged files raise many
            reason = " ".join(str(error).split())
            raise UsageError(
                "inference.model-not-loadable",
                f"cannot load {model}{f' with {adapter}' if adapter else ''}: {reason}; check the files, or update "
                "transformers",
            ) from None
        self._set_up(loaded.to(device).eval(), version or (f"{model}#{adapter}" if adapter else str(model)))

    @classmethod
    def from_model(cls, model: Any, version: str) -> "TransformersPolicy":
        """Create a policy from a model in memory. Its weights must not change while conversations are open.

        Raises:
            UsageError: the model's architecture is not supported.
        """
        policy = cls.__new__(cls)
        policy._set_up(model, version)
        return policy

    def _set_up(self, model: Any, version: str) -> None:
        from gumshoe.inference.cache_rows import is_supported

        if not is_supported(model):
            raise UsageError(
                "inference.unsupported-attention",
                f"{version} has layers whose cache in-process inference cannot divide by conversation: model_type is "
                f"{model.config.model_type}; use vllm:URL",
            )
        self._model, self._version = model, version
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        """Number of token ids that the model has."""
        self._conversations: list[TransformersConversation] = []
        self._shared_prefix: PastKeyValues | None = None
        """Common prefix of the conversations. Dropped with the last one, because weights may change then."""
        self._running = False
        self._stop = threading.Event()
        self._scoring = asyncio.Lock()

    def open_conversation(self) -> "TransformersConversation":
        """Open a conversation. Call `leave` when it ends."""
        conversation = TransformersConversation(self)
        self._conversations.append(conversation)
        return conversation

    async def score(self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each continuation after a prompt (see `ContinuationScorer.score`)."""
        from gumshoe.inference.continuations import score_continuations

        check_not_empty(prompt_ids, continuations)
        async with self._scoring:
            try:
                return await asyncio.to_thread(score_continuations, self._model, prompt_ids, continuations)
            except RuntimeError as error:  # raised by torch, e.g. if memory is full
                raise PolicyError(
                    "inference.generation-failed", f"{self._version} failed to score tokens", str(error)
                ) from None

    def _leave(self, conversation: "TransformersConversation") -> None:
        if conversation in self._conversations:
            self._conversations.remove(conversation)
            if not self._conversations:
                self._shared_prefix = None
                self._stop.set()
            self._start_batch_if_ready()

    def _start_batch_if_ready(self) -> None:
        """Start a batch if every conversation waits for its turn."""
        if (
            not self._running
            and self._conversations
            and all(conversation.pending for conversation in self._conversations)
        ):
            self._running = True
            self._task = asyncio.create_task(self._run_batch())

    async def _run_batch(self) -> None:
        try:
            for _ in range(_SETTLE_ROUNDS):
                await asyncio.sleep(0)
            waiting = [
                (conversation, *conversation.pending) for conversation in self._conversations if conversation.pending
            ]
            if not waiting or len(waiting) < len(self._conversations):  # a new conversation has no request yet
                return
            for conversation, *_ in waiting:
                conversation.pending = None
            await self._sample_batch(waiting)
        finally:
            self._running = False
        self._start_batch_if_ready()

    async def _sample_batch(
        self, waiting: "list[tuple[TransformersConversation, PendingTurn, asyncio.Future[Completion]]]"
    ) -> None:
        """Sample a batch of turns, and set the result or the error of each waiting conversation."""
        self._stop = stop = threading.Event()
        try:
            await asyncio.to_thread(self._sample, [turn for _, turn, _ in waiting], stop)
        except Exception as error:  # noqa: BLE001 - passed on to the waiting conversations
            # Raised by torch, e.g. if memory is full or a device is lost.
            failure = error
            if isinstance(error, RuntimeError):
                failure = PolicyError("inference.generation-failed", f"{self._version} failed to generate", str(error))
            for _, _, answer in waiting:
                if not answer.done():
                    answer.set_exception(failure)
        else:
            for conversation, turn, answer in waiting:
                conversation.past = turn.past
                if not answer.done():
                    finish = turn.finish or "length"
                    answer.set_result(Completion(tuple(turn.ids), tuple(turn.logprobs), finish, self._version))
        finally:
            stop.set()  # if this was cancelled, the thread still runs

    def _sample(self, turns: "list[PendingTurn]", stop: threading.Event) -> None:
        from gumshoe.inference.generation import compute_shared_prefix, sample_turns

        new, known = [turn for turn in turns if turn.past is None], self._shared_prefix
        if new and not (known and all(turn.prompt[: len(known.ids)] == known.ids for turn in new)):
            known = compute_shared_prefix(self._model, [turn.prompt for turn in new])
            self._shared_prefix = known
        for turn in new:
            turn.past = known
        sample_turns(self._model, turns, stop.is_set)


class TransformersConversation:
    """Policy for one conversation of a `TransformersPolicy`."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self.pending: tuple[PendingTurn, asyncio.Future[Completion]] | None = None
        """The turn that the conversation waits for, and its result."""
        self.past: PastKeyValues | None = None

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample a turn (see `Policy.sample`). Wait until every other open conversation requests one too."""
        from gumshoe.inference.turn_batch import PendingTurn

        refuse_schema(sampling)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.pending = pending = PendingTurn(list(prompt_ids), sampling, tuple(stop_ids), seed, self.past), answer
        self._policy._start_batch_if_ready()
        try:
            return await answer
        finally:
            if self.pending is pending:
                self.pending = None

    def __enter__(self) -> "TransformersConversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End the conversation, so that the others no longer wait for it."""
        self._policy._leave(self)
