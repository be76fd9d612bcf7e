"""Write scenarios in a dialog: search, read what was found, then enter the question and its answer.

For an unanswerable question it is the other way round: enter the question, then search for an answer in vain.
"""

import io
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.corpus import Corpus, FoundSource, SourceSearch
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.search_arguments import check_address
from gumshoe.model_validation import describe_validation_error
from gumshoe.scenarios.answer_support import find_missing_words
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.indexes import detect_corpus
from gumshoe.scenarios.scenario import SPLITS, Scenario
from gumshoe.scenarios.sources import ScenarioLine, load_scenarios
from gumshoe.terminal import err, printable

T = TypeVar("T")
_NEW = "the new question"
_QUIT = "q"
_DROP = "-"


class InterviewOverError(Exception):
    """The user ended the dialog."""


class Dialog:
    """Ask questions on a terminal, or read the answers from piped input, one per line."""

    def __init__(self) -> None:
        self._has_answers = False

    def say(self, text: str, style: str = "") -> None:
        """Print a text on standard error."""
        err.print(printable(text), style=style, soft_wrap=True)

    def ask(self, prompt: str) -> str:
        """Ask for one line.

        Raises:
            InterviewOverError: the input has ended, or the user entered q.
            UsageError: there is neither a terminal nor any input.
        """
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        try:
            answer = _QUIT if sys.stdin is None else err.input(f"[bold]{printable(prompt)}:[/] ").strip()
        except EOFError:
            if not (is_terminal or self._has_answers):
                raise UsageError(
                    "scenarios.no-input",
                    "standard input is empty and not a terminal; start the command in a terminal, or pipe the answers "
                    "to it, one per line",
                ) from None
            answer = _QUIT
        self._has_answers = True
        if not is_terminal:
            err.print()  # nobody pressed Enter
        if answer == _QUIT:
            raise InterviewOverError
        return answer

    def ask_until(self, prompt: str, parse: Callable[[str], T], expected: str) -> T:
        """Ask until `parse` accepts the answer. It raises ValueError to reject one."""
        while True:
            answer = self.ask(prompt)
            try:
                return parse(answer)
            except ValueError:
                self.say(f"{answer!r} is not {expected}", "red")


