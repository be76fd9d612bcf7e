"""Turn the feedback of users into scenarios: who agreed to that, without personal data, one answer to each question.

What users write is not trusted. Each question that is left out is counted by the reason. The same feedback and options
give the same scenarios in any order.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gumshoe.corpus import SourceSearch
from gumshoe.errors import GumshoeError, RefusedError
from gumshoe.scenarios.answer_support import find_missing_words
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.feedback_options import FeedbackOptions
from gumshoe.scenarios.feedback_records import FeedbackRecord
from gumshoe.scenarios.indexes import detect_corpus
from gumshoe.scenarios.personal_data import PLACEHOLDERS, PersonalDataKind
from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioSet
from gumshoe.scenarios.share_cap import cap_shares
from gumshoe.scenarios.sources import ScenarioLine
from gumshoe.scenarios.splitting import NOTHING_SEEN, SeenQuestions, extend_splits

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that reverse the direction of text."""
_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS.values())))
_MIN_WORDS = 3  # of a redacted question, beside the placeholders


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer to a question, and the callers who gave it."""

    answer: str
    unanswerable: bool
    given_by: tuple[str, ...]
    """Pseudonyms, in the order of their feedback."""
    newest: datetime
    taken: bool = False
    """True if it became the reference answer."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Different answers of different callers to the same question."""

    question: str
    inbox_address: str | None
    answers: tuple[GivenAnswer, ...]


@dataclass(slots=True)
class SelectedFeedback:
    """Scenarios from feedback, and a count of everything that is not among them."""

    records: int = 0
    """Number of records of feedback."""
    scenarios: ScenarioSet = field(default_factory=lambda: ScenarioSet(()))
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of records that are not used, by reason."""
    redacted: Counter[PersonalDataKind] = field(default_factory=Counter)
    """Number of values that were redacted in questions, by kind. Reference answers are never changed."""
    contradictions: list[Contradiction] = field(default_factory=list)

    @property
    def callers(self) -> Counter[str]:
        """Number of scenarios by caller, the most frequent first."""
        return Counter(dict(Counter(str(each.given_by) for each in self.scenarios).most_common()))

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of what was taken, left out and redacted, for the record of a pipeline's step."""
        return {
            "records": self.records,
            "scenarios": len(self.scenarios),
            "splits": {split: len(self.scenarios.only(split)) for split in SPLITS},
            "unanswerable": self.unanswerable,
            "callers": len(self.callers),
            "left_out": dict(self.left_out),
            "redacted": {str(kind): count for kind, count in self.redacted.items()},
            "contradictions": len(self.contradictions),
        }

    @property
    def text(self) -> str:
        """The summary as one line of text."""
        splits = [f"{count:,} {split}" for split in SPLITS if (count := len(self.scenarios.only(split)))]
        parts = [f"{self.records:,} records, {len(self.scenarios):,} scenarios ({', '.join(splits) or 'none added'})"]
        named: list[tuple[str, Counter[Any]]] = [("left out", self.left_out), ("redacted", self.redacted)]
        parts += [
            f"{name}: {', '.join(f'{count:,} {each}' for each, count in counts.most_common())}"
            for name, counts in named
            if counts
        ]
        return "; ".join(parts)

    @property
    def unanswerable(self) -> int:
        """Number of unanswerable scenarios."""
        return sum(each.unanswerable for each in self.scenarios)


