"""The environment of a training is recorded with an adapter, and used wherever the adapter is."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.environments.recorded import (
    ENVIRONMENT,
    has_environment,
    read_environment,
    use_recorded,
    write_environment,
)
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.sessions import env_for_policy
from tests.documents.pages import make_collection, page
from tests.errors import raises
from tests.mail.mailbox import make_index, record

SMALL = {"hits": 4, "message_characters": 1200, "handles": True}
OWN = "tests.environments.own_environments:NotesEnvironment"
OTHER = "environments.other-environment"


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded") / "mail"
    make_index(directory, [record(1)])
    return directory / "index"


def opened(directory: Path, word: object = None) -> EnvFactory:
    return open_env(directory, None if word is None else EnvironmentSettings.parse(word))


@pytest.fixture
def adapter(tmp_path: Path, mail: Path) -> Path:
    """Return the directory of an adapter that was trained with small results."""
    write_environment(opened(mail, {"email": SMALL}), tmp_path)
    return tmp_path


def test_recorded_settings_are_used_if_the_user_gives_none_or_the_same(mail: Path, adapter: Path) -> None:
    trained = opened(mail, {"email": SMALL}).provenance
    for word in (
        None,
        "email",
        {"email": {"hits": 4}},
        {"email": {**SMALL, "threads": True, "message_characters": 1200.0}},
    ):
        assert use_recorded(opened(mail, word), None, "acme/model", adapter).provenance == trained
    assert env_for_policy(opened(mail), PolicyName.parse("vllm:http://a#b"), adapter).provenance == trained
    assert env_for_policy(opened(mail), PolicyName.parse("chat:model"), adapter).provenance == opened(mail).provenance


def test_without_a_record_the_environment_is_the_given_one(mail: Path, tmp_path: Path) -> None:
    given = opened(mail, {"email": {"hits": 3}})
    assert not has_environment(tmp_path)
    assert use_recorded(given, tmp_path, None, "acme/model") is given


@pytest.mark.parametrize(
    ("word", "values"),
    [({"email": {"hits": 5}}, ["'hits': 5", '"hits": 4']), ({"email": {"threads": False}}, ["'threads': False"])],
)
def test_other_settings_are_refused(mail: Path, adapter: Path, word: Any, values: list[str]) -> None:
    with raises(OTHER, adapter, *values):
        use_recorded(opened(mail, word), adapter)


def test_another_environment_or_an_index_for_another_one_is_refused(adapter: Path, tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "documents", [page(1)])
    for word in (None, "documents"):
        with raises(OTHER, adapter, "documents", "email"):
            use_recorded(opened(collection, word), adapter)


def test_a_custom_environment_is_opened_again(mail: Path, adapter: Path) -> None:
    write_environment(opened(mail, {OWN: {"shouting": True}}), adapter)
    found = use_recorded(opened(mail), adapter)
    assert (found.name, found.arguments, found.given) == (OWN, {"shouting": True}, frozenset())
    with raises(OTHER, adapter, OWN):
        use_recorded(opened(mail, "email"), adapter)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": 1}', b'{"name": "email", "more": 1}'])
def test_a_damaged_record_is_refused(mail: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / ENVIRONMENT).write_bytes(content)
    with raises("environments.record-damaged", tmp_path / ENVIRONMENT):
        use_recorded(opened(mail), tmp_path)


def test_a_record_with_a_setting_that_does_not_exist_is_refused(mail: Path, tmp_path: Path) -> None:
    (tmp_path / ENVIRONMENT).write_text('{"name": "email", "arguments": {"colour": "red"}}')
    with raises("environments.invalid-settings", "colour"):
        use_recorded(opened(mail), tmp_path)


def test_the_settings_of_the_tiny_policy_do_not_replace_recorded_ones(mail: Path, adapter: Path) -> None:
    found = env_for_policy(opened(mail), PolicyName.parse(f"tiny#{adapter}"))
    assert (found.arguments["threads"], found.arguments["hits"]) == (True, 4)
    write_environment(opened(mail).for_tiny(), adapter)
    assert read_environment(adapter).arguments["threads"] is False
    assert env_for_policy(opened(mail), PolicyName.parse(f"tiny#{adapter}")).arguments["threads"] is False


def test_single_calls_have_none_of_the_recorded_settings_and_no_handles(mail: Path, adapter: Path) -> None:
    assert use_recorded(opened(mail), adapter).for_calls().arguments == opened(mail).for_calls().arguments
    given = opened(mail, {"email": {"handles": True, "hits": 3}}).for_calls()
    assert (given.arguments["handles"], given.arguments["hits"]) == (False, 3)