@dataclass(frozen=True, slots=True)
class Interview:
    """A dialog that appends scenarios to a file."""

    path: Path
    index: Path
    corpus: Corpus
    inbox: str | None
    collections: tuple[str, ...] | None
    search: SourceSearch
    dialog: Dialog
    existing: list[Scenario]
    """Scenarios in the file, in order. New ones are added."""
    unanswerable: bool = False
    """True to ask for questions that no source answers."""
    rejected: list[str] = field(default_factory=list)
    """Why scenarios were not added."""

    @classmethod
    def open(
        cls,
        path: Path,
        index: Path,
        inbox: str | None,
        collections: tuple[str, ...] | None = None,
        *,
        unanswerable: bool = False,
    ) -> "Interview":
        """Open the file and the index. With `unanswerable`, the dialog asks for questions that no source answers.

        Raises:
            UsageError: the file is compressed or not a scenario file, the index does not exist, or an inbox is given
                for documents.
        """
        corpus = detect_corpus(index)
        if path.suffix == ".gz":
            raise UsageError("scenarios.cannot-append", f"cannot append to {path}; use a file without .gz")
        if inbox is not None and not corpus.has_inboxes:
            raise UsageError(
                "scenarios.conflicting-options", f"{index} contains {corpus.content}, not mail; leave out --inbox"
            )
        existing = list(load_scenarios(str(path))) if path.exists() and path.stat().st_size else []
        dialog = Dialog()
        if corpus.has_inboxes:
            inbox = check_address("inbox", inbox or dialog.ask("Inbox (address)"))
        if collections and corpus.has_inboxes:
            raise UsageError(
                "scenarios.conflicting-options",
                f"{index} contains {corpus.content}, not documents; leave out --collections",
            )
        search = corpus.open_search(index, inbox, collections)
        return cls(path, index, corpus, inbox, collections, search, dialog, existing, unanswerable)

    def run(self) -> tuple[int, list[str]]:
        """Add scenarios until the user ends the dialog. Return how many were added, and why others were not."""
        before = len(self.existing)
        with suppress(InterviewOverError):
            while True:
                if self.unanswerable:
                    self._add_unanswerable()
                elif sources := self._choose_sources():
                    self._add(sources)
        return len(self.existing) - before, self.rejected

    def _search(self, words: str) -> list[FoundSource]:
        """Search for words, and show the results. Return nothing if there are none, or if the words cannot be used."""
        try:
            hits = self.search.search(shlex.split(words) if '"' in words else words.split())
        except (GumshoeError, ValueError) as error:
            self.dialog.say(f"{error}", "red")
            return []
        for number, hit in enumerate(hits, 1):
            self.dialog.say(f"{number:>3}  {hit.title}", "bold")
            for line in filter(None, (hit.origin, hit.snippet)):
                self.dialog.say(f"     {line}", "dim")
        if not hits:
            self.dialog.say("Nothing found.", "yellow")
        return list(hits)

    def _choose_sources(self) -> list[FoundSource]:
        """Search, and show the results that the user chooses. Return nothing if the user wants to search again."""
        words = self.dialog.ask("Search for")
        hits = self._search(words) if words else []
        return self._read(hits, "Number of the source, or several (e.g. 1,3); Enter to search again") if hits else []

    def _read(self, hits: list[FoundSource], prompt: str) -> list[FoundSource]:
        """Ask for numbers of results, and show their texts."""
        chosen = self.dialog.ask_until(prompt, lambda text: _pick(text, hits), f"a number from 1 to {len(hits)}")
        for each in chosen:
            self.dialog.say(f"\n{self.search.read(each.source_id).text}\n")
        return chosen

    def _add(self, sources: list[FoundSource]) -> None:
        """Ask for a question about sources, and append it if it can be answered."""
        ask, ask_until = self.dialog.ask, self.dialog.ask_until
        question = ask("Question (Enter to search again)")
        if not question:
            return
        answer = ask_until("Answer", _parse_text, "an answer")
        ids = [each.source_id for each in sources]
        fields: dict[str, Any] = {"question": question, "answer": answer}
        fields["message_ids" if self.corpus.has_inboxes else "document_ids"] = ids
        if len(ids) > 1:
            fields["needs_all"] = ask_until("Does the answer need all of them? [y/N]", _parse_yes, "y or n")
        self._complete_and_append(fields, ids)

    def _add_unanswerable(self) -> None:
        """Ask for a question, let the user search for its answer, and append it if the user finds none."""
        question = self.dialog.ask_until("Question that nothing answers", _parse_text, "a question")
        prompt = f"Search for its answer (Enter if nothing has it, {_DROP} if something does)"
        while words := self.dialog.ask(prompt):
            if words == _DROP:
                self.dialog.say("Not added: it has an answer. Add it without --unanswerable.\n", "yellow")
                return
            if hits := self._search(words):
                self._read(hits, "Number of a result to read, or several; Enter to search again")
        self._complete_and_append({"question": question, "unanswerable": True}, [])

    def _complete_and_append(self, fields: dict[str, Any], ids: list[str]) -> None:
        """Ask for the other fields of a question with some sources, and append it if it passes the check."""
        ask_until = self.dialog.ask_until
        if self.corpus.has_inboxes:
            fields |= {"inbox_address": self.inbox, "query_date": self._ask_day(ids)}
        elif self.collections is not None:
            fields["collections"] = self.collections
        realistic = "How realistic is it, from 0 to 1? (Enter to skip)"
        fields["how_realistic"] = ask_until(realistic, _parse_share, "a number from 0 to 1")
        splits = ", ".join(SPLITS)
        fields["split"] = ask_until(f"Split: {splits} (Enter for none)", _parse_split, f"one of {splits}")
        try:
            scenario = Scenario.model_validate({"id": self._find_free_id(), **fields})
        except ValidationError as error:
            self._reject(describe_validation_error(error))
            return
        if faults := self._find_faults(scenario):
            self._reject("; ".join(faults))
            return
        texts = " ".join(self.search.read(each).text for each in ids)
        if ids and (missing := find_missing_words(scenario.answer, texts)):
            self.dialog.say(f"warning: not in the source: {', '.join(missing)}", "yellow")
        self._append(scenario)
        self.dialog.say(f"Added as {scenario.id}. {len(self.existing):,} scenarios in {self.path}\n", "green")

    def _reject(self, why: str) -> None:
        self.dialog.say(f"Not added: {why}", "red")
        self.rejected.append(why)

    def _ask_day(self, ids: list[str]) -> date:
        days = [day for each in ids if (day := self.search.read(each).day)]
        default = max(days, default=date.today())  # noqa: DTZ011 - the day where the user is
        return self.dialog.ask_until(
            f"Asked on (Enter for {default})",
            lambda text: date.fromisoformat(text) if text else default,
            "a date such as 2024-04-20",
        )

    def _find_free_id(self) -> str:
        used, number = {each.id for each in self.existing}, len(self.existing) + 1
        while str(number) in used:
            number += 1
        return str(number)

    def _find_faults(self, scenario: Scenario) -> list[str]:
        """Return why a scenario cannot be used beside the existing ones."""
        lines = [ScenarioLine(f"{self.path}:{number}", each) for number, each in enumerate(self.existing, 1)]
        report = check_scenarios([*lines, ScenarioLine(_NEW, scenario)], self.index)
        found = [each for each in report.findings if each.where == _NEW or _NEW in each.text]
        return [f"{each.problem}: {each.text}" for each in found]

    def _append(self, scenario: Scenario) -> None:
        with explain_os_errors(self.path):
            before = self.path.read_bytes() if self.path.exists() else b""
            end = b"" if before.endswith(b"\n") or not before else b"\n"
            write_atomically(self.path, io.BytesIO(before + end + scenario.to_json().encode() + b"\n"))
        self.existing.append(scenario)


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _pick(text: str, hits: list[FoundSource]) -> list[FoundSource]:
    numbers = [int(each) for each in text.replace(",", " ").split()]
    if not all(1 <= each <= len(hits) for each in numbers):
        raise ValueError
    return [hits[each - 1] for each in dict.fromkeys(numbers)]


def _parse_yes(text: str) -> bool:
    if text.lower() not in ("", "y", "yes", "n", "no"):
        raise ValueError
    return text.lower() in ("y", "yes")


def _parse_share(text: str) -> float | None:
    if text and not 0 <= float(text) <= 1:
        raise ValueError
    return float(text) if text else None


def _parse_split(text: str) -> str | None:
    if text not in ("", *SPLITS):
        raise ValueError
    return text or None
