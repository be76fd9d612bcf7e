"""Who samples while the trainer learns: vLLM servers that are given each step's adapter, or the trainer's own model.

What always holds: an adapter is served under a name that is used once (run, attempt, step), and every episode names it.
"""

import io
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from gumshoe.artifacts.storage import write_atomically
from gumshoe.inference.policy import Sampling
from gumshoe.inference.transformers_policy import TransformersPolicy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.inference.vllm_server import AdapterError, ServerError, ServerOptions, load_adapter, unload_adapter
from gumshoe.rollouts.chat_format import ChatFormat
from gumshoe.rollouts.sessions import OpenChatSession, token_chat_sessions
from gumshoe.training.launch.adapter_transfer import AdapterTransfer
from gumshoe.training.run_spec import ADAPTERS, SERVED

_PATIENCE, _PAUSE = ServerOptions().start_deadline, 1.0  # seconds for a server that is being started again
_DEADLINE = 300  # seconds for a server to load an adapter

_log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Where episodes come from."""

    version: str
    """What the policy is called since it was published last."""

    @property
    def servers(self) -> int:
        """How many have what was published last, and share out the episodes."""
        ...

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """Take a model with an adapter as it stands; what fails is not tried again once `is_stopping` says so."""
        ...

    def open(self, sampling: Sampling) -> AbstractAsyncContextManager[OpenChatSession]:
        """Begins conversations with what was published last."""
        ...


class _OnServers:
    """What samplers of vLLM servers have in common."""

    __slots__ = ()
    urls: tuple[str, ...]
    """Of the servers that have what was published last."""
    version: str
    chat: ChatFormat
    max_context: int

    @property
    def servers(self) -> int:
        """As `Sampler.servers`."""
        return len(self.urls)

    @asynccontextmanager
    async def open(self, sampling: Sampling) -> AsyncIterator[OpenChatSession]:
        """As `Sampler.open`."""
        async with VLLMPolicy(self.urls, self.version, RequestLimits(patience=_PATIENCE)) as policy:
            yield token_chat_sessions(policy, self.chat, sampling, self.max_context)


@dataclass(slots=True)
class ServedSampler(_OnServers):
    """vLLM servers, which are given the adapter alone."""

    urls: tuple[str, ...]
    chat: ChatFormat
    max_context: int
    directory: Path
    """The run's: adapters are saved in it."""
    version: str = ""
    _place: Path | None = field(default=None, init=False)

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """As `Sampler.publish`: saved, loaded by every server, and the one before is unloaded.

        Raises:
            AdapterError: a server does not take it.
            ServerError: a server does not answer, and did not come back either.
        """
        place = self.directory / ADAPTERS / version
        model.save_pretrained(str(place))
        served = json.dumps({"name": version, "path": str(place.absolute())})
        write_atomically(self.directory / SERVED, io.BytesIO(served.encode()))
        too_long = stop_after_delay(_PATIENCE)

        def load(url: str) -> None:
            retrying = Retrying(
                retry=retry_if_exception_type(ServerError),
                stop=lambda state: is_stopping() or too_long(state),
                wait=wait_fixed(_PAUSE),
                reraise=True,
            )
            retrying(load_adapter, url, version, place, _DEADLINE)

        with ThreadPoolExecutor(len(self.urls)) as pool:
            list(pool.map(load, self.urls))
        before, gone = self.version, self._place
        self.version, self._place = version, place
        if gone is not None:
            self._retire(before, gone)

    def _retire(self, version: str, place: Path) -> None:
        for url in self.urls:
            try:
                unload_adapter(url, version, _DEADLINE)
            except (AdapterError, ServerError) as error:  # it was started again meanwhile, without it
                _log.info("%s", error)
        shutil.rmtree(place)


@dataclass(slots=True)
class HandedOverSampler(_OnServers):
    """vLLM servers on other machines, which are given the adapter alone, through a store."""

    handover: AdapterTransfer
    chat: ChatFormat
    max_context: int
    directory: Path
    """The run's: adapters are saved in it until they are in the store."""
    version: str = ""
    urls: tuple[str, ...] = field(default=(), init=False)
    """Of the servers that have it."""

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """As `Sampler.publish`: saved, sent, and loaded by every server.

        Raises:
            AdapterError: a server does not take it.
            UsageError: a server takes fewer tokens than an episode may have.
            UnavailableError: the store does not take it, or a server does not have it in time.
            StorageError: the store refuses it.
        """
        place = self.directory / ADAPTERS / version
        model.save_pretrained(str(place))
        self.urls = self.handover.transfer(place, version, is_stopping)
        self.version = version
        shutil.rmtree(place)


@dataclass(slots=True)
class OwnSampler:
    """The trainer's own model, in this process."""

    chat: ChatFormat
    max_context: int
    version: str = ""
    _model: Any = field(default=None, init=False)

    @property
    def servers(self) -> int:
        """As `Sampler.servers`."""
        return 1

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:  # noqa: ARG002
        """As `Sampler.publish`."""
        self._model, self.version = model, version

    @asynccontextmanager
    async def open(self, sampling: Sampling) -> AsyncIterator[OpenChatSession]:
        """As `Sampler.open`."""
        policy = TransformersPolicy.around(self._model, self.version)
        was_training = self._model.training
        self._model.eval()
        try:
            yield token_chat_sessions(policy, self.chat, sampling, self.max_context)
        finally:
            self._model.train(was_training)
