"""Generate questions about real mail, as ART-E did (https://openpipe.ai/blog/art-e-mail-agent).

A chat model reads a batch of an inbox's messages and writes questions. Then it answers each question from its sources
alone; questions with a different answer are dropped. Guarantees:

- Every message is listed and read through its inbox. Mail reaches the model as data, under ids that are valid only in
  its batch.
- Each finished batch is a line of FILE.progress, and FILE is generated from these lines only, in the order of batches.
  The result is the same however often a run is killed or a server fails.
"""

import asyncio
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from gumshoe.artifacts.storage import explain_os_errors, open_locked_file, write_atomically
from gumshoe.errors import UsageError
from gumshoe.json_text import load_json
from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_arguments import check_address
from gumshoe.rewards.judge import JudgeError
from gumshoe.rewards.judge_registry import model_of
from gumshoe.rewards.reward import gather_all
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, seeded_sort_key
from gumshoe.synthesis.question_writer import (
    SOLVE,
    STYLES,
    VERSION,
    Batch,
    FinishedBatch,
    QuestionSettings,
    QuestionWriter,
)
from gumshoe.synthesis.rng import Rng
from gumshoe.terminal import Advance

_MIN_SIMILARITY = 0.6  # Jaccard similarity of the words of two questions with a common source or answer
_CHARACTERS_PER_TOKEN = 4  # rule of thumb
_QUESTION_CHARACTERS, _ANSWER_CHARACTERS, _JUDGE_CHARACTERS = (
    500,
    300,
    2000,
)  # estimated characters of a written, an answered and a judged question


@dataclass(frozen=True, slots=True)
class QuestionCostEstimate:
    """Estimated cost of a run, before anything is sent."""

    batches: int
    """Batches that will be requested."""
    finished: int
    """Batches that an earlier run finished."""
    messages: int
    requests: int
    """Maximum number, if each question has one source, without retries."""
    prompt_tokens: int
    completion_tokens: int
    """Maximum number, with four characters per token and an estimate of the model's output."""
    cost: float | None
    """In dollars. None if the price is unknown."""


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """The result of a run."""

    questions: ScenarioSet
    """All questions in the file, including those of earlier runs."""
    dropped: dict[str, int]
    """Dropped questions by reason, most frequent first."""
    batches: int
    finished: int
    """Batches finished in this run."""
    failed: int
    """Batches without a response. The next run retries them."""
    why: str
    """Error of the first failed batch."""
    usage: dict[str, float]
    """Usage of this run, including the judge's: the fields of `Usage`."""


