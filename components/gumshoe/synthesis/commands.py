"""`gumshoe synthesize`: generate mail, documents, and questions about existing mail."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.rewards.commands import (
    CachePath,
    CompletionPrice,
    Concurrency,
    Deadline,
    JudgeWord,
    NoCache,
    PromptPrice,
)
from gumshoe.synthesis.difficulty import Level
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable, progress

if TYPE_CHECKING:
    from gumshoe.rewards.chat_judge import JudgeModelSettings
    from gumshoe.scenarios.scenario import ScenarioSet
    from gumshoe.synthesis.from_mail import QuestionCostEstimate, QuestionReport

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Generate synthetic data for tests and training.")

Seed = Annotated[int, typer.Option(help="Random seed. The same seed gives identical files.")]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")]
Difficulty = Annotated[Level, typer.Option(help="Difficulty of the questions.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace existing files.")]


@app.callback()
def _group() -> None:
    """Generate synthetic data for tests and training."""


@app.command(epilog="gumshoe synthesize mail --seed 1 --out company")
def mail(
    seed: Seed,
    place: Out,
    mailboxes: Annotated[int, typer.Option(help="Number of mailboxes. Each belongs to one split.")] = 12,
    messages: Annotated[int, typer.Option(help="Total number of messages, divided equally.")] = 3600,
    difficulty: Difficulty = "normal",
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Generate a company's mail, DIR/mail.jsonl, and questions about it, DIR/scenarios.jsonl."""
    from gumshoe.corpus import SCENARIOS_FILE
    from gumshoe.synthesis.mailboxes import MAIL_FILE, check_size, synthesize_mail, write_mail

    check_size(mailboxes, messages)
    directory = _check_output(place, (MAIL_FILE, SCENARIOS_FILE), replace=replace)  # check before the work starts
    with progress("Generating", total=messages) as advance:
        result = synthesize_mail(seed, mailboxes, messages, difficulty, advance)
    write_mail(result, directory)
    if json:
        print_json({"messages": len(result.messages), **_describe_questions(result.scenarios)})
        return
    shown = printable(directory)
    out.print(
        f"[bold]{len(result.messages):,} messages[/] of {mailboxes:,} people at {result.company} in "
        f"{shown}/{MAIL_FILE}",
        soft_wrap=True,
    )
    _print_questions(result.scenarios, directory / SCENARIOS_FILE)
    print_next("gumshoe", "mail", "index", f"jsonl:{directory / MAIL_FILE}", "--out", directory / "index")


