"""Sample episodes from the policy that is being trained: on vLLM servers, or with the trainer's own model.

Invariant: each adapter is served under a name that is used once (run, attempt, step), and every episode records it.
"""

import io
import json
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy import Sampling
from gumshoe.inference.transformers_policy import TransformersPolicy
from gumshoe.inference.vllm_policy import RequestLimits, VLLMPolicy
from gumshoe.inference.vllm_server import RESTART_DEADLINE, AdapterError, ServerError, load_adapter, unload_adapter
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeRunner
from gumshoe.rollouts.episode_runners import open_token_runner
from gumshoe.training.launch.adapter_transfer import AdapterTransfer
from gumshoe.training.launch.lifecycle import Lifecycle
from gumshoe.training.launch.rendezvous import StopRequestedError, run_in_main
from gumshoe.training.run_spec import ADAPTERS, SERVED, RunSpec

_PATIENCE, _PAUSE = RESTART_DEADLINE, 1.0  # seconds to wait for a restarting server, and between tries
_DEADLINE = 300  # seconds for a server to load an adapter

_log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Sample from the policy that was published last."""

    version: str
    """Name of the policy that was published last."""

    @property
    def servers(self) -> int:
        """Number of servers that share the episodes."""
        ...

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """Make the current weights of a model's adapter the policy. Stop retrying once `is_stopping` returns True.

        Earlier policies stay until `retire`.
        """
        ...

    def retire(self, in_use: Collection[str]) -> None:
        """Remove earlier policies, except those with these names."""
        ...

    def open_policy(self) -> AbstractAsyncContextManager[Any]:
        """Return a context that yields the policy."""
        ...

    def open_runner(self, policy: Any, sampling: Sampling) -> AbstractAsyncContextManager[EpisodeRunner]:
        """Return a context that runs episodes with a policy."""
        ...


@asynccontextmanager
async def open_newest(sampler: Sampler, sampling: Sampling) -> AsyncIterator[EpisodeRunner]:
    """Run episodes with the policy that was published last, while the block runs."""
    async with sampler.open_policy() as policy, sampler.open_runner(policy, sampling) as run:
        yield run


class _TokenRunner:
    """Base of the samplers: run episodes with a token policy."""

    __slots__ = ()
    chat: ChatFormat
    max_context: int
    agent: AgentSettings | None

    def open_runner(self, policy: Any, sampling: Sampling) -> AbstractAsyncContextManager[EpisodeRunner]:
        """Run episodes, as `Sampler.open_runner`."""
        return open_token_runner(policy, self.chat, sampling, self.max_context, self.agent)


class _ServerSampler(_TokenRunner):
    """Base of the samplers that use vLLM servers."""

    __slots__ = ()
    urls: tuple[str, ...]
    """Addresses of the servers that serve the policy."""
    version: str

    @property
    def servers(self) -> int:
        """Number of servers, as `Sampler.servers`."""
        return len(self.urls)

    def open_policy(self) -> AbstractAsyncContextManager[VLLMPolicy]:
        """Return the policy, as `Sampler.open_policy`."""
        return VLLMPolicy(self.urls, self.version, RequestLimits(patience=_PATIENCE))


@dataclass(slots=True)
class VLLMSampler(_ServerSampler):
    """Sample on vLLM servers that load adapters from the run's directory."""

    urls: tuple[str, ...]
    chat: ChatFormat
    max_context: int
    directory: Path
    """Directory of the run, where adapters are saved."""
    version: str = ""
    agent: AgentSettings | None = None
    _loaded: dict[str, Path] = field(default_factory=dict, init=False)  # by name, the newest last

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """Save the adapter, and load it into every server.

        Raises:
            AdapterError: a server rejects the adapter.
            ServerError: a server does not answer, and did not come back in time.
        """
        place = self.directory / ADAPTERS / version
        model.save_pretrained(str(place))
        self._loaded[version] = place
        self._write_served()
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
        self.version = version

    def retire(self, in_use: Collection[str]) -> None:
        """Unload all adapters but the newest and those in use, and delete their files."""
        retired = [each for each in self._loaded if each != self.version and each not in in_use]
        places = {each: self._loaded.pop(each) for each in retired}
        if places:
            self._write_served()
        for version, place in places.items():
            self._unload(version, place)

    def _write_served(self) -> None:
        """Write which adapters a server must load after a restart."""
        served = json.dumps({name: str(place.absolute()) for name, place in self._loaded.items()})
        write_atomically(self.directory / SERVED, io.BytesIO(served.encode()))

    def _unload(self, version: str, place: Path) -> None:
        for url in self.urls:
            try:
                unload_adapter(url, version, _DEADLINE)
            except (AdapterError, ServerError) as error:  # the server was restarted, without this adapter
                _log.info("%s", error)
        shutil.rmtree(place)


