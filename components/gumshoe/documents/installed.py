"""What the extra `documents` brings, where it is needed."""

from importlib.util import find_spec

from gumshoe.errors import UsageError


def check_installed(doing: str, libraries: tuple[str, ...]) -> None:
    """
    Raises:
        UsageError: some of the libraries are not installed.
    """
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise UsageError(f"{doing} needs {', '.join(missing)}; install with: pip install 'gumshoe[documents]'")
