"""One question, answered by an agent on this machine."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.agent.answer import Answer, Answerer
from gumshoe.agent.episode import EpisodeLimits
from gumshoe.agent.policies import PolicyName, open_policy
from gumshoe.agent.policy import Sampling
from gumshoe.agent.threads import ToolThreads
from gumshoe.artifacts.store import Store
from gumshoe.errors import UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario

_METADATA = "metadata.json"  # of an adapter: what made it


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model to be run on this machine."""

    adapter: str | None
    """A version in the store, `latest`, or a directory; None for the base model alone."""
    store: str | None
    model: str | None
    """The base model; None for the adapter's own, and `tiny` without one."""

    def found(self, held: ExitStack) -> PolicyName:
        """The policy; an adapter of the store is here as long as the stack is held.

        Raises:
            UsageError: it cannot be had as it was put.
            NotFoundError: the store has no such adapter.
        """
        if self.adapter is None:
            return PolicyName.parse(f"local:{self.model or 'tiny'}")
        place, version = Path(self.adapter), self.adapter
        if not place.is_dir():
            if self.store is None:
                raise UsageError(f"{self.adapter} is no directory; for a published adapter, say where with --store")
            here = Path(held.enter_context(TemporaryDirectory(prefix="gumshoe-adapter-"))) / "adapter"
            fetched = Store(self.store).fetch(f"adapters/{self.adapter}", here)
            place, version = fetched.directory, fetched.manifest.version
        model = self.model or _base_of(place)
        return replace(PolicyName.parse(f"local:{model}#{place}"), called=f"{model}#{version}")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of whom."""

    index: Path
    inbox: str
    day: date
    text: str


async def answered(question: Question, model: LocalModel, sampling: Sampling, limits: EpisodeLimits) -> Answer:
    """Run one episode.

    Raises:
        UsageError: it cannot be asked as it was put.
        NotFoundError: the store has no such adapter.
        PolicyError: the model does not answer.
    """
    scenario = Scenario.asked(question.text, question.inbox, question.day)
    index = MailIndex(question.index)
    with ExitStack() as held:
        async with open_policy(model.found(held), None, sampling, limits) as speak, ToolThreads() as threads:
            answer, _ = await Answerer(index, limits, threads).answer(scenario, speak)
    return answer


def _base_of(adapter: Path) -> str:
    """The base model that an adapter is for, as its own files say."""
    try:
        return str(json.loads((adapter / _METADATA).read_bytes())["settings"]["model"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{adapter} does not say what its base model is; name it with --model") from None
