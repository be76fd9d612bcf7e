"""Find values in a tool call's arguments that no tool can store, search for or print."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gumshoe.text_checks import find_bad_texts, replace_bad_characters

_MAX_FAULTS = 5
_MAX_FAULT_LENGTH = 200  # characters
_MOST_SHOWN = 60  # characters of a name
_MAX_VALUES = 10_000
"""Maximum number of values in the arguments of one call, with all values in lists and objects."""
_MAX_DEPTH = 50
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


def find_bad_values(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the place and the fault of each value that no tool can use.

    These are texts with NUL or lone surrogates, integers of more than 64 bits, NaN and infinite numbers, values that
    are nested more than 50 deep, and values after the first 10,000.

    >>> list(find_bad_values({"page": 2**64}))
    ['page: the number has more than 64 bits']
    """
    waiting: list[tuple[str, int, Any]] = [(str(name)[:_MOST_SHOWN], 1, value) for name, value in arguments.items()]
    count = 0
    while waiting:
        place, depth, value = waiting.pop()
        count += 1
        if depth > _MAX_DEPTH or count > _MAX_VALUES:
            yield "there are too many values" if depth <= _MAX_DEPTH else f"{place[:40]}: it is nested too deeply"
            return
        if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
            yield f"{place}: the number has more than 64 bits"
        elif isinstance(value, float) and not float("-inf") < value < float("inf"):
            yield f"{place}: the number is not finite"
        elif isinstance(value, list | tuple):
            waiting += ((f"{place}.{at}", depth + 1, each) for at, each in enumerate(value))
        elif isinstance(value, Mapping):
            waiting += ((f"{place}.{str(name)[:_MOST_SHOWN]}", depth + 1, each) for name, each in value.items())
    yield from (f"{place}: {fault}" for place, fault in find_bad_texts(arguments))


def join_faults(faults: Iterable[str]) -> str:
    """Return the first five faults, each shortened, as text that a model can receive. Empty without faults."""
    return "; ".join(replace_bad_characters(each)[:_MAX_FAULT_LENGTH] for each in islice(faults, _MAX_FAULTS))
