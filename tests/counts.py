"""Count what makes code hard to read, e.g. tests that check sentences and docstrings that are not imperative.

python -m tests.counts            # a table of all counts
python -m tests.counts sentences tests/mail   # list the places of one count under a folder
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PRODUCT = ("components", "pipelines")
_WORDS = 4


def _trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return len(re.findall(r"[A-Za-z']+(?=[ .,;:!?]|$)", text)) >= _WORDS and " " in text
        case ast.JoinedStr():
            parts = (str(each.value) if isinstance(each, ast.Constant) else "x" for each in node.values)
            return _is_sentence(ast.Constant("".join(parts)))
    return False


def sentences() -> Iterator[str]:
    """Find checks of tests on sentences of four words or more."""
    for path, tree in _trees("tests"):
        for node in ast.walk(tree):
            match node:
                case ast.Compare():
                    compared = [node.left, *node.comparators]
                case ast.keyword(arg="match"):
                    compared = [node.value]
                case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "match" | "search" | "fullmatch")):
                    compared = list(node.args)
                case _:
                    continue
            for each in compared:
                if _is_sentence(each):
                    yield f"{path}:{each.lineno}: {ast.unparse(each)}"


def _docstrings() -> Iterator[tuple[str, str]]:
    for path, tree in _trees(*_PRODUCT):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                yield f"{path}:{node.lineno}", text.partition("\n")[0]


def not_imperative() -> Iterator[str]:
    """Find functions whose docstring does not begin with a verb in the imperative (ruff's D401)."""
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "D401", "--output-format", "concise"]
    found = subprocess.run([*ruff, *_PRODUCT], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    yield from (line for line in found.splitlines() if "D401" in line)


def questions() -> Iterator[str]:
    """Find functions whose docstring begins with What, Whether or Whose."""
    yield from (f"{place}: {line}" for place, line in _docstrings() if re.match(r"(What|Whether|Whose)\b", line))


def _repeated(places: dict[str, list[str]]) -> Iterator[str]:
    yield from (f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1)


def repeated_classes() -> Iterator[str]:
    """Find class names that are defined more than once."""
    places: dict[str, list[str]] = {}
    for path, tree in _trees(*_PRODUCT):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    yield from _repeated(places)


def repeated_modules() -> Iterator[str]:
    """Find basenames that several modules have."""
    places: dict[str, list[str]] = {}
    for path, _ in _trees(*_PRODUCT):
        if path.name not in {"__init__.py", "__main__.py"}:
            places.setdefault(path.name, []).append(str(path))
    yield from _repeated(places)


COUNTS: dict[str, Callable[[], Iterator[str]]] = {
    "sentences": sentences,
    "not-imperative": not_imperative,
    "questions": questions,
    "repeated-classes": repeated_classes,
    "repeated-modules": repeated_modules,
}


def main(arguments: list[str]) -> None:
    """Print a table of all counts, or the places of one."""
    if arguments:
        name, *prefixes = arguments
        for line in COUNTS[name]():
            if not prefixes or line.startswith(tuple(prefixes)):
                print(line)
        return
    for name, count in COUNTS.items():
        print(f"{sum(1 for _ in count()):6,}  {name}: {(count.__doc__ or '').removeprefix('Find ')}")


if __name__ == "__main__":
    main(sys.argv[1:])
