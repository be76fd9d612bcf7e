"""Page of the Python client of the agent server, from its docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

from docs.generate.json_schema import describe_properties
from docs.generate.markdown import code, page, prose, sentence, table
from pydantic import BaseModel

from gumshoe import client

_SECTION = re.compile(r"^(Args|Raises):\n", re.M)
_ENTRY = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.M)
_COLUMNS = {"Args": "argument", "Raises": "error"}


def render_python_client() -> str:
    """Return the page."""
    public = [getattr(client, name) for name in client.__all__]
    answers = [each for each in public if issubclass(each, BaseModel)]
    errors = [each for each in public if issubclass(each, Exception)]
    clients = [each for each in public if each not in answers and each not in errors]
    summary, _, example = (inspect.getdoc(client) or "").partition("\n\n")
    return page(
        "Python client",
        prose(summary),
        f"```python\n{example}\n```",
        (line for each in clients for line in _render_class(each)),
        "## Errors",
        "The `code` of an error is one of the [error codes](errors.md).",
        table(("error", "meaning"), ((code(each.__name__), sentence(_first_line(each))) for each in errors)),
        "## Answers",
        (line for each in answers for line in _render_answer(each)),
    )


def _render_class(kind: type) -> Iterator[str]:
    yield from _render_function(kind, kind.__name__, "##")
    for name, member in vars(kind).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            yield from _render_function(member, name, "###")


def _render_answer(kind: type[BaseModel]) -> Iterator[str]:
    yield from [f"### {kind.__name__}", "", sentence(_first_line(kind)), ""]
    yield from describe_properties(kind.model_json_schema(mode="serialization"), are_inputs=False)


def _render_function(function: Callable[..., Any], name: str, level: str) -> Iterator[str]:
    description, *sections = _SECTION.split(inspect.getdoc(function) or "")
    yield from [f"{level} {name}", "", "```python", f"{name}{_format_signature(function)}", "```", ""]
    for paragraph in description.strip().split("\n\n"):
        if paragraph.startswith("    "):
            yield from ["```python", dedent(paragraph), "```", ""]
        else:
            yield from [prose(paragraph), ""]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        entries = _ENTRY.findall(dedent(body))
        yield from table((_COLUMNS[title], "meaning"), ((code(each), sentence(text)) for each, text in entries))


def _format_signature(function: Callable[..., Any]) -> str:
    """Return the signature without `self`, and without the modules of types."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name != "self"]
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(signature.replace(parameters=own)))


def _first_line(kind: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").splitlines()[0]
