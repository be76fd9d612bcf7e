"""`gumshoe scenarios`: add, load, split, check, sort, and those from feedback."""

import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.completion import complete_split, complete_words
from gumshoe.errors import RefusedError, UsageError
from gumshoe.scenarios.command_output import (
    check_output,
    describe_set,
    format_counts,
    local_path,
    print_next_step,
    print_summary,
    write_scenarios,
)
from gumshoe.scenarios.feedback_command import from_feedback
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.scenarios.scenario import Split

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Write, load, split, check and sort questions with known answers.",
)

app.command(
    name="from-feedback",
    epilog="""
    gumshoe scenarios from-feedback s3://bucket/project --since 90d \\
      --index index --out feedback.jsonl
    """,
)(from_feedback)

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
    gumshoe scenarios add questions.jsonl --index index --inbox ann@example.com \\
      --unanswerable
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
    unanswerable: Annotated[
        bool,
        typer.Option("--unanswerable", help="Write questions that no message or document answers."),
    ] = False,
) -> None:
    """Write questions of your own: search, read what was found, then enter the question and its answer.

    With --unanswerable, enter the question first, then search to see that nothing answers it.

    Each question is checked as by `gumshoe scenarios check` before it is added. Enter q or press Ctrl-D to stop. The
    answers to the prompts can also be piped in, one per line; then the command exits with 3 if a scenario was rejected.
    """
    from gumshoe.scenarios.interview import Interview, InterviewOverError
    from gumshoe.scenarios.scenario import ScenarioSet

    check_output(path, replace=True)
    added, rejected = 0, list[str]()
    with suppress(InterviewOverError):
        interview = Interview.open(
            path, index, inbox, tuple(collections) if collections else None, unanswerable=unanswerable
        )
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
        named += ["--unanswerable"] if unanswerable else []
        print_next("gumshoe", "scenarios", "add", path, "--index", index, *named)
    else:
        print_next_step(found, path, index)


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
    check_output(path, replace)
    unusable = Counter[str]()
    taken, left_out = selection.apply(load_scenarios(source, unusable))
    left_out += unusable
    if not taken:
        raise UsageError(
            "scenarios.none-selected",
            f"no scenario in {source} passes the filters (left out: {format_counts(left_out)}); loosen them",
        )
    write_scenarios(path, taken)
    if json:
        print_json({**describe_set(taken), "left_out": dict(left_out)})
        return
    print_summary(taken, path)
    if left_out:
        out.print(f"excluded: {format_counts(left_out)}", soft_wrap=True)
    print_next_step(taken, path)


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
    check_output(path, replace)
    scenarios = load_scenarios(source)
    share = 0.15 if test is None else test
    result, report = split_scenarios(
        scenarios, validation=validation, test=share, seed=seed, by_inbox=by_inbox, keep_test=keep_test
    )
    write_scenarios(path, result)
    if json:
        print_json({**describe_set(result), **asdict(report)})
        return
    print_summary(result, path)
    out.print(
        f"{report.groups:,} independent groups, the largest with {report.largest_group:,} scenarios"
        + (f"; dropped {report.dropped:,} that overlap with the test split" if keep_test else ""),
        soft_wrap=True,
    )
    print_next_step(result, path)


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
        check_output(path, replace)
    with progress("Checking") as advance:
        report = check_scenarios(read_scenarios(source), index, advance)
    if not report.lines:
        raise UsageError("scenarios.no-scenarios", f"{source} holds no scenarios; check the source")
    lost = report.lines - len(report.clean)
    written = path if report.clean else None
    if written is not None:
        write_scenarios(written, report.clean)
    if json:
        findings = [asdict(finding) for finding in report.findings]
        facts = {"lines": report.lines, "mended": report.corrected, "counts": report.counts, "findings": findings}
        print_json({**facts, **describe_set(report.clean)})
    else:
        for finding in report.findings:
            out.print(
                f"{printable(finding.where)}: [yellow]{finding.problem}[/]: {printable(finding.text)}", soft_wrap=True
            )
        counts = format_counts(report.counts) or "no problems"
        out.print(f"[bold]{report.lines:,} scenarios checked[/]: {counts}", soft_wrap=True)
        if written is not None:
            print_summary(report.clean, written)
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
        print_next_step(report.clean, path or source, index)


@app.command(
    epilog="""
    gumshoe scenarios sort questions.jsonl --by measured --out sorted.jsonl
    """
)
def sort(
    source: Source,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="DIR[#NAME]",
            help="Output of `gumshoe evaluate --split train` on these scenarios, best by the policy that training "
            "starts from. Several samples of each are better. NAME is a policy, if there are several.",
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

    check_output(path, replace)
    scenarios = load_scenarios(source)
    rewards = mean_rewards(by)
    result = sort_by_reward(scenarios, rewards)
    write_scenarios(path, result)
    known = sum(each.id in rewards for each in result)
    if known > 1 and len({rewards[each.id] for each in result if each.id in rewards}) == 1:
        err.print(
            f"[bold yellow]warning:[/] all {known:,} evaluated scenarios have the same mean reward, so their order "
            "says nothing about their difficulty; evaluate several samples of each, or another policy",
            soft_wrap=True,
        )
    if json:
        print_json({**describe_set(result), "evaluated": known})
        return
    print_summary(result, path)
    out.print(f"{known:,} of {len(result):,} were evaluated", soft_wrap=True)


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
    path = local_path(source)
    if path is None:
        raise UsageError(
            "scenarios.no-output-path", f"{source} is not a local file, so --drop has no default path; use --out FILE"
        )
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    return path.with_name(f"{name}.clean.jsonl")
