"""`gumshoe scenarios`: add, load, split, check and sort."""

import io
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.completion import complete_split, complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.scenarios.scenario import ScenarioSet, Split

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Write, load, split, check and sort questions with known answers.",
)

_MIN_TO_SPLIT = 10  # with fewer scenarios, the suggested next step is to add more

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        autocompletion=complete_words("jsonl:", "hf:"),
        help="Scenarios: a JSONL file (path, file:// or s3://, optionally .gz), hf:DATASET or hf:DATASET@SPLIT, e.g. "
        "hf:corbt/enron_emails_sample_questions or hf:lavita/MedQuAD.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file (JSONL).")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing file.")]
Index = Annotated[
    Path,
    typer.Option("--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of an index of mail or documents."),
]


@app.command(
    epilog="""
    gumshoe scenarios add questions.jsonl --index index --inbox ann@example.com
    """
)
def add(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL file to append to (created if missing).")],
    index: Index,
    inbox: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Inbox that the questions are about (mail only). Default: ask for it."),
    ] = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATTERN",
            help="Collections that the questions may read (repeatable). Required if the index has collections.",
        ),
    ] = None,
) -> None:
    """Write questions of your own: search, read what was found, then enter the question and its answer.

    Each question is checked as by `gumshoe scenarios check` before it is added. Enter q or press Ctrl-D to stop. The
    answers to the prompts can also be piped in, one per line; then the command exits with 3 if a scenario was rejected.
    """
    from gumshoe.scenarios.interview import Interview, InterviewOverError
    from gumshoe.scenarios.scenario import ScenarioSet

    _check_output(path, replace=True)
    added, rejected = 0, list[str]()
    with suppress(InterviewOverError):
        interview = Interview.open(path, index, inbox, tuple(collections) if collections else None)
        added, rejected = interview.run()
    out.print(f"[bold]{added:,} scenarios[/] added to {printable(path)}", soft_wrap=True)
    if rejected and not (sys.stdin is not None and sys.stdin.isatty()):
        raise RefusedError(
            "scenarios.rejected",
            f"{len(rejected):,} of {added + len(rejected):,} scenarios were rejected; correct them. First: "
            f"{rejected[0]}",
        )
    if not added:
        return
    found = ScenarioSet.of(interview.existing)
    if len(found) < _MIN_TO_SPLIT and not found.only("test"):
        named = [word for each in collections or () for word in ("--collections", each)]
        named += ["--inbox", inbox] if inbox else []
        print_next("gumshoe", "scenarios", "add", path, "--index", index, *named)
    else:
        _print_next_step(found, path, index)