@dataclass(slots=True)
class MailQuestions:
    """Generate the questions of one file, which is locked. Created by `open_questions`."""

    _settings: QuestionSettings
    _path: Path
    _batches: list[Batch]
    _writer: QuestionWriter
    _progress: BinaryIO
    _header: bytes
    _finished: dict[tuple[str, int], FinishedBatch]
    _failures: list[str] = field(default_factory=list)

    @property
    def _missing(self) -> list[Batch]:
        return [each for each in self._batches if (each.inbox, each.number) not in self._finished]

    def estimate(self) -> QuestionCostEstimate:
        """Estimate the cost of the missing batches. Nothing is sent."""
        settings, missing = self._settings, self._missing
        judged = 0 if model_of(self._writer.judge) is None else _JUDGE_CHARACTERS
        characters = 0.0
        for batch in missing:
            shown = len(self._writer.format_messages(batch.inbox, batch.message_ids))
            source = shown / len(batch.message_ids)
            characters += len(self._writer.make_system_prompt(batch)) + shown
            characters += settings.per_batch * (len(SOLVE) + source + _QUESTION_CHARACTERS + judged)
        questions = len(missing) * settings.per_batch
        read = round(characters / _CHARACTERS_PER_TOKEN)
        written = (
            questions
            * (_QUESTION_CHARACTERS + _ANSWER_CHARACTERS + (_ANSWER_CHARACTERS if judged else 0))
            // _CHARACTERS_PER_TOKEN
        )
        model = settings.model
        cost = (read * model.prompt_price + written * model.completion_price) / 1e6
        return QuestionCostEstimate(
            batches=len(missing),
            finished=len(self._batches) - len(missing),
            messages=sum(len(each.message_ids) for each in missing),
            requests=len(missing) + questions * (2 if judged else 1),
            prompt_tokens=read,
            completion_tokens=written,
            cost=cost if model.prompt_price or model.completion_price else None,
        )

    async def run(self, advance: Advance) -> QuestionReport:
        """Generate the missing questions, and write the file.

        Raises:
            UsageError: if the server does not know the model or the API key.
            StorageError: if the file cannot be written.
        """
        missing = self._missing
        advance(total=len(missing))
        slots = asyncio.Semaphore(self._settings.model.concurrency)  # otherwise all batches would start at once

        async def one(batch: Batch) -> None:
            async with slots:
                try:
                    self._save(await self._writer.write(batch))
                except JudgeError as error:
                    self._failures.append(error.message_with_code)
            advance(1)

        try:
            await gather_all(map(one, missing))
        finally:
            await self._writer.aclose()
            questions, dropped = self._collect()
            if self._finished:
                with explain_os_errors(self._path):
                    write_atomically(self._path, io.BytesIO(questions.to_jsonl()))
        failed = len(self._failures)
        why = self._failures[0] if failed else ""
        counts = (len(self._batches), len(missing) - failed, failed)
        return QuestionReport(questions, dict(dropped.most_common()), *counts, why, self._writer.usage)

    def _save(self, finished: FinishedBatch) -> None:
        line = f"{finished.model_dump_json(exclude_none=True)}\n".encode()
        with explain_os_errors(self._path):
            self._progress.write(line if self._finished else self._header + line)
            self._progress.flush()
            os.fsync(self._progress.fileno())
        self._finished[finished.inbox, finished.number] = finished

    def _collect(self) -> tuple[ScenarioSet, Counter[str]]:
        """Return the questions for the file, and the number of dropped ones by reason."""
        done = [self._finished.get((each.inbox, each.number)) for each in self._batches]
        dropped = Counter[str]()
        for each in done:
            dropped.update(each.dropped if each else {})
        questions = [question for each in done if each for question in each.questions]
        kept = drop_near_duplicates(questions)
        if len(kept) < len(questions):
            dropped["near-duplicate"] = len(questions) - len(kept)
        return ScenarioSet.of(kept), dropped


@contextmanager
def open_questions(settings: QuestionSettings, path: Path) -> Iterator[MailQuestions]:
    """Open a new or existing file of questions. An incomplete line left by a killed run is removed.

    Raises:
        UsageError: if the settings are invalid, or differ from those that the file was started with; if the file
            contains something else, or another process writes to it; if the model's API key is missing.
        GumshoeError: if the index does not exist, or cannot be read.
    """
    if path.is_dir() or path.suffix == ".gz" or not path.absolute().parent.is_dir():
        raise UsageError(
            "synthesis.invalid-output",
            f"output path {path} cannot be used; name an uncompressed file in an existing directory",
        )
    index = MailIndex(settings.index)
    settings = replace(
        settings, inboxes=tuple(dict.fromkeys(check_address("inbox", each) for each in settings.inboxes))
    )
    batches, mail = _plan_batches(index, settings)
    progress = path.with_name(f"{path.name}.progress")
    header = json.dumps(_list_decisive_settings(settings, mail)).encode() + b"\n"
    writer = QuestionWriter(settings, index)
    with ExitStack() as stack:
        with explain_os_errors(progress):
            file = stack.enter_context(_open_progress(progress))
            finished = _read_progress(file, progress, header)
        own_lines = {each.to_json().encode() for line in finished.values() for each in line.questions}
        if path.exists() and not own_lines.issuperset(path.read_bytes().splitlines()):
            raise UsageError(
                "synthesis.foreign-output",
                f"{path} holds lines that this command did not write; use another file, or move it away",
            )
        yield MailQuestions(settings, path, batches, writer, file, header, finished)


