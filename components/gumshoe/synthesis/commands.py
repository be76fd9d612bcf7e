"""`gumshoe synthesize`: mail, documents, and questions about mail that is there."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.artifacts.storage import writable_directory
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
from gumshoe.terminal import JsonFlag, err, out, print_json, printable, progress

if TYPE_CHECKING:
    from gumshoe.rewards.chat_judge import JudgeModelSettings
    from gumshoe.scenarios.scenario import ScenarioSet
    from gumshoe.synthesis.from_mail import QuestionCostEstimate, QuestionReport

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Invent data to try, test and train with.")

Seed = Annotated[int, typer.Option(help="Decides everything: the same seed gives the same bytes.")]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Where the files go; made where missing.")]
Difficulty = Annotated[Level, typer.Option(help="How much lies between a question and its answer.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace files that are there.")]


@app.callback()
def _group() -> None:
    """Invent data to try, test and train with."""


@app.command()
def mail(
    seed: Seed,
    place: Out,
    mailboxes: Annotated[int, typer.Option(help="How many; each is in one split.")] = 12,
    messages: Annotated[int, typer.Option(help="How many in all, in equal parts.")] = 3600,
    difficulty: Difficulty = "normal",
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Invent a company's mail, DIR/mail.jsonl, and questions about it, DIR/scenarios.jsonl."""
    from gumshoe.scenarios.scenario import SCENARIOS
    from gumshoe.synthesis.mailboxes import MAIL, check_size, synthesize_mail, write_mail

    check_size(mailboxes, messages)
    directory = _usable(place, (MAIL, SCENARIOS), replace=replace)  # before the work, not after it
    with progress("Inventing", total=messages) as advance:
        made = synthesize_mail(seed, mailboxes, messages, difficulty, advance)
    write_mail(made, directory)
    if json:
        print_json({"messages": len(made.messages), **_facts(made.scenarios)})
        return
    shown = printable(directory)
    out.print(
        f"[bold]{len(made.messages):,} messages[/] of {mailboxes:,} people at {made.company} in {shown}/{MAIL}",
        soft_wrap=True,
    )
    _print_questions(made.scenarios, directory / SCENARIOS)


@app.command()
def documents(
    seed: Seed,
    place: Out,
    documents: Annotated[int, typer.Option(help="How many in all: entries, and articles that are none.")] = 1000,
    difficulty: Difficulty = "normal",
    replace: Replace = False,
    json: JsonFlag = False,
) -> None:
    """Invent a reference work, DIR/documents.jsonl, and questions about it, DIR/scenarios.jsonl."""
    from gumshoe.scenarios.scenario import SCENARIOS
    from gumshoe.synthesis.reference_work import DOCUMENTS, check_size, synthesize_documents, write_documents

    check_size(documents)
    directory = _usable(place, (DOCUMENTS, SCENARIOS), replace=replace)
    with progress("Inventing", total=documents) as advance:
        made = synthesize_documents(seed, documents, difficulty, advance)
    write_documents(made, directory)
    if json:
        print_json({"documents": len(made.documents), "subjects": made.subjects, **_facts(made.scenarios)})
        return
    title, shown = printable(made.title), printable(directory)
    out.print(
        f"[bold]{len(made.documents):,} documents[/] of {title}, about {made.subjects:,} things, in "
        f"{shown}/{DOCUMENTS}",
        soft_wrap=True,
    )
    _print_questions(made.scenarios, directory / SCENARIOS)


