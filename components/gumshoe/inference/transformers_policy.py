"""A policy in this process, for machines without vLLM: batched in lock step, so that seeds decide the tokens.

What always holds: a batch is made of the turns of all conversations that are going on, none of which is left out or
comes late. So the same conversations with the same seeds meet in the same batches, and floating point, which differs
between batches, comes out the same.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError
from gumshoe.inference.cpu_memory import keep_freed_memory
from gumshoe.inference.policy import Completion, PolicyError, Sampling

if TYPE_CHECKING:
    from gumshoe.inference.generation import Past, PendingTurn

_SETTLING = 50  # rounds of the event loop in which conversations that take the place of ended ones begin


class TransformersPolicy:
    """A model of `transformers`, with an adapter of `peft` or without.

    `member()` gives one conversation's share in it. A batch runs when every member has asked or left. `version` is
    what its turns name as theirs: the model as given, and the adapter, unless it is told.

    Raises:
        UsageError: there is no such model, or no adapter for it in that directory.
    """

    def __init__(
        self, model: Path | str, adapter: Path | None = None, *, version: str | None = None, device: str | None = None
    ) -> None:
        place = find_model(model, "config.json")
        if adapter is not None:
            find_model(adapter, "adapter_config.json")  # before the seconds that the imports take

        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cpu":
            keep_freed_memory()
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place.name, dtype=dtype, local_files_only=place.local_files_only
            )
            if adapter is not None:
                from peft import PeftModel

                loaded = PeftModel.from_pretrained(loaded, str(adapter))
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UsageError(
                "inference.model-not-loadable", f"cannot load {model}{f' with {adapter}' if adapter else ''}: {said}"
            ) from None
        if set(getattr(loaded.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}:
            raise UsageError(
                "inference.unsupported-attention",
                f"{model} has layers without full attention, which in-process inference does not support; use vllm:URL",
            )
        self._begin(loaded.to(device).eval(), version or (f"{model}#{adapter}" if adapter else str(model)))

    @classmethod
    def around(cls, model: Any, version: str) -> "TransformersPolicy":
        """The policy that a model in memory is, as it stands: no weight may change while conversations go on."""
        made = cls.__new__(cls)
        made._begin(model, version)
        return made

    def _begin(self, model: Any, version: str) -> None:
        self._model, self._version = model, version
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        """Ids that the model has, from 0."""
        self._members: list[Member] = []
        self._beginning: Past | None = None
        """What conversations begin with alike; forgotten with the last of them, since weights may change then."""
        self._running = False
        self._stop = threading.Event()

    @property
    def is_sampling(self) -> bool:
        """Tell whether a batch is being sampled."""
        return self._running

    def member(self) -> "Member":
        """A new conversation's share; it must be left (`leave`) when the conversation ends."""
        member = Member(self)
        self._members.append(member)
        return member

    def _leave(self, member: "Member") -> None:
        if member in self._members:
            self._members.remove(member)
            if not self._members:
                self._beginning = None
                self._stop.set()
            self._look()

    def _look(self) -> None:
        """Begin a batch if every member waits for one."""
        if not self._running and self._members and all(member.asked for member in self._members):
            self._running = True
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            for _ in range(_SETTLING):
                await asyncio.sleep(0)
            waiting = [(member, *member.asked) for member in self._members if member.asked]
            if not waiting or len(waiting) < len(self._members):  # somebody began meanwhile, and has not asked yet
                return
            for member, *_ in waiting:
                member.asked = None
            await self._answer(waiting)
        finally:
            self._running = False
        self._look()

    async def _answer(self, waiting: "list[tuple[Member, PendingTurn, asyncio.Future[Completion]]]") -> None:
        """Sample a batch of turns, and tell those who wait for them, whatever happens."""
        self._stop = stop = threading.Event()
        try:
            await asyncio.to_thread(self._sample, [turn for _, turn, _ in waiting], stop)
        except Exception as error:  # noqa: BLE001 - who waits is told
            # Torch's own: out of memory, a device that is gone.
            failure = error
            if isinstance(error, RuntimeError):
                failure = PolicyError("inference.generation-failed", f"{self._version} failed to generate", str(error))
            for _, _, answer in waiting:
                if not answer.done():
                    answer.set_exception(failure)
        else:
            for member, turn, answer in waiting:
                member.past = turn.past
                if not answer.done():
                    finish = turn.finish or "length"
                    answer.set_result(Completion(tuple(turn.ids), tuple(turn.logprobs), finish, self._version))
        finally:
            stop.set()  # where this was cancelled, the thread is still at it

    def _sample(self, turns: "list[PendingTurn]", stop: threading.Event) -> None:
        from gumshoe.inference.generation import sample_turns, shared_prefix

        new, known = [turn for turn in turns if turn.past is None], self._beginning
        if new and not (known and all(turn.prompt[: len(known.ids)] == known.ids for turn in new)):
            known = shared_prefix(self._model, [turn.prompt for turn in new])
            self._beginning = known
        for turn in new:
            turn.past = known
        sample_turns(self._model, turns, stop.is_set)


class Member:
    """One conversation's share in a policy: a policy itself."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self.asked: tuple[PendingTurn, asyncio.Future[Completion]] | None = None
        """The turn that the conversation waits for."""
        self.past: Past | None = None

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """As `Policy.sample`; waits until every other conversation has asked too, or left."""
        from gumshoe.inference.generation import PendingTurn

        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.asked = asked = PendingTurn(list(prompt_ids), sampling, tuple(stop_ids), seed, self.past), answer
        self._policy._look()
        try:
            return await answer
        finally:
            if self.asked is asked:
                self.asked = None

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """The conversation is over: the others wait for it no longer."""
        self._policy._leave(self)
