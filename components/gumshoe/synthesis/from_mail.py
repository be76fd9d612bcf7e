"""Questions about somebody's own mail, as ART-E's were made (https://openpipe.ai/blog/art-e-mail-agent).

A chat model is shown a batch of an inbox's messages and writes questions; asked again, it answers each from its sources
alone, and what it cannot answer as it did before is dropped. What always holds:

- Every message is listed and read through its inbox. Mail reaches a model as data, under ids that only its batch has.
- Each batch that is finished is a line of FILE.progress, and FILE is made of these lines alone, in the batches' order:
  however often a run is killed or a server fails, the end is the same.
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

from gumshoe.artifacts.storage import explain_os_errors, held_file, write_atomically
from gumshoe.errors import UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_arguments import check_address
from gumshoe.rewards.judge import JudgeError
from gumshoe.rewards.judge_registry import OpenAIJudge
from gumshoe.rewards.reward import all_of
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, seeded
from gumshoe.synthesis.question_writer import SOLVE, STYLES, VERSION, Batch, Finished, QuestionSettings, QuestionWriter
from gumshoe.synthesis.rng import Rng
from gumshoe.terminal import Advance

_ALIKE = 0.6  # Jaccard similarity of the words of two questions with a source or the answer in common
_TOKEN = 4  # characters, by rule of thumb
_SAID, _SOLVED, _JUDGED = (
    500,
    300,
    2000,
)  # characters, by guess: a question written, one answered, one judged


@dataclass(frozen=True, slots=True)
class QuestionCostEstimate:
    """What asking will come to, before anything is sent."""

    batches: int
    """Those that are to be asked."""
    finished: int
    """Those that an earlier run finished."""
    messages: int
    requests: int
    """At most, where each question has one source, and without those that are sent again."""
    prompt_tokens: int
    completion_tokens: int
    """At most, a token being four characters, and what a model writes a guess."""
    cost: float | None
    """Dollars; None where no price is known."""


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """What a run came to."""

    questions: ScenarioSet
    """All that the file holds now, of earlier runs too."""
    dropped: dict[str, int]
    """What it does not hold, by reason, the commonest first."""
    batches: int
    finished: int
    """In this run."""
    failed: int
    """Batches that got no answer, and are taken up by the next run."""
    why: str
    """How the first of them failed."""
    usage: dict[str, float]
    """Of this run, the judge's included: the numbers of `Usage`."""


@dataclass(slots=True)
class MailQuestions:
    """A file of questions in the making, which no other process adds to. Made by `open_questions`."""

    _settings: QuestionSettings
    _path: Path
    _batches: list[Batch]
    _writer: QuestionWriter
    _progress: BinaryIO
    _header: bytes
    _finished: dict[tuple[str, int], Finished]
    _failures: list[str] = field(default_factory=list)

    @property
    def _missing(self) -> list[Batch]:
        return [each for each in self._batches if (each.inbox, each.number) not in self._finished]

    def estimate(self) -> QuestionCostEstimate:
        """What asking for what is missing will come to. Nothing is sent."""
        settings, missing = self._settings, self._missing
        judged = _JUDGED if isinstance(self._writer.judge, OpenAIJudge) else 0
        characters = 0.0
        for batch in missing:
            shown = len(self._writer.shown(batch.inbox, batch.message_ids))
            source = shown / len(batch.message_ids)
            characters += len(self._writer.system(batch)) + shown
            characters += settings.per_batch * (len(SOLVE) + source + _SAID + judged)
        questions = len(missing) * settings.per_batch
        read = round(characters / _TOKEN)
        written = questions * (_SAID + _SOLVED + (_SOLVED if judged else 0)) // _TOKEN
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
        """Ask for what is missing, and write the file.

        Raises:
            UsageError: the server does not know the model, or the key.
            StorageError: the file cannot be written.
        """
        missing = self._missing
        advance(total=len(missing))
        under_way = asyncio.Semaphore(self._settings.model.concurrency)  # else no batch ended before all had begun

        async def one(batch: Batch) -> None:
            async with under_way:
                try:
                    self._keep(await self._writer.write(batch))
                except JudgeError as error:
                    self._failures.append(error.message_with_code)
            advance(1)

        try:
            await all_of(map(one, missing))
        finally:
            await self._writer.aclose()
            questions, dropped = self._result()
            if self._finished:
                with explain_os_errors(self._path):
                    write_atomically(self._path, io.BytesIO(questions.to_jsonl()))
        failed = len(self._failures)
        why = self._failures[0] if failed else ""
        counts = (len(self._batches), len(missing) - failed, failed)
        return QuestionReport(questions, dict(dropped.most_common()), *counts, why, self._writer.usage)

    def _keep(self, finished: Finished) -> None:
        line = f"{finished.model_dump_json(exclude_none=True)}\n".encode()
        with explain_os_errors(self._path):
            self._progress.write(line if self._finished else self._header + line)
            self._progress.flush()
            os.fsync(self._progress.fileno())
        self._finished[finished.inbox, finished.number] = finished

    def _result(self) -> tuple[ScenarioSet, Counter[str]]:
        """What the file is to hold, and what was dropped."""
        done = [self._finished.get((each.inbox, each.number)) for each in self._batches]
        dropped = Counter[str]()
        for each in done:
            dropped.update(each.dropped if each else {})
        questions = [question for each in done if each for question in each.questions]
        kept = distinct(questions)
        if len(kept) < len(questions):
            dropped["near-duplicate"] = len(questions) - len(kept)
        return ScenarioSet.of(kept), dropped


