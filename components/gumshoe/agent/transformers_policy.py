"""A policy in this process, for machines without vLLM: batched in lock step, so that seeds decide the tokens.

What always holds: a batch is made of the turns of all conversations that are going on, none of which is left out or
comes late. So the same conversations with the same seeds meet in the same batches, and floating point, which differs
between batches, comes out the same.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gumshoe.agent.policy import Completion, PolicyError, Sampling
from gumshoe.artifacts.hub import find_model
from gumshoe.errors import UsageError

if TYPE_CHECKING:
    import torch

_SETTLING = 50  # rounds of the event loop in which conversations that take the place of ended ones begin


@dataclass(slots=True)
class _Asked:
    """A turn that a conversation waits for."""

    prompt: list[int]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int
    answer: "asyncio.Future[Completion]"


class TransformersPolicy:
    """A model of `transformers`, with an adapter of `peft` or without.

    `member()` gives one conversation's share in it. A batch runs when every member has asked or left.

    Raises:
        UsageError: there is no such model, or no adapter for it in that directory.
    """

    def __init__(self, model: Path | str, adapter: Path | None = None, *, device: str | None = None) -> None:
        place = find_model(model, "config.json")
        if adapter is not None:
            find_model(adapter, "adapter_config.json")  # before the seconds that the imports take

        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]

        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.float32 if self._device == "cpu" else torch.bfloat16
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place.name, dtype=dtype, local_files_only=place.local_files_only
            )
            if adapter is not None:
                from peft import PeftModel

                loaded = PeftModel.from_pretrained(loaded, str(adapter))
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UsageError(f"{model} cannot be loaded{f' with {adapter}' if adapter else ''} ({said})") from None
        self._model = loaded.to(self._device).eval()
        self._version = f"{Path(model).name}#{adapter.name}" if adapter else Path(model).name
        self._members: list[Member] = []
        self._running = False

    def member(self) -> "Member":
        """A new conversation's share; it must be left (`leave`) when the conversation ends."""
        member = Member(self)
        self._members.append(member)
        return member

    def _leave(self, member: "Member") -> None:
        if member in self._members:
            self._members.remove(member)
            self._look()

    def _look(self) -> None:
        """Begin a batch if every member waits for one."""
        if not self._running and self._members and all(member.asked for member in self._members):
            self._running = True
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for _ in range(_SETTLING):
            await asyncio.sleep(0)
        waiting = [member for member in self._members if member.asked]
        if len(waiting) < len(self._members):  # somebody began meanwhile, and has not asked yet
            self._running = False
            return
        batch = [member.asked for member in waiting if member.asked]
        for member in waiting:
            member.asked = None
        try:
            completions = await asyncio.to_thread(self._sampled, batch)
        except RuntimeError as error:  # torch: out of memory, a device that is gone
            failure = PolicyError(f"{self._version} failed ({error})")
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(failure)
        else:
            for asked, completion in zip(batch, completions, strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(completion)
        self._running = False
        self._look()

    def _sampled(self, batch: Sequence[_Asked]) -> list[Completion]:
        """Continue every prompt of a batch."""
        import torch

        with torch.inference_mode():
            rows = [_Row(asked, torch.Generator().manual_seed(asked.seed)) for asked in batch]
            longest = max(len(asked.prompt) for asked in batch)
            ids = torch.zeros(len(rows), longest, dtype=torch.long)  # [batch, tokens], padded on the left
            mask = torch.zeros_like(ids)
            for row, asked in enumerate(batch):
                ids[row, longest - len(asked.prompt) :] = torch.tensor(asked.prompt)
                mask[row, longest - len(asked.prompt) :] = 1
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            cache = None
            while True:
                out = self._model(
                    input_ids=ids.to(self._device),
                    attention_mask=mask.to(self._device),
                    position_ids=positions.to(self._device),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = out.past_key_values
                logits = out.logits[:, -1].float().cpu()  # [batch, vocabulary]
                nexts = [row.next(logits[number]) for number, row in enumerate(rows)]
                if all(row.finish for row in rows):
                    break
                ids = torch.tensor(nexts)[:, None]
                mask = torch.cat([mask, torch.ones(len(rows), 1, dtype=torch.long)], dim=-1)
                positions = positions[:, -1:] + 1
        return [Completion(tuple(row.ids), tuple(row.logprobs), row.finish or "length", self._version) for row in rows]


@dataclass(slots=True)
class _Row:
    """One sequence of a batch while it is sampled."""

    asked: _Asked
    generator: "torch.Generator"
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    def next(self, logits: "torch.Tensor") -> int:
        """Sample one more token from logits [vocabulary], if the row has not ended; the token to go on with."""
        if self.finish:
            return self.ids[-1]
        token, logprob = _sample(logits, [*self.asked.prompt, *self.ids], self.asked.sampling, self.generator)
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.asked.stop_ids:
            self.finish = "stop"
        elif len(self.ids) >= self.asked.sampling.max_tokens:
            self.finish = "length"
        return token


def _sample(
    logits: "torch.Tensor", history: list[int], sampling: Sampling, generator: "torch.Generator"
) -> tuple[int, float]:
    """One token from logits [vocabulary], and its log-probability in the distribution that it was sampled from.

    The order is vLLM's: repetition penalty, temperature, min-p, top-k, top-p
    (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html).
    """
    import torch

    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(history)))
        logits = logits.clone()
        penalized = logits[seen]
        logits[seen] = torch.where(
            penalized > 0, penalized / sampling.repetition_penalty, penalized * sampling.repetition_penalty
        )
    if sampling.temperature == 0:
        token = int(logits.argmax())
        return token, float(torch.log_softmax(logits, dim=-1)[token])
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = torch.softmax(logits, dim=-1)
        logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.max(), -torch.inf)
    if 0 < sampling.top_k < len(logits):
        logits = logits.masked_fill(logits < torch.topk(logits, sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        before = torch.softmax(ordered, dim=-1).cumsum(-1) - torch.softmax(ordered, dim=-1)
        logits = logits.index_fill(0, order[before >= sampling.top_p], -torch.inf)
    logprobs = torch.log_softmax(logits, dim=-1)
    token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
    return token, float(logprobs[token])


class Member:
    """One conversation's share in a policy: a policy itself."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self.asked: _Asked | None = None

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """As `Policy.sample`; waits until every other conversation has asked too, or left."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.asked = _Asked(list(prompt_ids), sampling, tuple(stop_ids), seed, answer)
        self._policy._look()
        try:
            return await answer
        finally:
            self.asked = None if self.asked and self.asked.answer is answer else self.asked

    def leave(self) -> None:
        """The conversation is over: the others wait for it no longer."""
        self._policy._leave(self)
