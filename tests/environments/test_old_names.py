"""Environments written for older versions still work, with a warning."""

from importlib import import_module

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.environments.search import SearchEnvironment
from tests.rollouts.conversations import synthetic


def test_old_imports_return_the_new_names_and_warn() -> None:
    searching, environments = (import_module(f"gumshoe.agent.{name}") for name in ("searching", "environments"))
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.search\.SearchEnvironment"):
        assert searching.SearchEnvironment is SearchEnvironment
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.registry\.EnvFactory"):
        assert environments.World is EnvFactory
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.registry\.open_env"):
        assert environments.open_world is open_env
    assert not hasattr(searching, "nothing")


class _Notes(SearchEnvironment):
    def listed_id(self, source_id: str) -> str | None:
        return source_id


def test_old_methods_of_environments_work_and_warn() -> None:
    scenario = synthetic().scenarios.scenarios[0]
    environment = _Notes(scenario)
    with pytest.warns(DeprecationWarning, match="record_reading"):
        environment.note_reading(scenario.sources[0])
    assert environment.record.read == [scenario.sources[0]]
    with pytest.warns(DeprecationWarning, match="unknown_id_error"):
        assert "page 'x'" in str(environment.refused("page 'x'"))
    assert environment.record.invalid_ids == 1