@contextmanager
def open_questions(settings: QuestionSettings, path: Path) -> Iterator[MailQuestions]:
    """The questions of a file, begun or to be begun. What a run that was killed left half written is taken out.

    Raises:
        UsageError: the settings are invalid, or not those that the file was begun with; the file holds something
            else, or another process writes to it; the model's API key is missing.
        GumshoeError: the index does not exist, or cannot be read.
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
    batches, mail = _planned(index, settings)
    progress = path.with_name(f"{path.name}.progress")
    header = json.dumps(_decisive(settings, mail)).encode() + b"\n"
    writer = QuestionWriter(settings, index)
    with ExitStack() as held:
        with explain_os_errors(progress):
            file = held.enter_context(_held(progress))
            finished = _taken_up(file, progress, header)
        ours = {each.to_json().encode() for line in finished.values() for each in line.questions}
        if path.exists() and not ours.issuperset(path.read_bytes().splitlines()):
            raise UsageError(
                "synthesis.foreign-output",
                f"{path} holds lines that this command did not write; use another file, or move it away",
            )
        yield MailQuestions(settings, path, batches, writer, file, header, finished)


def distinct(questions: Iterable[Scenario]) -> list[Scenario]:
    """Those that are no near-duplicates of one before them about the same inbox.

    Near-duplicates have the same words, in whatever order; or, with a source or the answer in common, words of a
    Jaccard similarity of 0.6. Without those, a single word may be all that two questions differ in.
    """
    kept: list[Scenario] = []
    before: dict[str | None, list[tuple[set[str], set[str]]]] = {}
    for each in questions:
        words = set(each.plain_question.split())
        ties = {*each.sources, " ".join(each.answer.casefold().split()).strip(" .")}
        others = before.setdefault(each.inbox_address, [])
        if not any(
            len(words & other) >= (1 if ties.isdisjoint(tied) else _ALIKE) * len(words | other)
            for other, tied in others
        ):
            kept.append(each)
            others.append((words, ties))
    return kept


def _planned(index: MailIndex, settings: QuestionSettings) -> tuple[list[Batch], str]:
    """The batches to ask for, inbox after inbox in order of date, and a digest of what mail there is."""
    batches: list[Batch] = []
    digest = hashlib.sha256()
    for inbox in settings.inboxes:
        listed = [(each, sent) for each, sent in index.listing(inbox) if sent]
        if not listed:
            raise UsageError("synthesis.no-mail", f"{settings.index} holds no dated mail of {inbox}; check the address")
        digest.update(json.dumps([(each, str(sent)) for each, sent in listed]).encode())
        turn = Rng(settings.seed, inbox).below(len(STYLES))
        parts = [listed[start : start + settings.batch] for start in range(0, len(listed), settings.batch)]
        numbers = sorted(range(len(parts)), key=lambda each: seeded(settings.seed, f"{inbox} {each}"))
        for number in sorted(numbers[: settings.limit]):
            first = turn + number * settings.per_batch
            styles = tuple(list(STYLES)[(first + each) % len(STYLES)] for each in range(settings.per_batch))
            ids = tuple(each for each, _ in parts[number])
            batches.append(Batch(inbox, number + 1, ids, parts[number][-1][1].date(), styles))
    return batches, digest.hexdigest()


def _decisive(settings: QuestionSettings, mail: str) -> dict[str, Any]:
    """What decides about a batch's questions: not where the models are, how fast they are asked, how much of it all."""
    said = {name: value for name, value in asdict(settings).items() if name not in {"index", "limit", "model"}}
    names = {"model": settings.model.model, "judge": settings.judge.partition("@")[0], "mail": mail}
    return {**said, **names, "inboxes": list(settings.inboxes), "version": VERSION}


@contextmanager
def _held(progress: Path) -> Iterator[BinaryIO]:
    """The progress file, to read and to add to; it is there no longer than there is something in it."""
    with held_file(progress) as file:
        try:
            yield file
        finally:
            if not os.fstat(file.fileno()).st_size:  # nothing was asked
                progress.unlink(missing_ok=True)


def _taken_up(file: BinaryIO, path: Path, header: bytes) -> dict[tuple[str, int], Finished]:
    """The batches that a progress file holds, once a last line that was cut off is taken out of it."""
    file.seek(0)
    data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    begun, *lines = whole.splitlines(keepends=True) or [header]
    file.truncate(len(whole) if lines else 0)
    if not lines:
        return {}
    wanted = json.loads(header)
    try:
        found = dict(json.loads(begun))
        finished = [Finished.model_validate_json(line) for line in lines]
    except (ValueError, TypeError):
        raise UsageError(
            "synthesis.progress-damaged",
            f"{path} is damaged; to start over, move it and the questions file beside it away",
        ) from None
    if others := [name for name, value in wanted.items() if found.get(name) != value]:
        said = ", ".join("other mail" if name == "mail" else f"{name} {found.get(name)}" for name in others)
        raise UsageError(
            "synthesis.other-settings",
            f"{path} was begun with other settings ({said}); use those, or another output file",
        )
    return {(each.inbox, each.number): each for each in finished}