def select_feedback(
    records: Sequence[FeedbackRecord], options: FeedbackOptions, index: Path | None = None
) -> SelectedFeedback:
    """Return one scenario for each question that can be used, before any limit of shares.

    A caller's later feedback on a question replaces its own earlier one. Then these are left out: feedback without
    consent, with control characters or long answers, questions and answers that redaction would destroy, repetitions,
    and contradictions. With an index, answers that are not in their source are left out too, before they contradict
    those of others.

    Raises:
        GumshoeError: if the index does not exist, or cannot be read.
    """
    found = SelectedFeedback(records=len(records))
    ordered = sorted(records, key=lambda each: (each.given_at, each.reference, each.scenario.id))
    newest = {(each.scenario.given_by, each.scenario.digest): each for each in ordered}
    found.left_out["replaced by the same caller"] += len(records) - len(newest)
    redactor = options.open_redactor()
    support = None if index is None or options.unsupported == "keep" else _SupportCheck(index)
    usable = list[FeedbackRecord]()
    for each in newest.values():
        scenario = each.scenario
        if reason := _find_refusal(scenario, options):
            found.left_out[reason] += 1
            continue
        question, answer = redactor.redact(scenario.question), redactor.redact(scenario.answer)
        keeps_answer = scenario.unanswerable or options.redacted_answers == "keep"
        if answer.counts and not keeps_answer:
            found.left_out["answer is personal data"] += 1
        elif question.counts and len(_PLACEHOLDER.sub(" ", question.text).split()) < _MIN_WORDS:
            found.left_out["question is personal data"] += 1
        elif (supported := scenario if support is None else support.keep_supporting(scenario)) is None:
            found.left_out["answer not in its source"] += 1
        else:
            found.redacted += question.counts
            usable.append(replace(each, scenario=supported.model_copy(update={"question": question.text})))
    by_question: defaultdict[str, list[FeedbackRecord]] = defaultdict(list)
    for each in sorted(usable, key=lambda each: (each.given_at, each.reference, each.scenario.id)):
        by_question[each.scenario.digest].append(each)
    found.scenarios = ScenarioSet.of(
        merged for group in by_question.values() if (merged := _merge(group, options, found))
    )
    found.left_out = +found.left_out
    return found


def _find_refusal(scenario: Scenario, options: FeedbackOptions) -> str | None:
    """Return why feedback cannot be used, or None."""
    if scenario.consent == "none":
        return "without consent"
    if scenario.consent is None and not options.assume_consent:
        return "consent not recorded"
    if _CONTROL.search(scenario.question + scenario.answer):
        return "control characters"
    if len(scenario.answer.split()) > options.max_answer:
        return "longer answer"
    return None


def _merge(group: list[FeedbackRecord], options: FeedbackOptions, found: SelectedFeedback) -> Scenario | None:
    """Return the scenario of the feedback on one question, oldest first, or None if it contradicts itself.

    Of equal answers, the oldest is taken, with its sources, so that nobody can add sources to those of others.
    """
    by_answer: defaultdict[str, list[FeedbackRecord]] = defaultdict(list)
    for each in group:
        by_answer["" if each.scenario.unanswerable else _normalize(each.scenario.answer)].append(each)
    taken = _choose_answer(list(by_answer.values()), options)
    if len(by_answer) > 1:
        answers = tuple(_describe_answer(each, taken=each is taken) for each in by_answer.values())
        found.contradictions.append(Contradiction(group[0].scenario.question, group[0].scenario.inbox_address, answers))
        found.left_out["contradicted"] += len(group) - (len(taken) if taken else 0)
    if taken is None:
        return None
    found.left_out["repeated"] += len(taken) - 1
    first = taken[0].scenario
    fields = {name: getattr(first, name) for name in Scenario.model_fields}
    return Scenario.model_construct(**{**fields, "id": f"feedback-{first.digest}", "split": None})


def _choose_answer(answers: list[list[FeedbackRecord]], options: FeedbackOptions) -> list[FeedbackRecord] | None:
    """Return the feedback with the answer that the options prefer, or None if no feedback has one."""
    if len(answers) == 1:
        return answers[0]
    if options.contradictions == "newest":
        return max(answers, key=lambda each: each[-1].given_at)
    if options.contradictions == "majority":
        votes = [len({each.scenario.given_by for each in records}) for records in answers]
        most = max(votes)
        return answers[votes.index(most)] if votes.count(most) == 1 else None
    return None


def _describe_answer(records: list[FeedbackRecord], *, taken: bool) -> GivenAnswer:
    first = records[0].scenario
    callers = tuple(str(each.scenario.given_by) for each in records)
    return GivenAnswer(first.answer, first.unanswerable, callers, max(each.given_at for each in records), taken)


def _normalize(answer: str) -> str:
    """Return an answer without differences in case, spaces, and punctuation at its end."""
    return " ".join(answer.casefold().split()).rstrip(".!")


def check_feedback(found: SelectedFeedback, index: Path, options: FeedbackOptions) -> None:
    """Leave out the scenarios that cannot be answered from an index, and count them by problem.

    Their sources must be in the inbox on the day of the question, or in the documents, and have the words of the
    answer.

    Raises:
        GumshoeError: if the index does not exist, or cannot be read.
    """
    report = check_scenarios((ScenarioLine(each.id, each) for each in found.scenarios), index)
    usable = {each.id for each in report.clean}
    problems = {each.where: each.problem for each in report.findings if each.where not in usable}
    found.left_out += Counter(problems.values())
    kept = list(report.clean)
    if options.unsupported == "drop":
        support = _SupportCheck(index)
        kept = [supported for each in kept if (supported := support.keep_supporting(each))]
        found.left_out += Counter({"answer not in its source": len(report.clean) - len(kept)})
    found.scenarios, found.left_out = ScenarioSet.of(kept), +found.left_out


