"""Environments written for older versions still work, with a warning."""

from importlib import import_module

import pytest

from gumshoe.environments.registry import EnvFactory, open_env
from gumshoe.environments.search import SearchEnvironment


def test_old_imports_return_the_new_names_and_warn() -> None:
    searching, environments = (import_module(f"gumshoe.agent.{name}") for name in ("searching", "environments"))
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.search\.SearchEnvironment"):
        assert searching.SearchEnvironment is SearchEnvironment
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.registry\.EnvFactory"):
        assert environments.World is EnvFactory
    with pytest.warns(DeprecationWarning, match=r"gumshoe\.environments\.registry\.open_env"):
        assert environments.open_world is open_env
    assert not hasattr(searching, "nothing")