def drop_near_duplicates(questions: Iterable[Scenario]) -> list[Scenario]:
    """Return the questions without near-duplicates of an earlier one about the same inbox.

    Near-duplicates have the same words in any order. With a common source or answer, a Jaccard similarity of 0.6 is
    enough. Otherwise two different questions may differ in a single word.
    """
    kept: list[Scenario] = []
    before: dict[str | None, list[tuple[set[str], set[str]]]] = {}
    for each in questions:
        words = set(each.plain_question.split())
        keys = {*each.sources, " ".join(each.answer.casefold().split()).strip(" .")}
        others = before.setdefault(each.inbox_address, [])
        if not any(
            len(words & other) >= (1 if keys.isdisjoint(other_keys) else _MIN_SIMILARITY) * len(words | other)
            for other, other_keys in others
        ):
            kept.append(each)
            others.append((words, keys))
    return kept


def _plan_batches(index: MailIndex, settings: QuestionSettings) -> tuple[list[Batch], str]:
    """Return the batches to request, by inbox and date, and a digest of the mail."""
    batches: list[Batch] = []
    digest = hashlib.sha256()
    for inbox in settings.inboxes:
        listed = [(each, sent) for each, sent in index.list_messages(inbox) if sent]
        if not listed:
            raise UsageError("synthesis.no-mail", f"{settings.index} holds no dated mail of {inbox}; check the address")
        digest.update(json.dumps([(each, str(sent)) for each, sent in listed]).encode())
        turn = Rng(settings.seed, inbox).below(len(STYLES))
        parts = [listed[start : start + settings.batch] for start in range(0, len(listed), settings.batch)]
        numbers = sorted(range(len(parts)), key=lambda each: seeded_sort_key(settings.seed, f"{inbox} {each}"))
        for number in sorted(numbers[: settings.limit]):
            first = turn + number * settings.per_batch
            styles = tuple(list(STYLES)[(first + each) % len(STYLES)] for each in range(settings.per_batch))
            ids = tuple(each for each, _ in parts[number])
            batches.append(Batch(inbox, number + 1, ids, parts[number][-1][1].date(), styles))
    return batches, digest.hexdigest()


def _list_decisive_settings(settings: QuestionSettings, mail: str) -> dict[str, Any]:
    """Return the settings that affect a batch's questions: not the models' URLs or speed, or the number of batches."""
    fields = {name: value for name, value in asdict(settings).items() if name not in {"index", "limit", "model"}}
    names = {"model": settings.model.model, "judge": settings.judge.partition("@")[0], "mail": mail}
    return {**fields, **names, "inboxes": list(settings.inboxes), "version": VERSION}


@contextmanager
def _open_progress(progress: Path) -> Iterator[BinaryIO]:
    """Open the progress file for reading and appending. It is deleted if it stays empty."""
    with open_locked_file(progress) as file:
        try:
            yield file
        finally:
            if not os.fstat(file.fileno()).st_size:  # nothing was requested
                progress.unlink(missing_ok=True)


def _read_progress(file: BinaryIO, path: Path, header: bytes) -> dict[tuple[str, int], FinishedBatch]:
    """Return the batches in a progress file, after removing an incomplete last line."""
    file.seek(0)
    data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    first_line, *lines = complete.splitlines(keepends=True) or [header]
    file.truncate(len(complete) if lines else 0)
    if not lines:
        return {}
    expected = json.loads(header)
    try:
        found = dict(load_json(first_line))
        finished = [FinishedBatch.model_validate_json(line) for line in lines]
    except (ValueError, TypeError):
        raise UsageError(
            "synthesis.progress-damaged",
            f"{path} is damaged; to start over, move it and the questions file beside it away",
        ) from None
    if others := [name for name, value in expected.items() if found.get(name) != value]:
        differences = ", ".join("other mail" if name == "mail" else f"{name} {found.get(name)}" for name in others)
        raise UsageError(
            "synthesis.other-settings",
            f"{path} was begun with other settings ({differences}); use those, or another output file",
        )
    return {(each.inbox, each.number): each for each in finished}
