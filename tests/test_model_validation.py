"""Messages and codes of invalid mappings."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from gumshoe.errors import UsageError
from gumshoe.model_validation import ParameterModel, validate_model, validate_options
from tests.errors import raises


class Inner(ParameterModel):
    size: int


class Outer(ParameterModel):
    count: int = Field(1, ge=1)
    share: float = 0.5
    names: dict[str, Any] = Field(default_factory=dict)
    inner: Inner | None = None
    part: Inner = Inner(size=1)

    @field_validator("share")
    @classmethod
    def _check_share(cls, share: float) -> float:
        if share > 1:
            raise UsageError("cli.usage", f"share is {share}")
        return share


class Empty(BaseModel):
    pass


@dataclass(frozen=True, slots=True)
class Options:
    name: str
    limit: int | None = 5
    kinds: tuple[str, ...] = ("a",)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"count": 0, "share": "x"}, ["count: ", "got 0", "share: ", "got 'x'"]),
        ({"count": True}, ["count: ", "got True"]),
        ({"count": 1.5}, ["count: ", "got 1.5"]),
        ({"names": list(range(100))}, ["names: must be a mapping, got [0, 1, 2, ", "…"]),
        ({"inner": {}}, ["inner.size: field required"]),
        ({"size": 1}, ["size: ", "count (int, 1 by default), share (float, 0.5 by default), names (dict[str, Any]), "]),
        ({"part": {"sise": 1}}, ["part.sise: ", "; part accepts size (int)"]),
        ([], ["must be a mapping, got []"]),
        (None, ["must be a mapping, got None"]),
    ],
)
def test_a_message_names_wrong_keys_and_values(values: object, expected: list[str]) -> None:
    with raises("plugins.no-code", "invalid thing: ", *expected):
        validate_model(Outer, values, "plugins.no-code", "invalid thing")


def test_an_error_of_a_validator_keeps_its_code() -> None:
    with raises("cli.usage", "share is 2.0"):
        validate_model(Outer, {"share": 2}, "plugins.no-code", "invalid thing")


def test_whole_floats_are_integers() -> None:
    found = validate_model(Outer, {"count": 3.0, "share": 1, "inner": {"size": 2.0}}, "plugins.no-code", "invalid")
    assert found == Outer(count=3, share=1.0, inner=Inner(size=2))
    assert (type(found.count), type(found.share)) == (int, float)


def test_a_model_without_fields_accepts_no_settings() -> None:
    class Strict(Empty, extra="forbid"):
        pass

    with raises("plugins.no-code", "a: ", "no settings"):
        validate_model(Strict, {"a": 1}, "plugins.no-code", "invalid thing")


def test_options_are_a_dataclass() -> None:
    code, what = "plugins.no-code", "invalid options"
    assert validate_options(Options, {"name": "x"}, code, what) == Options("x")
    found = validate_options(Options, {"name": "x", "limit": 0.0, "kinds": ["b"]}, code, what)
    assert found == Options("x", 0, ("b",))
    for values, key in (({}, "name"), ({"name": "x", "limit": -1}, "limit"), ({"name": "x", "kinds": "b"}, "kinds")):
        with raises(code, what, f"{key}: "):
            validate_options(Options, values, code, what)
    with raises(code, "limit: ", "name (str), kinds "):
        validate_options(Options, {"name": "x", "limit": 1}, code, what, without=("limit",))
