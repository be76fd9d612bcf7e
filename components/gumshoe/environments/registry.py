"""One way to open an environment: an index in a directory, and the environments of episodes over it.

Gumshoe's own are `email` and `documents`. Which of them an index is for is seen from its directory. One's own is named
as `my_package.wiki:WikiEnvironment`: a class as `EnvironmentClass` describes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from gumshoe.environments.base import Environment, Source
from gumshoe.environments.tools import Run
from gumshoe.errors import UsageError
from gumshoe.plugins import checked, faults, imported, settings_of
from gumshoe.scenarios.indexes import kind_of_index
from gumshoe.scenarios.scenario import Scenario

BUILT_IN = {
    "email": "gumshoe.environments.email:EmailEnvironment",
    "documents": "gumshoe.environments.documents:DocumentsEnvironment",
}
"""Environments that are named without their module."""


FINAL_ANSWER = "return_final_answer"
"""The tool that ends a conversation, in every environment."""


class Index(Protocol):
    """What the episodes of an environment share: read-only, and used from several threads."""

    def stats(self) -> dict[str, Any]:
        """What is in it; its `content` differs wherever that does."""
        ...


class EnvironmentClass(Protocol):
    """A class of environments. Its instances are as `Environment` says, one an episode.

    It is called as `Class(index, scenario, max_turns, **settings)` and raises a `ScenarioError` where the scenario is
    not for it. What stands after `*` in its `__init__` are its settings. It may have a static `get_ready(index)`, which
    does beforehand what the first search would do, and `for_tiny` and `for_calls`: settings that it has for the tiny
    policy, and where single calls of its tools are answered, unless others are given.
    """

    has_inboxes: ClassVar[bool]
    """A question is about one inbox, and a server lets only those ask it who may read that; False where everybody who
    may ask may read all of the index."""

    def __call__(self, index: Any, scenario: Scenario, max_turns: int, **settings: Any) -> Environment: ...

    def open_index(self, directory: Path) -> Index:
        """The index of a directory (static); called once, before anything is asked."""
        ...

    def find_source(self, index: Any, scenario: Scenario, source_id: str) -> Source | None:
        """What the scenario may see under an id, as people are shown it; None where that is nothing (static)."""
        ...


class EnvironmentSettings(BaseModel):
    """An environment as a configuration names it: `documents`, or with settings `{documents: {reasoning: false}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] = {}

    @classmethod
    def parse(cls, word: Any) -> "EnvironmentSettings":
        """From a word, or from a mapping of one name to its settings; text may be either, in YAML.

        Raises:
            UsageError: it is neither.
        """
        if isinstance(word, cls):
            return word
        try:
            said = yaml.safe_load(word) if isinstance(word, str) else word
        except yaml.YAMLError:
            said = None
        match said:
            case str(name) if name.strip():
                return cls(name=name.strip())
            case {"name": str(name), **rest} if set(rest) <= {"arguments"}:
                return cls(name=name, arguments=rest.get("arguments", {}))
            case dict(named) if len(named) == 1:
                ((name, arguments),) = named.items()
                if isinstance(name, str) and isinstance(arguments, dict | None):
                    return cls(name=name, arguments=arguments or {})
        raise UsageError(
            "environments.invalid-name",
            f"not an environment: {word!r}; use email, documents, package.module:Class, or one with settings, e.g. "
            "{documents: {reasoning: false}}",
        )


NamedEnvironment = Annotated[EnvironmentSettings, BeforeValidator(EnvironmentSettings.parse)]
"""An environment, as a setting."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """An index that is open, and the environments over it."""

    name: str
    kind: EnvironmentClass
    index: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The settings of its environments, those that were not given too."""
    given: frozenset[str] = frozenset()
    """The names of those that were given."""

    @property
    def content(self) -> str:
        """What the index was made from, and how: other content, other text."""
        return str(self.index.stats()["content"])

    @property
    def has_inboxes(self) -> bool:
        """A question is about one inbox, which not everybody may read."""
        return self.kind.has_inboxes

    def asked_on(self, day: date | None) -> date | None:
        """The day on which somebody asks who may have named one: of mail today, and of documents none. Questions of
        sets about documents have none, and so had the prompts that a policy learned from.
        """
        return day or (datetime.now(UTC).date() if self.has_inboxes else None)

    @property
    def provenance(self) -> dict[str, Any]:
        """What trajectories note of it: what decides, beside the scenario, how an episode goes."""
        return {"environment": {"name": self.name, **self.arguments}, "index": self.content}

    def get_ready(self) -> None:
        """Do now what the first search would do, such as to load a model: a mistake is told of before all else begins.

        Raises:
            GumshoeError: it cannot be done.
        """
        if hasattr(self.kind, "get_ready"):
            self.kind.get_ready(self.index)

    def for_tiny(self) -> "EnvFactory":
        """The same as the tiny policy was taught it; what the settings say stays as it is."""
        return self._set("for_tiny")

    def for_calls(self) -> "EnvFactory":
        """The same as it answers single calls of its tools; what the settings say stays as it is."""
        return self._set("for_calls")

    def _set(self, use: str) -> "EnvFactory":
        wanted: Mapping[str, Any] = getattr(self.kind, use, {})
        others = {name: value for name, value in wanted.items() if name not in self.given}
        return replace(self, arguments={**self.arguments, **others})

    def tools(self) -> list[Run]:
        """What an environment has for a model to call, but for the answer: to be described, not to be called."""
        nobody, day = ("nobody@example.com", date.min) if self.has_inboxes else (None, None)
        tools = self.new_environment(Scenario.asked("What is there?", nobody, day), 1).toolbox.tools
        return [tool for tool in tools if tool.__name__ != FINAL_ANSWER]

    def new_environment(self, scenario: Scenario, max_turns: int) -> Environment:
        """A fresh one, for one episode.

        Raises:
            ScenarioError: the scenario is not for it.
        """
        return self.kind(self.index, scenario, max_turns, **self.arguments)

    def check(self, scenarios: Iterable[Scenario], max_turns: int) -> None:
        """See that there is an environment for each of some scenarios.

        Raises:
            ScenarioError: there is not.
        """
        for scenario in scenarios:
            self.new_environment(scenario, max_turns)

    def find_source(self, scenario: Scenario, source_id: str) -> Source | None:
        """What the scenario may see under an id; None where that is nothing."""
        return self.kind.find_source(self.index, scenario, source_id)


def open_env(directory: Path, named: EnvironmentSettings | None = None) -> EnvFactory:
    """The index in a directory, and the environments over it, as they are named or else as the index tells.

    Raises:
        UsageError: there is no such environment, or its settings are others; the message says what there is. Or the
            directory holds no index that Gumshoe knows, and no environment is named.
        GumshoeError: the index is damaged.
    """
    wanted = named or EnvironmentSettings(name=kind_of_index(directory))
    kind = _find_class(wanted.name)
    try:
        settings = settings_of(cast(Any, kind).__init__)
    except NameError as error:
        raise UsageError(
            "environments.unresolved-type",
            f"environment {wanted.name}: cannot resolve the type of a setting: {error}; import the type at runtime, "
            "not only under TYPE_CHECKING",
        ) from None
    try:
        arguments = checked(settings, wanted.arguments)
    except ValidationError as error:
        raise UsageError(
            "environments.invalid-settings", f"environment {wanted.name}: {faults(settings, error)}"
        ) from None
    return EnvFactory(wanted.name, kind, kind.open_index(directory), arguments, frozenset(wanted.arguments))


def _find_class(name: str) -> EnvironmentClass:
    place, _, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not place:
        raise UsageError(
            "environments.unknown",
            f"unknown environment: {name!r}; use {', '.join(BUILT_IN)}, or your own as my_package.module:Class",
        )
    kind = imported(f"environment {name}", place, attribute, "environments.import-failed")
    missing = [each for each in ("open_index", "find_source", "has_inboxes") if not hasattr(kind, each)]
    if not isinstance(kind, type) or missing:
        raise UsageError(
            "environments.invalid-class",
            f"environment {name}: {place} has no class {attribute!r} with {', '.join(missing) or 'instances'}; see "
            "gumshoe.environments.registry.EnvironmentClass",
        )
    return cast(EnvironmentClass, kind)
