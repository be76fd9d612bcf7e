"""A target of fuzzing: random inputs as bytes, and a check of what the code does with one of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that failed once, each in a file below the name of its target."""

Check = Callable[[bytes], None]
"""Run the code on an input. Raise an error if it does something that it must not do."""


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """Code that reads input from outside."""

    name: str
    inputs: Callable[[], st.SearchStrategy[bytes]]
    open: Callable[[], AbstractContextManager[Check]]
    """Prepare the check, e.g. start a server."""
    examples: int = 100
    """Number of inputs that the tests try. The nightly run tries as many as its time allows."""
    is_slow: bool = False
    """True if it starts a server, and so belongs to the second tier of tests."""

    def list_corpus(self) -> list[Path]:
        """Return the files of the inputs that failed once."""
        directory = CORPUS / self.name
        return sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []


def simple_target(
    name: str, inputs: Callable[[], st.SearchStrategy[bytes]], check: Check, examples: int = 100
) -> FuzzTarget:
    """Return a target that needs no preparation."""

    @contextmanager
    def prepare() -> Iterator[Check]:
        yield check

    return FuzzTarget(name, inputs, prepare, examples)


def check_texts(*texts: object) -> None:
    """Check that texts can be stored: they contain neither NUL nor lone surrogates."""
    for text in texts:
        assert isinstance(text, str), repr(text)[:80]
        assert "\0" not in text, repr(text)[:80]
        text.encode()
