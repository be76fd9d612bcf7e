"""Page of the exit codes."""

from docs.generate.markdown import code, page, table

from gumshoe.errors import GumshoeError, RefusedError, UnavailableError, UsageError

_STATUSES: dict[type[GumshoeError], tuple[str, str]] = {
    GumshoeError: ("The command failed.", "The message says what went wrong. The same command would fail again."),
    UsageError: ("Wrong arguments, settings or input.", "The message says what to write instead."),
    RefusedError: (
        "The command worked, and the result is negative.",
        "A gate that fails, a plan that does not fit into memory, an artifact that does not match its manifest, a "
        "wrong question in `gumshoe scenarios check`.",
    ),
    UnavailableError: (
        "A server, a disk or a quota failed for now.",
        "Run the same command again: nothing is lost. Training runs continue with `--resume`. Pipelines retry such "
        "steps.",
    ),
}
"""Meaning of the exit status of each class, and what to do."""


def render_exit_codes() -> str:
    """Return the page."""
    rows = [("0", "The command succeeded.", "")]
    rows += [(str(kind.exit_status), *texts) for kind, texts in _STATUSES.items()]
    stopped = "SIGHUP (a closed terminal), SIGINT (Ctrl-C) or SIGTERM interrupted the command."
    rows.append(("129, 130, 143", stopped, "Many continue if they are run again."))
    return page(
        "Exit codes",
        "Every command ends with one of these. The error itself ends with a code in brackets: see "
        "[Error codes](errors.md).",
        table(("exit code", "meaning", "details"), ((code(status), *texts) for status, *texts in rows)),
        "Python code gets the same as classes of `gumshoe.errors`: "
        + ", ".join(f"{code(kind.__name__)} ({kind.exit_status})" for kind in _STATUSES)
        + ".",
    )