@app.command(
    epilog="""
    gumshoe scenarios load hf:corbt/enron_emails_sample_questions \\
      --out questions.jsonl --min-realism 0.3 --limit train=500
    """
)
def load(
    source: Source,
    path: Out,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT", autocompletion=complete_split, help="Only this split (repeatable)."),
    ] = None,
    min_messages: Annotated[int, typer.Option(min=0, help="Minimum number of sources.")] = 0,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Maximum number of sources.")] = None,
    max_answer: Annotated[
        int | None,
        typer.Option(min=1, metavar="WORDS", help="Maximum length of the reference answer, in words."),
    ] = None,
    min_realism: Annotated[float, typer.Option(min=0, max=1, help="Minimum realism (how_realistic).")] = 0,
    inbox: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="Only this inbox (repeatable).")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="ID", help="Exclude this scenario (repeatable).")] = None,
    exclude_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Exclude the ids in this file, one per line.")
    ] = None,
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="Shuffle with this seed.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT=N", help="Maximum number for a split, e.g. train=500 (repeatable)."),
    ] = None,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Load scenarios from a file or a dataset, optionally filter them, and write them to one file."""
    from gumshoe.scenarios.scenario import parse_split
    from gumshoe.scenarios.sources import Selection, load_scenarios

    selection = Selection(
        splits=frozenset(map(parse_split, split or [])),
        min_messages=min_messages,
        max_messages=max_messages,
        max_answer=max_answer,
        min_realism=min_realism,
        inboxes=frozenset(inbox or []),
        exclude=frozenset([*(exclude or []), *(_read_ids(exclude_from) if exclude_from else [])]),
        shuffle=shuffle,
        limits=dict(map(_parse_limit, limit or [])),
    )
    _check_output(path, replace)
    unusable = Counter[str]()
    taken, left_out = selection.apply(load_scenarios(source, unusable))
    left_out += unusable
    if not taken:
        raise UsageError(
            "scenarios.none-selected",
            f"no scenario in {source} passes the filters (left out: {_format_counts(left_out)}); loosen them",
        )
    _write_scenarios(path, taken)
    if json:
        print_json({**_describe_set(taken), "left_out": dict(left_out)})
        return
    _print_summary(taken, path)
    if left_out:
        out.print(f"excluded: {_format_counts(left_out)}", soft_wrap=True)
    _print_next_step(taken, path)


@app.command(name="split", epilog="gumshoe scenarios split questions.jsonl --out split.jsonl --seed 1")
def split_command(
    source: Source,
    path: Out,
    seed: Annotated[int, typer.Option(help="Random seed.")],
    validation: Annotated[float, typer.Option(help="Share of the validation split (selects the checkpoint).")] = 0.1,
    test: Annotated[
        float | None, typer.Option(help="Share of the test split (default: 0.15 without --keep-test).")
    ] = None,
    keep_test: Annotated[
        bool,
        typer.Option("--keep-test", help="Keep the existing test split, and drop scenarios that overlap with it."),
    ] = False,
    by_inbox: Annotated[bool, typer.Option("--by-inbox", help="Keep all questions of an inbox in one split.")] = False,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Split scenarios into train, validation and test without leaks.

    Scenarios that share a source or a question, directly or indirectly, stay in one split. The same scenarios and seed
    give the same splits.
    """
    from gumshoe.scenarios.sources import load_scenarios
    from gumshoe.scenarios.splitting import split_scenarios

    if keep_test and test is not None:
        raise UsageError(
            "scenarios.conflicting-options",
            "--keep-test (keep the existing test split) and --test (make a new one) exclude each other; use one",
        )
    _check_output(path, replace)
    scenarios = load_scenarios(source)
    share = 0.15 if test is None else test
    result, report = split_scenarios(
        scenarios, validation=validation, test=share, seed=seed, by_inbox=by_inbox, keep_test=keep_test
    )
    _write_scenarios(path, result)
    if json:
        print_json({**_describe_set(result), **asdict(report)})
        return
    _print_summary(result, path)
    out.print(
        f"{report.groups:,} independent groups, the largest with {report.largest_group:,} scenarios"
        + (f"; dropped {report.dropped:,} that overlap with the test split" if keep_test else ""),
        soft_wrap=True,
    )
    _print_next_step(result, path)


@app.command(
    epilog="""
    gumshoe scenarios check questions.jsonl --index index
    gumshoe scenarios check questions.jsonl --index index --drop
    """
)
def check(
    source: Source,
    index: Index,
    drop: Annotated[bool, typer.Option("--drop", help="Write the usable scenarios to a file.")] = False,
    path: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Output file of --drop (default: NAME.clean.jsonl)."),
    ] = None,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Check that questions can be answered from their inbox or the documents, and that nothing leaks.

    Exits with 3 if there are problems, unless --drop is given. A scenario with several sources loses only the invalid
    ones, unless it needs all of them.
    """
    from gumshoe.scenarios.check import check_scenarios
    from gumshoe.scenarios.sources import read_scenarios

    if path is not None and not drop:
        raise UsageError(
            "scenarios.conflicting-options", "--out has no effect without --drop; add --drop, or leave out --out"
        )
    if drop:
        path = path or _clean_path(source)
        _check_output(path, replace)
    with progress("Checking") as advance:
        report = check_scenarios(read_scenarios(source), index, advance)
    if not report.lines:
        raise UsageError("scenarios.no-scenarios", f"{source} holds no scenarios; check the source")
    lost = report.lines - len(report.clean)
    written = path if report.clean else None
    if written is not None:
        _write_scenarios(written, report.clean)
    if json:
        findings = [asdict(finding) for finding in report.findings]
        facts = {"lines": report.lines, "mended": report.corrected, "counts": report.counts, "findings": findings}
        print_json({**facts, **_describe_set(report.clean)})
    else:
        for finding in report.findings:
            out.print(
                f"{printable(finding.where)}: [yellow]{finding.problem}[/]: {printable(finding.text)}", soft_wrap=True
            )
        counts = _format_counts(report.counts) or "no problems"
        out.print(f"[bold]{report.lines:,} scenarios checked[/]: {counts}", soft_wrap=True)
        if written is not None:
            _print_summary(report.clean, written)
            out.print(f"{lost:,} dropped, {report.corrected:,} with corrected ids")
    if drop and written is None:
        raise RefusedError(
            "scenarios.none-usable",
            f"no scenario in {source} is usable, so {path} was not written; see the findings above",
        )
    if report.findings and not drop:
        raise RefusedError(
            "scenarios.check-failed",
            f"{lost + report.corrected:,} of {report.lines:,} scenarios have problems; correct them, or write the "
            "others to a file with --drop",
        )
    if not json:
        _print_next_step(report.clean, path or source, index)


@app.command(
    epilog="""
    gumshoe scenarios sort questions.jsonl --by measured --out sorted.jsonl
    """
)
def sort(
    source: Source,
    by: Annotated[
        Path,
        typer.Option(
            "--by",
            metavar="DIR",
            help="Output of `gumshoe evaluate` on these scenarios, by any policy. Several samples of each are better.",
        ),
    ],
    path: Out,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Sort scenarios from easy to hard, by the mean reward that a policy had.

    For `data.order: given`, with which training begins with the easy ones. Scenarios that were not evaluated come last,
    in their order.
    """
    from gumshoe.scenarios.reward_order import mean_rewards, sort_by_reward
    from gumshoe.scenarios.sources import load_scenarios

    _check_output(path, replace)
    scenarios = load_scenarios(source)
    rewards = mean_rewards(by)
    result = sort_by_reward(scenarios, rewards)
    _write_scenarios(path, result)
    known = sum(each.id in rewards for each in result)
    if json:
        print_json({**_describe_set(result), "evaluated": known})
        return
    _print_summary(result, path)
    out.print(f"{known:,} of {len(result):,} were evaluated", soft_wrap=True)


