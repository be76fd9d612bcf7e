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
        raise UsageError(
            "documents.missing-dependency",
            f"{doing} requires {', '.join(missing)}: pip install 'gumshoe-agents[documents]'",
        )