@dataclass(slots=True)
class RemoteVLLMSampler(_ServerSampler):
    """Sample on vLLM servers on other machines, which load adapters from a store."""

    transfer: AdapterTransfer
    chat: ChatFormat
    max_context: int
    directory: Path
    """Directory of the run, where adapters are saved until they are in the store."""
    version: str = ""
    agent: AgentSettings | None = None
    urls: tuple[str, ...] = field(default=(), init=False)

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:
        """Save the adapter, upload it, and wait until every server serves it.

        Raises:
            AdapterError: a server rejects the adapter.
            UsageError: the context of a server is shorter than `max_context`.
            UnavailableError: the store is unreachable, or a server does not serve the adapter in time.
            StorageError: the store rejects the upload.
        """
        place = self.directory / ADAPTERS / version
        model.save_pretrained(str(place))
        self.urls = self.transfer.transfer(place, version, is_stopping)
        self.version = version
        shutil.rmtree(place)

    def retire(self, in_use: Collection[str]) -> None:
        """Do nothing: each loader unloads old adapters itself, and keeps the last but one."""


@dataclass(slots=True)
class InProcessSampler(_TokenRunner):
    """Sample with the trainer's own model, in this process."""

    chat: ChatFormat
    max_context: int
    version: str = ""
    agent: AgentSettings | None = None
    _model: Any = field(default=None, init=False)

    @property
    def servers(self) -> int:
        """Number of servers, as `Sampler.servers`: this process counts as one."""
        return 1

    def publish(self, model: Any, version: str, is_stopping: Callable[[], bool]) -> None:  # noqa: ARG002
        """Keep the model, whose weights are current anyway."""
        self._model, self.version = model, version

    def retire(self, in_use: Collection[str]) -> None:
        """Do nothing: there is one model."""

    @asynccontextmanager
    async def open_policy(self) -> AsyncIterator[TransformersPolicy]:
        """Yield the policy, as `Sampler.open_policy`. Dropout is off while the block runs."""
        was_training = self._model.training
        self._model.eval()
        try:
            yield TransformersPolicy.from_model(self._model, self.version)
        finally:
            self._model.train(was_training)


def create_sampler(spec: RunSpec, chat: ChatFormat) -> Sampler:
    """Return the sampler of a run: vLLM servers, through a store if they are on other machines, or the model itself."""
    settings = spec.settings
    context, store, agent = settings.model.max_context, settings.rollouts.handover, settings.agent
    if not spec.urls:
        return InProcessSampler(chat, context, agent=agent)
    if store:
        transfer = AdapterTransfer(store, spec.urls, context)
        return RemoteVLLMSampler(transfer, chat, context, spec.directory, agent=agent)
    return VLLMSampler(spec.urls, chat, context, spec.directory, agent=agent)


class PolicyPublisher:
    """Publish the weights after each step, once, under a new name.

    `adopt` lets running rollouts use the new policy, and returns the names of all that they still use.

    Attributes:
        seconds: duration of the last call of `publish`.
    """

    def __init__(
        self, spec: RunSpec, sampler: Sampler, lifecycle: Lifecycle, adopt: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._prefix = f"r{spec.run}-{spec.attempt}-policy-"
        self._sampler, self._lifecycle, self._adopt = sampler, lifecycle, adopt
        self._published = ""
        self.seconds = 0.0

    def publish(self) -> None:
        """Publish the current weights as the policy of the next episodes. Call it in all processes at once.

        Raises:
            AdapterError, ServerError, StorageError, UnavailableError: as `Sampler.publish`.
            StopRequestedError: the process was asked to stop while it published.
        """
        started = time.monotonic()
        name = f"{self._prefix}{self._lifecycle.step}"
        if self._published != name:
            model = self._lifecycle.gather_model()
            run_in_main(self._lifecycle.trainer.accelerator, lambda: self._publish(model, name))
            self._published = name
        self.seconds = time.monotonic() - started

    def _publish(self, model: Any, name: str) -> None:
        try:
            self._sampler.publish(model, name, lambda: self._lifecycle.is_stopping)
            self._sampler.retire(self._adopt())
        except UnavailableError:
            if self._lifecycle.is_stopping:
                raise StopRequestedError from None
            raise