def _print_next_step(scenarios: "ScenarioSet", path: Path | str, index: Path | None = None) -> None:
    """Print the command that continues: split; else check against an index; else evaluate on a checked file."""
    place = index or os.environ.get("GUMSHOE_INDEX") or "INDEX"
    if not scenarios.only("test"):
        output = Path(str(path).removeprefix("jsonl:")).with_suffix(".split.jsonl")
        print_next("gumshoe", "scenarios", "split", path, "--out", output, "--seed", 1)
    elif index is None:
        print_next("gumshoe", "scenarios", "check", path, "--index", place)
    else:
        options = ("--index", place, "--scenarios", path, "--policy", "tiny", "--out", "measured")
        print_next("gumshoe", "evaluate", *options)


def _parse_limit(text: str) -> tuple["Split", int]:
    from gumshoe.scenarios.scenario import parse_split

    name, _, number = text.partition("=")
    if not number.isdecimal():
        raise UsageError(
            "scenarios.invalid-limit", f"--limit must be a split and a number, e.g. train=500, got {text!r}"
        )
    return parse_split(name), int(number)


def _read_ids(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "scenarios.ids-unreadable", f"cannot read {path} ({error}); write one id per line, in UTF-8"
        ) from None


def _clean_path(source: str) -> Path:
    """Return `questions.clean.jsonl` for `questions.jsonl` or `questions.jsonl.gz`."""
    place = source.removeprefix("jsonl:")
    if "://" in place or place.startswith("hf:"):
        raise UsageError(
            "scenarios.no-output-path", f"{source} is not a local file, so --drop has no default path; use --out FILE"
        )
    name = Path(place).name.removesuffix(".gz").removesuffix(".jsonl")
    return Path(place).with_name(f"{name}.clean.jsonl")


def _check_output(path: Path, replace: bool) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        fault = "is a directory" if path.is_dir() else "is in a directory that does not exist"
        raise UsageError("scenarios.invalid-output", f"output path {path} {fault}; name a file in a directory")
    if path.exists() and not replace:
        raise UsageError(
            "scenarios.output-exists", f"{path} already exists; choose another name, or overwrite it with --replace"
        )


def _write_scenarios(path: Path, scenarios: "ScenarioSet") -> None:
    from gumshoe.artifacts.storage import explain_os_errors, write_atomically

    with explain_os_errors(path):
        write_atomically(path, io.BytesIO(scenarios.to_jsonl()))


def _describe_set(scenarios: "ScenarioSet") -> dict[str, object]:
    """Return size, content hash and ids of a set and its splits."""
    splits = {str(split or "none"): scenarios.only(split) for split in dict.fromkeys(each.split for each in scenarios)}
    return {
        "scenarios": len(scenarios),
        "content": scenarios.content,
        "splits": {name: each.to_record().model_dump() for name, each in splits.items()},
    }


def _print_summary(scenarios: "ScenarioSet", path: Path) -> None:
    from gumshoe.scenarios.scenario import SPLITS

    counts = {split or "in no split": len(scenarios.only(split)) for split in (*SPLITS, None)}
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    out.print(f"[bold]{len(scenarios):,} scenarios[/] in {printable(path)}: {listed}", soft_wrap=True)
    err.print(f"content {scenarios.content}", soft_wrap=True)


def _format_counts(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
