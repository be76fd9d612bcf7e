"""Give the command that installs what is missing, as it works in this environment."""

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "gumshoe-agents"
"""Name of the distribution. The import name and the command are `gumshoe`."""


def install_command(*packages: str, extra: str | None = None) -> str:
    """Return the shell command that installs packages, and an extra of Gumshoe, for the running interpreter.

    >>> install_command("torch", extra="cpu")  # if Gumshoe was installed from a package index
    "pip install torch 'gumshoe-agents[cpu]'"
    """
    own = [] if extra is None else _describe_distribution(extra)
    return shlex.join([*_find_pip(), "install", *packages, *own])


def _find_pip() -> list[str]:
    """Return `pip` if the shell finds the one of this interpreter, else the interpreter's module."""
    found = shutil.which("pip")
    is_own = found is not None and Path(found).parent == Path(sys.executable).parent
    return ["pip"] if is_own else [sys.executable, "-m", "pip"]


def _describe_distribution(extra: str) -> list[str]:
    """Return the arguments that name Gumshoe: its directory, if it was installed from one (PEP 610), or its name."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    source = json.loads(text) if text else {}
    if "dir_info" not in source:
        return [f"{DISTRIBUTION}[{extra}]"]
    place = f"{unquote(urlsplit(source['url']).path)}[{extra}]"
    return ["-e", place] if source["dir_info"].get("editable") else [place]