class _SupportCheck:
    """Check answers against the text of their sources."""

    def __init__(self, index: Path) -> None:
        self._index, self._corpus = index, detect_corpus(index)
        self._searches: dict[tuple[str | None, tuple[str, ...] | None], SourceSearch] = {}

    def keep_supporting(self, scenario: Scenario) -> Scenario | None:
        """Return a scenario with the sources that have the words of the answer, or None if they do not have them.

        An agent also cites sources that do not have the answer. If none has all of it, but all together do, they are
        needed together. A scenario with a source that is not there to be read is returned unchanged.
        """
        if scenario.unanswerable:
            return scenario
        about = (scenario.inbox_address, scenario.collections)
        try:
            if about not in self._searches:
                self._searches[about] = self._corpus.open_search(self._index, *about)
            texts = {each: self._searches[about].read(each).text for each in scenario.sources}
        except GumshoeError:
            return scenario
        alone = tuple(each for each, text in texts.items() if not find_missing_words(scenario.answer, text))
        if alone and not scenario.needs_all:
            name = "message_ids" if scenario.message_ids else "document_ids"
            return scenario.model_copy(update={name: alone})
        if find_missing_words(scenario.answer, "\n".join(texts.values())):
            return None
        return scenario.model_copy(update={"needs_all": True})


def limit_shares(found: SelectedFeedback, max_share: float, seed: int) -> None:
    """Leave out scenarios until no caller gave more than a share of them.

    Raises:
        RefusedError: if that is impossible, because too few callers gave feedback.
    """
    if not found.scenarios:
        return
    kept = cap_shares(list(found.scenarios), 0, max_share, seed)
    if not kept:
        callers = len(found.callers)
        raise RefusedError(
            "scenarios.too-few-callers",
            f"no choice of the {len(found.scenarios):,} usable scenarios keeps each caller at {max_share:.0%}: that "
            f"needs feedback of at least {_count_needed(max_share):,} callers, got {callers:,}; wait for more, or "
            "raise --max-share",
        )
    found.left_out["over the share of a caller"] += len(found.scenarios) - len(kept)
    found.scenarios, found.left_out = ScenarioSet.of(kept), +found.left_out


def _count_needed(max_share: float) -> int:
    count = 1
    while count * max_share < 1 - 1e-9:
        count += 1
    return count


def add_to_training(
    base: ScenarioSet,
    found: SelectedFeedback,
    index: Path,
    options: FeedbackOptions,
    *,
    validation: float,
    test: float,
    seed: int,
    seen: SeenQuestions = NOTHING_SEEN,
) -> ScenarioSet:
    """Return scenarios that are in splits, with those from feedback added to the splits.

    The splits of the former do not change. In no split has a caller more than `options.max_share` of the scenarios, so
    that the feedback of few callers is taken in part. The test split gets no question that a policy has `seen`.
    `found` becomes what was added.

    Raises:
        GumshoeError: if the index cannot be read.
    """
    check_feedback(found, index, options)
    drop_known(found, base)
    extended, unfit = extend_splits(base, found.scenarios, validation=validation, test=test, seed=seed, seen=seen)
    found.left_out["shares sources with other splits"] += len(unfit)
    own = {each.id for each in base}
    kept = list[Scenario]()
    for split in SPLITS:
        new = [each for each in extended.only(split) if each.id not in own]
        capped = cap_shares(new, len(base.only(split)), options.max_share, seed)
        found.left_out["over the share of a caller"] += len(new) - len(capped)
        kept += capped
    found.scenarios, found.left_out = ScenarioSet.of(kept), +found.left_out
    return ScenarioSet.of([*base, *kept])


def drop_known(found: SelectedFeedback, known: Iterable[Scenario]) -> None:
    """Leave out questions that are among other scenarios."""
    digests = {each.digest for each in known}
    kept = [each for each in found.scenarios if each.digest not in digests]
    found.left_out["already among the scenarios"] += len(found.scenarios) - len(kept)
    found.scenarios, found.left_out = ScenarioSet.of(kept), +found.left_out
