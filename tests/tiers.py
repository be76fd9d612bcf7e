"""Tests of many cases, of which CI runs some and `make test-all` runs all."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def nightly_except(kept: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrized test; those that are not kept are only tested in the nightly tier.

    `kept` contains cases, or the names of cases that have an attribute `name`. A case of several arguments is a tuple.
    """
    night = pytest.mark.nightly
    return [
        each
        if getattr(each, "name", each) in kept
        else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=night)
        for each in cases
    ]