@app.command(epilog="gumshoe synthesize documents --seed 1 --out handbook")
def documents(
    seed: Seed,
    place: Out,
    documents: Annotated[int, typer.Option(help="Total number of documents: entries and articles.")] = 1000,
    difficulty: Difficulty = "normal",
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Generate a reference work, DIR/documents.jsonl, and questions about it, DIR/scenarios.jsonl."""
    from gumshoe.corpus import SCENARIOS_FILE
    from gumshoe.synthesis.reference_work import DOCUMENTS_FILE, check_size, synthesize_documents, write_documents

    check_size(documents)
    directory = _check_output(place, (DOCUMENTS_FILE, SCENARIOS_FILE), replace=replace)
    with progress("Generating", total=documents) as advance:
        result = synthesize_documents(seed, documents, difficulty, advance)
    write_documents(result, directory)
    if json:
        print_json(
            {"documents": len(result.documents), "subjects": result.subjects, **_describe_questions(result.scenarios)}
        )
        return
    title, shown = printable(result.title), printable(directory)
    out.print(
        f"[bold]{len(result.documents):,} documents[/] of {title}, about {result.subjects:,} subjects, in "
        f"{shown}/{DOCUMENTS_FILE}",
        soft_wrap=True,
    )
    _print_questions(result.scenarios, directory / SCENARIOS_FILE)
    print_next("gumshoe", "documents", "index", f"jsonl:{directory / DOCUMENTS_FILE}", "--out", directory / "index")


@app.command(
    epilog="""
    gumshoe synthesize questions --index index --inbox ann@example.com \\
      --model gpt-4.1 --out questions.jsonl --dry-run
    """
)
def questions(
    index: Annotated[
        Path, typer.Option("--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of a mail index.")
    ],
    inboxes: Annotated[
        list[str],
        typer.Option("--inbox", metavar="ADDRESS[,ADDRESS...]", help="Inbox to write questions about (repeatable)."),
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL[@URL]", help="Chat model that writes the questions. It receives the mail.")
    ],
    path: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file (JSONL).")],
    judge: JudgeWord = "heuristic",
    batch: Annotated[int, typer.Option(min=1, help="Messages per batch.")] = 20,
    per_batch: Annotated[int, typer.Option(min=1, max=12, help="Questions per batch.")] = 3,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum batches per inbox, drawn at random.")] = None,
    min_realism: Annotated[float, typer.Option(min=0, max=1, help="Minimum realism; others are dropped.")] = 0.3,
    max_characters: Annotated[
        int, typer.Option(min=200, help="Maximum characters shown of the text of a message.")
    ] = 5000,
    seed: Annotated[int, typer.Option(help="Random seed for styles, query dates and --limit.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimated cost and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start without confirmation.")] = False,
    json: JsonFlag = False,
) -> None:
    """Let a chat model write questions about mail, and keep those that it can answer from their sources alone.

    Prints an estimate of the cost before anything is sent. An interrupted run can be resumed with the same command.
    Exits with 75 if batches got no response.
    """
    from gumshoe.synthesis.from_mail import open_questions
    from gumshoe.synthesis.question_writer import QuestionSettings

    prices = {"prompt_price": prompt_price, "completion_price": completion_price}
    bounds = {"concurrency": concurrency, "deadline": deadline}
    settings = QuestionSettings(
        index=index,
        inboxes=tuple(
            dict.fromkeys(each.strip() for several in inboxes for each in several.split(",") if each.strip())
        ),
        model=_make_model_settings(model, cache, no_cache, {**prices, **bounds}),
        judge=judge,
        batch=batch,
        per_batch=per_batch,
        limit=limit,
        min_realism=min_realism,
        max_characters=max_characters,
        seed=seed,
    )
    with open_questions(settings, path) as result:
        estimate = result.estimate()
        if dry_run and json:
            print_json(asdict(estimate))
            return
        (out if dry_run else err).print(printable(_format_estimate(estimate, model)), soft_wrap=True)
        if dry_run:
            return
        if estimate.batches and not yes:
            _confirm()
        with progress("Batches") as advance:
            report = asyncio.run(result.run(advance))
    _print_report(report, path, json=json)
    if report.failed:
        raise UnavailableError(
            "synthesis.batches-failed",
            f"{report.failed:,} of {report.batches:,} batches failed; run the command again to retry them. First "
            f"error: {report.why}",
        )
    if not json and report.questions:
        print_next("gumshoe", "scenarios", "check", path, "--index", index)


@app.command(
    epilog="""
    gumshoe synthesize canaries --seed 1 --inbox ann@example.com \\
      --scenarios questions.jsonl --out canaries
    """
)
def canaries(
    seed: Seed,
    place: Out,
    inboxes: Annotated[
        list[str],
        typer.Option("--inbox", metavar="ADDRESS[,ADDRESS...]", help="Inbox to plant canaries in (repeatable)."),
    ],
    count: Annotated[int, typer.Option(help="Number of planted canaries, divided among the inboxes.")] = 16,
    controls: Annotated[int, typer.Option(help="Number of canaries that are planted nowhere.")] = 16,
    day: Annotated[
        datetime | None,
        typer.Option("--date", formats=["%Y-%m-%d"], help="Day of the questions; the mail is older. Default: today."),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Scenarios to copy into DIR/scenarios.jsonl, before those of the canaries."),
    ] = None,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Invent secrets to plant in training mail, to measure what a policy remembers of it.

    Writes the messages, DIR/mail.jsonl, the training questions, DIR/scenarios.jsonl, and the private record of all
    secrets, DIR/canaries.json, for `gumshoe evaluate --memorised`. Index the messages only for training.
    """
    from gumshoe.corpus import SCENARIOS_FILE
    from gumshoe.scenarios.canary_record import CANARIES_FILE
    from gumshoe.scenarios.sources import load_scenarios
    from gumshoe.synthesis.canaries import synthesize_canaries, write_canaries
    from gumshoe.synthesis.mailboxes import MAIL_FILE

    addresses = [each.strip() for several in inboxes for each in several.split(",") if each.strip()]
    made = synthesize_canaries(seed, addresses, count, controls, (day or datetime.now(UTC)).date())
    others = load_scenarios(scenarios) if scenarios else None
    directory = _check_output(
        place, (CANARIES_FILE, MAIL_FILE, SCENARIOS_FILE), [scenarios] if scenarios else [], replace=replace
    )
    write_canaries(made, directory, others)
    if json:
        print_json({"planted": count, "controls": controls, "content": made.record.content})
        return
    shown = printable(directory)
    out.print(f"[bold]{count:,} canaries[/] and {controls:,} controls in {shown}/{CANARIES_FILE}", soft_wrap=True)
    print_next("gumshoe", "mail", "index", "SOURCE", f"jsonl:{directory / MAIL_FILE}", "--out", "training-index")


@app.command(
    epilog="""
    gumshoe synthesize attacks --seed 1 --index index \\
      --scenarios questions.jsonl --out attacked
    """
)
def attacks(
    seed: Seed,
    place: Out,
    index: Annotated[
        Path, typer.Option("--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of a mail index.")
    ],
    scenarios: Annotated[
        str, typer.Option(metavar="FILE", help="Scenarios about its mail, in any format of `gumshoe scenarios load`.")
    ],
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the train and validation scenarios to attack.")
    ] = 0.5,
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Copy an index and scenarios, and deliver attack messages to the copy, to train with the reward `safe`.

    Writes DIR/index and DIR/scenarios.jsonl. Only families of the suite `train` are used, so that `gumshoe evaluate
    --attacks held-out` measures others. Test scenarios are not attacked.
    """
    from gumshoe.corpus import SCENARIOS_FILE
    from gumshoe.mail.index import MailIndex
    from gumshoe.mail.schema import index_path
    from gumshoe.scenarios.sources import load_scenarios
    from gumshoe.synthesis.attacks.training_copy import INDEX, plan_attacked_copy

    names = (SCENARIOS_FILE, str(index_path(Path(INDEX))))
    directory = _check_output(place, names, [scenarios], replace=replace)
    copy = directory / INDEX  # is replaced as a whole
    if any(Path(each).resolve().is_relative_to(copy.resolve()) for each in (scenarios, index)):
        raise UsageError("synthesis.replaces-its-input", f"{copy} has an input of this command; use another --out")
    if copy.exists() and not index_path(copy).exists():
        raise UsageError("synthesis.invalid-output", f"{copy} exists and is no index; use another --out")
    made = plan_attacked_copy(MailIndex(index), load_scenarios(scenarios), share, seed)
    with progress("Delivering attacks"):
        made.write(index, directory)
    if json:
        print_json({"attacks": made.count_families(), "scenarios": len(made.scenarios)})
        return
    out.print(
        f"[bold]{len(made.planned):,} attacks[/] on {len(made.scenarios):,} scenarios in {printable(directory)}",
        soft_wrap=True,
    )
    out.print(", ".join(f"{count:,} {family}" for family, count in made.count_families().items()), soft_wrap=True)
    data = ("--index", directory / INDEX, "--scenarios", directory / SCENARIOS_FILE)
    print_next("gumshoe", "train", *data, "--set", "rewards.functions=[{name: rubric}, {name: safe}]")


def _describe_questions(result: "ScenarioSet") -> dict[str, Any]:
    from gumshoe.scenarios.scenario import SPLITS
    from gumshoe.synthesis.mailboxes import count_kinds

    splits = {split: len(result.only(split)) for split in SPLITS}
    return {"scenarios": splits, "kinds": count_kinds(result), "content": result.content}


def _print_questions(result: "ScenarioSet", path: Path) -> None:
    facts = _describe_questions(result)
    counts = ", ".join(f"{count:,} {split}" for split, count in facts["scenarios"].items())
    out.print(f"[bold]{len(result):,} questions[/] in {printable(path)}: {counts}", soft_wrap=True)
    out.print(", ".join(f"{count:,} {kind}" for kind, count in facts["kinds"].items()), soft_wrap=True)


def _make_model_settings(
    word: str, cache: Path | None, no_cache: bool, options: dict[str, Any]
) -> "JudgeModelSettings":
    from gumshoe.model_validation import validate_model
    from gumshoe.rewards.chat_judge import JudgeModelSettings, parse_model_name

    if cache and no_cache:
        raise UsageError("synthesis.conflicting-options", "--cache and --no-cache exclude each other; use one of them")
    cache_settings = {"cache": cache} if cache or no_cache else {}
    settings = {name: value for name, value in options.items() if value is not None}
    return validate_model(
        JudgeModelSettings,
        parse_model_name(word) | cache_settings | settings,
        "synthesis.invalid-model",
        f"--model must be MODEL or MODEL@URL, got {word!r}",
    )


def _format_estimate(estimate: "QuestionCostEstimate", model: str) -> str:
    cost = "" if estimate.cost is None else f", ${estimate.cost:.2f}"
    return (
        f"{estimate.messages:,} messages in {estimate.batches:,} batches go to {model} "
        f"({estimate.finished:,} batches are finished): at most {estimate.requests:,} requests, about "
        f"{estimate.prompt_tokens:,} prompt tokens and {estimate.completion_tokens:,} completion tokens{cost} "
        "(estimated at 4 characters per token)"
    )


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "synthesis.confirmation-required",
            "cannot ask for confirmation: standard input is not a terminal; use --yes to start without asking",
        )
    typer.confirm("Start?", abort=True, err=True)


def _print_report(report: "QuestionReport", path: Path, *, json: bool) -> None:
    from gumshoe.synthesis.mailboxes import count_kinds

    kinds = count_kinds(report.questions)
    if json:
        facts = {name: value for name, value in asdict(report).items() if name != "questions"}
        print_json({"questions": len(report.questions), "kinds": kinds, "content": report.questions.content, **facts})
        return
    counts = "".join(f"{', ' if at else ': '}{count:,} {kind}" for at, (kind, count) in enumerate(kinds.items()))
    out.print(f"[bold]{len(report.questions):,} questions[/] in {printable(path)}{counts}", soft_wrap=True)
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in report.dropped.items()) or "none"
    out.print(f"dropped: {dropped}", soft_wrap=True)
    used = report.usage
    out.print(
        f"{report.finished:,} batches in {used['requests']:,} requests ({used['retried']:,} retried, "
        f"{used['unusable']:,} unusable responses), {used['cached']:,} cached responses; "
        f"{used['prompt_tokens']:,} prompt tokens and {used['completion_tokens']:,} completion tokens, "
        f"${used['cost']:.4f}",
        soft_wrap=True,
    )


def _check_output(place: str, names: Sequence[str], inputs: Sequence[str | Path] = (), *, replace: bool) -> Path:
    """Create the directory. Check that the files may be written there, and that no input would be overwritten."""
    directory = make_writable_directory(place)
    for name in names:
        target = (directory / name).resolve()
        if any(Path(each).resolve() == target for each in inputs):
            raise UsageError("synthesis.replaces-its-input", f"{target} is an input of this command; use another --out")
    there = [name for name in names if (directory / name).exists()]
    if folders := [name for name in there if (directory / name).is_dir()]:
        raise UsageError(
            "synthesis.invalid-output",
            f"{directory / folders[0]} is a directory, but a file must go there; use another --out",
        )
    if there and not replace:
        raise UsageError(
            "synthesis.output-exists",
            f"{directory} already holds {' and '.join(there)}; use another --out, or overwrite them with --replace",
        )
    return directory
