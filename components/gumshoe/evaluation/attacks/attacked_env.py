"""Environments over copies of an index, to each of which the attacks of one wave were delivered."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from gumshoe.embeddings.embedder import Embedder
from gumshoe.environments.base import Environment
from gumshoe.environments.registry import EnvFactory
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario

_OPEN_INDEXES = 16  # kept open; an evaluation has many waves


@dataclass(frozen=True, slots=True)
class AttackedEnvFactory(EnvFactory):
    """Create environments in which the attack on a scenario has been delivered."""

    places: Mapping[str, Path] = field(default_factory=dict)
    """Directory of the index of each attacked scenario, by scenario id."""
    suite: str = ""
    """Digest of all messages that were delivered."""
    embedder: Embedder | None = None
    """Model that embeds queries, if the index has vectors; loaded once for all copies."""

    @classmethod
    def over(
        cls, env_factory: EnvFactory, places: Mapping[str, Path], suite: str, embedder: Embedder | None
    ) -> "AttackedEnvFactory":
        """Return a copy of a factory whose scenarios are attacked."""
        own = {each.name: getattr(env_factory, each.name) for each in fields(EnvFactory)}
        return cls(**own, places=places, suite=suite, embedder=embedder)

    @property
    def content(self) -> str:
        """Identifier of the index's content with the attacks."""
        return f"{EnvFactory.content.fget(self)}+{self.suite}"  # type: ignore[attr-defined] # a property

    def new_environment(self, scenario: Scenario, max_turns: int) -> Environment:
        """Create the environment of one episode, in the index that has the scenario's attack."""
        index = _open_index(self.places[scenario.id], cast(Any, self.embedder))  # hashable, as all objects
        return self.kind(index, scenario, max_turns, **self.arguments)

    def check(self, scenarios: Iterable[Scenario], max_turns: int) -> None:
        """Check that the environment supports all scenarios, in the index without attacks."""
        for scenario in scenarios:
            EnvFactory.new_environment(self, scenario, max_turns)


@lru_cache(_OPEN_INDEXES)
def _open_index(directory: Path, embedder: Embedder | None) -> MailIndex:
    return MailIndex(directory, embedder)


def close_indexes() -> None:
    """Forget the open indexes, so that their files can be deleted."""
    _open_index.cache_clear()


def digest_messages(messages: Iterable[bytes]) -> str:
    """Return a digest of messages, in their order."""
    digest = hashlib.sha256()
    for each in messages:
        digest.update(hashlib.sha256(each).digest())
    return digest.hexdigest()[:16]
