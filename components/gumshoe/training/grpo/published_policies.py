"""The policies that episodes use while newer ones are published: which is the newest, and which are still in use."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gumshoe.inference.policy import Completion, Sampling
from gumshoe.rollouts.episode import EpisodeRunner
from gumshoe.training.grpo.sampler import Sampler

_Value = TypeVar("_Value")


class HeldContext(Generic[_Value]):
    """An asynchronous context that a task of its own keeps open, so that any task may open and close it.

    Attributes:
        value: what the context yields.
    """

    def __init__(self, context: AbstractAsyncContextManager[_Value]) -> None:
        self._context = context
        self._is_over = asyncio.Event()
        self._entered: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold())
        self.value: _Value

    async def open(self) -> _Value:
        """Enter the context.

        Raises:
            Exception: the context raises it.
        """
        try:
            self.value = await asyncio.shield(self._entered)
        except BaseException:
            self._is_over.set()  # so that a context that is entered later is left at once
            raise
        return self.value

    async def aclose(self) -> None:
        """Leave the context."""
        self._is_over.set()
        await self._task

    async def _hold(self) -> None:
        try:
            async with self._context as value:
                self._entered.set_result(value)
                await self._is_over.wait()
        except Exception as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)


@dataclass(slots=True, eq=False)
class PublishedPolicy:
    """A policy that was published, and what runs episodes with it."""

    version: str
    number: int
    """Number of batches of episodes that it has learned from."""
    held: HeldContext[tuple[Any, EpisodeRunner]]
    users: int = 0
    """Number of episodes and turns that use it."""

    @property
    def policy(self) -> Any:
        return self.held.value[0]

    @property
    def run(self) -> EpisodeRunner:
        return self.held.value[1]


class PublishedPolicies:
    """Give each episode the newest policy, and keep an older one open until the last episode that uses it has ended.

    With `by_turn`, each turn takes the newest policy, so that a long episode may have several.
    """

    def __init__(self, sampler: Sampler, sampling: Sampling, *, by_turn: bool = False) -> None:
        self._sampler, self._sampling = sampler, sampling
        self.by_turn = by_turn
        self._open: list[PublishedPolicy] = []  # the newest is the last one

    @property
    def newest(self) -> PublishedPolicy:
        """The policy that was adopted last."""
        return self._open[-1]

    @property
    def in_use(self) -> set[str]:
        """Names of the newest policy, and of older ones that episodes still use."""
        return {each.version for each in self._open}

    async def adopt(self, number: int) -> None:
        """Use the sampler's current policy from now on; it has learned from this number of batches.

        Raises:
            GumshoeError: what runs the episodes cannot be opened.
        """
        version = self._sampler.version
        if self._open and self.newest.version == version:
            return
        held = HeldContext(self._open_policy())
        await held.open()
        self._open.append(PublishedPolicy(version, number, held))
        await self._close_unused()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[PublishedPolicy]:
        """Yield the newest policy, which stays open while the block runs."""
        served = self.newest
        served.users += 1
        try:
            yield served
        finally:
            served.users -= 1
            await self._close_unused()

    async def aclose(self) -> None:
        """Close all policies. No episode may run any more."""
        opened, self._open = self._open, []
        for each in opened:
            await each.held.aclose()

    @asynccontextmanager
    async def _open_policy(self) -> AsyncIterator[tuple[Any, EpisodeRunner]]:
        async with AsyncExitStack() as stack:
            policy = await stack.enter_async_context(self._sampler.open_policy())
            speaker = NewestPolicy(self) if self.by_turn else policy
            run = await stack.enter_async_context(self._sampler.open_runner(speaker, self._sampling))
            yield policy, run

    async def _close_unused(self) -> None:
        unused = [each for each in self._open[:-1] if not each.users]
        self._open = [each for each in self._open if each not in unused]
        for each in unused:
            await each.held.aclose()


class NewestPolicy:
    """Sample each turn from the policy that was published last."""

    def __init__(self, versions: PublishedPolicies) -> None:
        self._versions = versions

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample a turn (see `Policy.sample`)."""
        async with self._versions.use() as served:
            found: Completion = await served.policy.sample(prompt_ids, sampling, stop_ids=stop_ids, seed=seed)
        return found

    @contextmanager
    def open_conversation(self) -> Iterator["_Conversation"]:
        """Yield the policy of one conversation, which ends with the block."""
        with ExitStack() as stack:
            yield _Conversation(self._versions, stack)


class _Conversation:
    """Policy for one conversation, which each newer policy continues."""

    def __init__(self, versions: PublishedPolicies, stack: ExitStack) -> None:
        self._versions, self._stack = versions, stack
        self._version = ""
        self._policy: Any = None

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample a turn (see `Policy.sample`)."""
        async with self._versions.use() as served:
            if served.version != self._version:
                self._stack.close()
                self._policy = self._stack.enter_context(served.policy.open_conversation())
                self._version = served.version
            found: Completion = await self._policy.sample(prompt_ids, sampling, stop_ids=stop_ids, seed=seed)
        return found
