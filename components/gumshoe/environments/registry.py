"""Open an index and create environments over it, by name.

A built-in environment has the name of its corpus in `gumshoe.corpus.CORPORA`; the default depends on the index. A
custom environment is named as `my_package.wiki:WikiEnvironment` and implements `EnvironmentClass`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import to_jsonable_python

from gumshoe.corpus import CORPORA, find_corpus
from gumshoe.environments.base import Environment, Source, SourceText
from gumshoe.environments.tools import ToolFunction
from gumshoe.errors import UsageError
from gumshoe.plugins import import_attribute, parse_named, settings_model, validate_settings
from gumshoe.scenarios.indexes import detect_corpus
from gumshoe.scenarios.scenario import Scenario

FINAL_ANSWER = "return_final_answer"
"""Name of the tool that ends a conversation, in every environment."""


class Index(Protocol):
    """Index that all episodes of an environment share. It is read-only and used from several threads."""

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index. Their `content` must differ if the content of the index does."""
        ...


class EnvironmentClass(Protocol):
    """Interface of environment classes. An instance is an `Environment` for one episode.

    The class is called as `Class(index, scenario, max_turns, **settings)`, and raises a `ScenarioError` if it does not
    support the scenario. The arguments after `*` of its `__init__` are its settings.

    Optional members: a static method `get_ready(index)` that does in advance the slow work of the first search; a
    static method `read_source(index, scenario, source_id)` that returns a `SourceText`, or None if `find_source` does;
    `for_tiny` and `for_calls`, default settings for the tiny policy and for single tool calls; `needed_for_calls`,
    settings that single tool calls have whatever the user has set; `overrides`, names of settings by the names of those
    that override them, so that no default overrides a setting of the user; and `if_unrecorded`, settings of policies
    whose record of the training does not have them.
    """

    has_inboxes: ClassVar[bool]
    """True if a question is about one inbox; a server then accepts it only from users who may read that inbox.

    False if every user may read the whole index, or the collections of documents that the user has access to: an index
    with collections lists their names in its attribute `collections`."""

    def __call__(self, index: Any, scenario: Scenario, max_turns: int, **settings: Any) -> Environment: ...

    def open_index(self, directory: Path) -> Index:
        """Open the index in a directory (static method). Called once, before any episode."""
        ...

    def find_source(self, index: Any, scenario: Scenario, source_id: str) -> Source | None:
        """Return a source that the scenario may access, to show to users, or None (static method)."""
        ...


