"""Write scenarios for commands, and print what was written and which command comes next."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumshoe.artifacts.storage import split_uri
from gumshoe.errors import UsageError
from gumshoe.terminal import err, out, print_next, printable

if TYPE_CHECKING:
    from gumshoe.scenarios.scenario import ScenarioSet


def check_output(path: Path, replace: bool) -> None:
    """Check that a file can be written.

    Raises:
        UsageError: if it exists and must not be replaced, or its directory does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        fault = "is a directory" if path.is_dir() else "is in a directory that does not exist"
        raise UsageError("scenarios.invalid-output", f"output path {path} {fault}; name a file in a directory")
    if path.exists() and not replace:
        raise UsageError(
            "scenarios.output-exists", f"{path} already exists; choose another name, or overwrite it with --replace"
        )


def write_scenarios(path: Path, scenarios: "ScenarioSet") -> None:
    """Write a scenario file, atomically."""
    from gumshoe.artifacts.storage import explain_os_errors, write_atomically

    with explain_os_errors(path):
        write_atomically(path, io.BytesIO(scenarios.to_jsonl()))


def describe_set(scenarios: "ScenarioSet") -> dict[str, object]:
    """Return size, content hash and ids of a set and its splits."""
    splits = {str(split or "none"): scenarios.only(split) for split in dict.fromkeys(each.split for each in scenarios)}
    return {
        "scenarios": len(scenarios),
        "content": scenarios.content,
        "splits": {name: each.to_record().model_dump() for name, each in splits.items()},
    }


def print_summary(scenarios: "ScenarioSet", path: Path) -> None:
    """Print the number of scenarios by split, and the content hash of the set."""
    from gumshoe.scenarios.scenario import SPLITS

    counts = {split or "in no split": len(scenarios.only(split)) for split in (*SPLITS, None)}
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    out.print(f"[bold]{len(scenarios):,} scenarios[/] in {printable(path)}: {listed}", soft_wrap=True)
    err.print(f"content {scenarios.content}", soft_wrap=True)


def format_counts(counts: Mapping[Any, int]) -> str:
    """Return counts as text, e.g. `3 excluded, 1 longer answer`."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def local_path(source: str) -> Path | None:
    """Return the file that a source names, or None if it is not a file on this machine.

    >>> local_path("jsonl:/data/questions.jsonl"), local_path("s3://bucket/questions.jsonl")
    (PosixPath('/data/questions.jsonl'), None)
    """
    place = source.removeprefix("jsonl:")
    if place.startswith("hf:"):
        return None
    scheme, _, path = split_uri(place)
    return Path(path) if scheme == "file" else None


def print_next_step(scenarios: "ScenarioSet", path: Path | str, index: Path | None = None) -> None:
    """Print the command that continues: split; else check against an index; else evaluate on a checked file."""
    place = index or os.environ.get("GUMSHOE_INDEX") or "INDEX"
    if not scenarios.only("test"):
        output = (local_path(str(path)) or Path(Path(str(path)).name)).with_suffix(".split.jsonl")
        print_next("gumshoe", "scenarios", "split", path, "--out", output, "--seed", 1)
    elif index is None:
        print_next("gumshoe", "scenarios", "check", path, "--index", place)
    else:
        options = ("--index", place, "--scenarios", path, "--policy", "tiny", "--out", "measured")
        print_next("gumshoe", "evaluate", *options)
