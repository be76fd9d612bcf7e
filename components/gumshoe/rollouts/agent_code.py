"""Digest the code of an agent, so that results of other code are not taken for results of this one."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from gumshoe.plugins import find_module
from gumshoe.rollouts.agent_settings import AgentSettings

MAX_FILES = 5000
"""Maximum number of files of an agent. The code of a larger one is not digested."""
_SKIPPED = {"__pycache__", "node_modules"}
_PYTHON = re.compile(r"python[\d.]*")
_BLOCK = 1 << 20


def digest_code(settings: AgentSettings) -> str | None:
    """Return a digest of an agent's settings and files, or None if it cannot be told which files these are.

    Files of a Python agent are those of its outermost package, whatever their kind. A module without a package, and a
    script of a program, come with all files of the same kind (`*.py`, `*.js`) in their directory and below. Hidden
    directories, virtual environments and `node_modules` are left out.
    """
    files = list(islice(_find_files(settings), MAX_FILES + 1))
    if len(files) > MAX_FILES or not files:
        return None
    digest = hashlib.sha256(settings.word.encode())
    for path in sorted(set(files)):
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None
        digest.update(f"\0{path.name}\0{content}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def digest_packages() -> str:
    """Return a digest of the names and versions of all installed packages, among which are those that agents use."""
    found = sorted(f"{each.metadata['Name']}=={each.version}" for each in distributions())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _find_files(settings: AgentSettings) -> Iterator[Path]:
    if settings.name is not None:
        yield from _find_module_files(settings.name.partition(":")[0])
        return
    program, *arguments = settings.command
    found = shutil.which(program, path={**os.environ, **settings.environment}.get("PATH"))
    if found is None:
        return
    yield Path(found).resolve()
    if _PYTHON.fullmatch(Path(program).name) and "-m" in arguments[:-1]:
        yield from _find_module_files(arguments[arguments.index("-m") + 1])
    for each in arguments:
        if os.path.isfile(each):  # noqa: PTH113 - Path.is_file raises for texts that are too long for a name
            path = Path(each)
            yield from _list_files(path.resolve().parent, path.suffix) if path.suffix else [path.resolve()]


def _find_module_files(name: str) -> Iterator[Path]:
    """Yield the files of the outermost package of a module that is not a namespace package, or those with a module."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:depth]))
        if spec is None:
            return
        if spec.origin is None or spec.origin == "namespace":
            continue
        origin = Path(spec.origin)
        if spec.submodule_search_locations is not None:
            yield from _list_files(origin.resolve().parent, None)
        elif origin.is_file():
            own = Path(sys.prefix) in origin.parents
            yield from [origin] if own else _list_files(origin.resolve().parent, origin.suffix)
        return


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        find_module(name)
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _list_files(directory: Path, suffix: str | None) -> Iterator[Path]:
    """Yield the files in a directory and below, of one kind or of all kinds."""
    for place, directories, names in os.walk(directory):
        directories[:] = sorted(
            each
            for each in directories
            if not each.startswith(".") and each not in _SKIPPED and not Path(place, each, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".pyc") and suffix in (None, Path(name).suffix):
                yield Path(place, name)