class EnvironmentSettings(BaseModel):
    """Name and settings of an environment in a configuration, e.g. `documents` or `{documents: {reasoning: false}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] = {}

    @classmethod
    def parse(cls, word: Any) -> "EnvironmentSettings":
        """Parse a name, or a mapping of one name to its settings. A string may be either, in YAML.

        Raises:
            UsageError: if it is neither.
        """
        if isinstance(word, cls):
            return word
        if (found := parse_named(word, "arguments")) is not None:
            return cls(name=found[0], arguments=found[1])
        raise UsageError(
            "environments.invalid-name",
            f"not an environment: {word!r}; use {', '.join(CORPORA)}, package.module:Class, or one with settings, e.g. "
            "{documents: {reasoning: false}}",
        )

    @property
    def word(self) -> str:
        """The form that `parse` reads, on one line.

        >>> EnvironmentSettings(name="documents", arguments={"reasoning": False}).word
        '{"documents": {"reasoning": false}}'
        """
        return json.dumps({self.name: self.arguments}) if self.arguments else self.name


NamedEnvironment = Annotated[
    EnvironmentSettings, BeforeValidator(EnvironmentSettings.parse, json_schema_input_type=str | dict[str, Any])
]
"""Environment as a field of other settings."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Create environments over one open index."""

    name: str
    kind: EnvironmentClass
    index: Any
    arguments: Mapping[str, Any]
    """Settings of the environments: `own`, or those of a policy's training."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the user, and defaults for all others."""
    directory: Path = Path()
    """Directory of the index."""
    named: EnvironmentSettings | None = None
    """The environment that the user has named; None for the default of the index, or that of a training."""
    recorded: frozenset[str] = frozenset()
    """Names of the settings that a policy was trained with (see `gumshoe.environments.recorded`)."""

    @property
    def given(self) -> frozenset[str]:
        """Names of the settings that the user has set."""
        return frozenset(self.named.arguments if self.named else ())

    @property
    def content(self) -> str:
        """Identifier of the index's content. It differs if the content does."""
        return str(self.index.stats()["content"])

    @property
    def has_inboxes(self) -> bool:
        """True if a question is about one inbox, which only some users may read."""
        return self.kind.has_inboxes

    @property
    def has_collections(self) -> bool:
        """True if the documents of the index belong to collections, which only some users may read."""
        return bool(getattr(self.index, "collections", ()))

    def default_query_date(self, day: date | None) -> date | None:
        """Return `day`, or if it is None the default date of a question: today for mail, and None for documents.

        Policies for documents are trained on prompts without a date.
        """
        return day or (datetime.now(UTC).date() if self.has_inboxes else None)

    @property
    def provenance(self) -> dict[str, Any]:
        """Settings and index content as values of JSON, as recorded in trajectories.

        With the scenario, they determine an episode.
        """
        settings = to_jsonable_python(dict(self.arguments), fallback=str)
        return {"environment": {"name": self.name, **settings}, "index": self.content}

    def get_ready(self) -> None:
        """Do the slow work of the first search now, e.g. load a model, so that errors appear early.

        Raises:
            GumshoeError: if it fails.
        """
        if hasattr(self.kind, "get_ready"):
            self.kind.get_ready(self.index)

    def for_tiny(self) -> "EnvFactory":
        """Return a copy with the settings that the tiny policy was made with.

        Settings of the user, and those that a policy was trained with, are kept.
        """
        return replace(self, arguments={**self.arguments, **self._defaults("for_tiny", self.given | self.recorded)})

    def with_recorded(self, trained: Mapping[str, Any]) -> "EnvFactory":
        """Return a copy with the settings that a policy was trained with.

        Raises:
            UsageError: if the environment does not have such a setting.
        """
        known = _with_unrecorded(self.kind, trained)
        return replace(self, arguments=_validate(self.name, self.kind, known), recorded=frozenset(known))

    def for_calls(self) -> "EnvFactory":
        """Return a copy with the settings for single tool calls, whatever the server's own policy was trained with.

        Settings of the user are kept if single calls can have them.
        """
        needed: Mapping[str, Any] = getattr(self.kind, "needed_for_calls", {})
        return replace(self, arguments={**self.own, **self._defaults("for_calls", self.given), **needed})

    def _defaults(self, use: str, kept: frozenset[str]) -> dict[str, Any]:
        """Return the environment's default settings for a use, without those to keep, and those that override them."""
        wanted: Mapping[str, Any] = getattr(self.kind, use, {})
        overrides: Mapping[str, str] = getattr(self.kind, "overrides", {})
        return {name: value for name, value in wanted.items() if kept.isdisjoint((name, overrides.get(name)))}

    def list_tools(self) -> list[ToolFunction]:
        """Return the tools other than the final answer, to describe them. Do not call them."""
        nobody, day = ("nobody@example.com", date.min) if self.has_inboxes else (None, None)
        scenario = Scenario.from_question("What is there?", nobody, day, () if self.has_collections else None)
        tools = self.new_environment(scenario, 1).toolbox.tools
        return [tool for tool in tools if tool.__name__ != FINAL_ANSWER]

    def new_environment(self, scenario: Scenario, max_turns: int) -> Environment:
        """Create the environment of one episode.

        Raises:
            ScenarioError: if the environment does not support the scenario.
        """
        return self.kind(self.index, scenario, max_turns, **self.arguments)

    def check(self, scenarios: Iterable[Scenario], max_turns: int) -> None:
        """Check that the environment supports all scenarios.

        Raises:
            ScenarioError: if it does not.
        """
        for scenario in scenarios:
            self.new_environment(scenario, max_turns)

    def find_source(self, scenario: Scenario, source_id: str) -> Source | None:
        """Return a source that the scenario may access, or None."""
        return self.kind.find_source(self.index, scenario, source_id)

    @property
    def reads_sources(self) -> bool:
        """True if the environment implements `read_source`."""
        return hasattr(self.kind, "read_source")

    def read_source(self, scenario: Scenario, source_id: str) -> SourceText | None:
        """Return a source that the scenario may access, with its text, or None. Check `reads_sources` before."""
        found: SourceText | None = cast(Any, self.kind).read_source(self.index, scenario, source_id)
        return found