@app.command()
def questions(
    index: Annotated[Path, typer.Option("--index", envvar="GUMSHOE_INDEX", help="The directory of a mail index.")],
    inboxes: Annotated[
        list[str], typer.Option("--inbox", metavar="ADDRESS[,ADDRESS...]", help="Whose mail; may be given repeatedly.")
    ],
    model: Annotated[str, typer.Option(metavar="MODEL[@URL]", help="The chat model that writes; it is sent the mail.")],
    path: Annotated[Path, typer.Option("--out", metavar="FILE", help="Scenarios go here as JSONL.")],
    judge: JudgeWord = "heuristic",
    batch: Annotated[int, typer.Option(min=1, help="Messages shown at once.")] = 20,
    per_batch: Annotated[int, typer.Option(min=1, max=12, help="Questions asked for of a batch.")] = 3,
    limit: Annotated[int | None, typer.Option(min=1, help="Most batches of an inbox, drawn from all its time.")] = None,
    min_realism: Annotated[float, typer.Option(min=0, max=1, help="Drop questions that are less realistic.")] = 0.3,
    max_characters: Annotated[int, typer.Option(min=200, help="Longest body that is shown whole.")] = 5000,
    seed: Annotated[int, typer.Option(help="Decides styles, query dates, and what --limit draws.")] = 0,
    prompt_price: PromptPrice = None,
    completion_price: CompletionPrice = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    cache: CachePath = None,
    no_cache: NoCache = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will come to, and send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Begin without asking.")] = False,
    json: JsonFlag = False,
) -> None:
    """Have a chat model write questions about mail, and keep those that it can answer from their sources alone.

    Says what it will come to before anything is sent. Started again, it goes on where it ended; ends with 75 where
    batches got no answer.
    """
    from gumshoe.synthesis.from_mail import open_questions
    from gumshoe.synthesis.question_writer import QuestionSettings

    given = {"prompt_price": prompt_price, "completion_price": completion_price}
    bounds = {"concurrency": concurrency, "deadline": deadline}
    settings = QuestionSettings(
        index=index,
        inboxes=tuple(
            dict.fromkeys(each.strip() for several in inboxes for each in several.split(",") if each.strip())
        ),
        model=_chat_model(model, cache, no_cache, {**given, **bounds}),
        judge=judge,
        batch=batch,
        per_batch=per_batch,
        limit=limit,
        min_realism=min_realism,
        max_characters=max_characters,
        seed=seed,
    )
    with open_questions(settings, path) as made:
        estimate = made.estimate()
        if dry_run and json:
            print_json(asdict(estimate))
            return
        (out if dry_run else err).print(printable(_foreseen(estimate, model)), soft_wrap=True)
        if dry_run:
            return
        if estimate.batches and not yes:
            _ask_leave()
        with progress("Batches") as advance:
            report = asyncio.run(made.run(advance))
    _tell(report, path, json=json)
    if report.failed:
        raise UnavailableError(
            "synthesis.batches-failed",
            f"{report.failed:,} of {report.batches:,} batches failed; run the command again to retry them. First "
            f"error: {report.why}",
        )


def _facts(made: "ScenarioSet") -> dict[str, Any]:
    from gumshoe.scenarios.scenario import SPLITS
    from gumshoe.synthesis.mailboxes import kinds_of

    splits = {split: len(made.only(split)) for split in SPLITS}
    return {"scenarios": splits, "kinds": kinds_of(made), "content": made.content}


def _print_questions(made: "ScenarioSet", path: Path) -> None:
    facts = _facts(made)
    counts = ", ".join(f"{count:,} {split}" for split, count in facts["scenarios"].items())
    out.print(f"[bold]{len(made):,} questions[/] in {printable(path)}: {counts}", soft_wrap=True)
    out.print(", ".join(f"{count:,} {kind}" for kind, count in facts["kinds"].items()), soft_wrap=True)


def _chat_model(word: str, cache: Path | None, no_cache: bool, given: dict[str, Any]) -> "JudgeModelSettings":
    from pydantic import ValidationError

    from gumshoe.errors import faults_of
    from gumshoe.rewards.chat_judge import JudgeModelSettings, model_named

    if cache and no_cache:
        raise UsageError("synthesis.conflicting-options", "--cache and --no-cache exclude each other; use one of them")
    kept = {"cache": cache} if cache or no_cache else {}
    said = {name: value for name, value in given.items() if value is not None}
    try:
        return JudgeModelSettings.model_validate(model_named(word) | kept | said)
    except ValidationError as error:
        raise UsageError(
            "synthesis.invalid-model", f"--model must be MODEL or MODEL@URL, got {word!r}: {faults_of(error)}"
        ) from None


def _foreseen(estimate: "QuestionCostEstimate", model: str) -> str:
    cost = "" if estimate.cost is None else f", ${estimate.cost:.2f}"
    return (
        f"{estimate.messages:,} messages in {estimate.batches:,} batches go to {model} "
        f"({estimate.finished:,} batches are finished): at most {estimate.requests:,} requests, about "
        f"{estimate.prompt_tokens:,} tokens to read and {estimate.completion_tokens:,} to write{cost} "
        "(characters / 4; what it writes is a guess)"
    )


def _ask_leave() -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "synthesis.confirmation-required",
            "cannot ask for confirmation: standard input is not a terminal; use --yes to start without asking",
        )
    typer.confirm("Begin?", abort=True, err=True)


def _tell(report: "QuestionReport", path: Path, *, json: bool) -> None:
    from gumshoe.synthesis.mailboxes import kinds_of

    kinds = kinds_of(report.questions)
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
        f"{report.finished:,} batches in {used['requests']:,} requests ({used['retried']:,} sent again, "
        f"{used['unusable']:,} answers unusable), {used['cached']:,} answers from the cache; "
        f"{used['prompt_tokens']:,} tokens read and {used['completion_tokens']:,} written, ${used['cost']:.4f}",
        soft_wrap=True,
    )


def _usable(place: str, names: Sequence[str], *, replace: bool) -> Path:
    """The directory, if files of those names may be written there."""
    directory = writable_directory(place)
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