def open_env(
    directory: Path, named: EnvironmentSettings | None = None, recorded: EnvironmentSettings | None = None
) -> EnvFactory:
    """Open the index in a directory for an environment.

    It is the `named` one, or else the one that a policy was trained in (`recorded`), or the default of the index.

    Raises:
        UsageError: if the environment or a setting of it does not exist, or none is named and the index is unknown.
        GumshoeError: if the index is damaged.
    """
    wanted = named or recorded or EnvironmentSettings(name=detect_corpus(directory).name)
    kind = _find_class(wanted.name)
    is_recorded = recorded is not None and named is None
    given = _with_unrecorded(kind, wanted.arguments) if is_recorded else wanted.arguments
    own = _validate(wanted.name, kind, given)
    trained = frozenset(given) if is_recorded else frozenset[str]()
    return EnvFactory(wanted.name, kind, kind.open_index(directory), own, own, directory, named, trained)


def validate_environment(named: EnvironmentSettings) -> dict[str, Any]:
    """Return all settings of an environment by name, defaults included.

    Raises:
        UsageError: if the environment or a setting of it does not exist, or a setting is invalid.
    """
    return _validate(named.name, _find_class(named.name), named.arguments)


def complete_record(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return name and settings of an environment, as recorded in `provenance`, with settings that did not exist then.

    A custom environment is returned as it is: a record must not decide which code is imported.
    """
    name = environment.get("name")
    return _with_unrecorded(_find_class(name), environment) if name in CORPORA else dict(environment)


def _with_unrecorded(kind: EnvironmentClass, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings of a policy or an evaluation, with those that did not exist then."""
    return {**getattr(kind, "if_unrecorded", {}), **trained}


def _validate(name: str, kind: EnvironmentClass, given: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the settings of an environment, and return all of them by name, defaults included.

    Raises:
        UsageError: if a setting does not exist, or has an invalid value or type.
    """
    try:
        settings = settings_model(cast(Any, kind).__init__)
    except NameError as error:
        raise UsageError(
            "environments.unresolved-type",
            f"environment {name}: cannot resolve the type of a setting: {error}; import the type at runtime, not only "
            "under TYPE_CHECKING",
        ) from None
    return validate_settings(settings, given, "environments.invalid-settings", f"environment {name}")


def _find_class(name: str) -> EnvironmentClass:
    corpus = find_corpus(name)
    place, _, attribute = (corpus.environment if corpus else name).rpartition(":")
    if not place:
        raise UsageError(
            "environments.unknown",
            f"unknown environment: {name!r}; use {', '.join(CORPORA)}, or your own as my_package.module:Class",
        )
    kind = import_attribute(f"environment {name}", place, attribute, "environments.import-failed")
    missing = [each for each in ("open_index", "find_source", "has_inboxes") if not hasattr(kind, each)]
    if not isinstance(kind, type) or missing:
        raise UsageError(
            "environments.invalid-class",
            f"environment {name}: {place} has no class {attribute!r} with {', '.join(missing) or 'instances'}; see "
            "gumshoe.environments.registry.EnvironmentClass",
        )
    return cast(EnvironmentClass, kind)
