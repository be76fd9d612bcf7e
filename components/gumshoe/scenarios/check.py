"""Check scenarios against the index that they are asked on: what is wrong with which line, and what is left."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from gumshoe.mail.audit import MailAudit
from gumshoe.scenarios.indexes import kind_of_index
from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioSet, Split
from gumshoe.scenarios.sources import Line
from gumshoe.scenarios.splitting import ties

Problem = Literal[
    "malformed line",
    "id used twice",
    "not about mail",
    "not about documents",
    "document missing",
    "document known under another id",
    "message missing",
    "message outside the inbox",
    "message known under another id",
    "message without a date",
    "message after the query date",
    "question asked twice",
    "overlap between splits",
]


@dataclass(frozen=True, slots=True)
class ScenarioFault:
    """Something wrong with one line."""

    where: str
    problem: Problem
    text: str
    """What exactly, for people."""


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    lines: int = 0
    """Lines that were checked."""
    findings: list[ScenarioFault] = field(default_factory=list)
    """In order of line."""
    clean: ScenarioSet = field(default_factory=lambda: ScenarioSet(()))
    """What is left: scenarios with every id that is right and as the index lists it."""
    mended: int = 0
    """Scenarios of `clean` that lost a wrong id, or got the index's own id of a message."""

    @property
    def counts(self) -> dict[Problem, int]:
        """Findings of each sort, the commonest first."""
        return dict(Counter(finding.problem for finding in self.findings).most_common())


def check_scenarios(
    lines: Iterable[Line], index: Path, advance: Callable[[int], object] = lambda _: None
) -> CheckReport:
    """Check that each scenario can be answered from its inbox, and that nothing is asked or leaked twice.

    Every gold message must be in the index under that id, in the scenario's inbox, and sent by the end of the query
    date; every gold document in the index of documents. No question may be asked twice of one inbox, or of the
    documents, on one day, or with one source; and no two splits may share a source or a question. `advance` is told of
    lines as they are checked.

    Raises:
        GumshoeError: the index does not exist, or cannot be read.
    """
    checker = _Checker(_Documents(index) if kind_of_index(index) == "documents" else _Mail(index))
    report = CheckReport()
    found: list[tuple[int, ScenarioFault]] = []
    rows: list[_Row] = []
    for number, line in enumerate(lines):
        if line.left_out:
            continue
        report.lines += 1
        advance(1)
        row, findings = checker.check(number, line)
        found += [(number, finding) for finding in findings]
        if row is not None:
            rows.append(row)
            report.mended += row.mended
    clean, findings_between = _without_overlap(rows)
    found += findings_between
    lost = {row.number for row in rows} - {row.number for row in clean}
    report.mended -= sum(row.mended for row in rows if row.number in lost)
    report.findings = [finding for _, finding in sorted(found, key=lambda each: each[0])]
    report.clean = ScenarioSet.of(row.scenario for row in clean)
    return report


@dataclass(frozen=True, slots=True)
class _Row:
    """A scenario that can be used, and where it came from."""

    number: int
    where: str
    scenario: Scenario
    mended: bool


Looked = tuple[str | None, Problem | None, str]
"""The id under which searches list a source that can be used, or None; what is wrong with it, if anything; and how."""


class _Library(Protocol):
    """What sources are looked up in."""

    kind: Literal["mail", "documents"]

    def look(self, scenario: Scenario, source_id: str) -> Looked: ...


class _Mail:
    """An index of mail."""

    kind: Literal["mail", "documents"] = "mail"

    def __init__(self, index: Path) -> None:
        self._audit = MailAudit(index)

    def look(self, scenario: Scenario, source_id: str) -> Looked:
        """As `_Library.look`."""
        named = self._audit.find(source_id)
        if not named:
            return None, "message missing", "is not in the index"
        message = next((each for each in named if scenario.inbox_address in each.addresses), None)
        if message is None:
            return None, "message outside the inbox", f"is in the index, but not in that of {scenario.inbox_address}"
        if message.sent is None:
            return None, "message without a date", "has no date, so that no search up to the query date finds it"
        if scenario.visible_before is not None and message.sent >= scenario.visible_before:
            text = f"was sent on {message.sent:%Y-%m-%d}, after the question was asked on {scenario.query_date}"
            return None, "message after the query date", text
        if message.message_id != source_id:
            return message.message_id, "message known under another id", f"is listed as {message.message_id}"
        return message.message_id, None, ""


class _Documents:
    """An index of documents."""

    kind: Literal["mail", "documents"] = "documents"

    def __init__(self, index: Path) -> None:
        from gumshoe.documents.index import DocumentIndex, DocumentNotFoundError  # takes longer to import

        self._index, self._missing = DocumentIndex(index), DocumentNotFoundError

    def look(self, scenario: Scenario, source_id: str) -> Looked:  # noqa: ARG002 - all may read every document
        """As `_Library.look`."""
        try:
            listed = self._index.head(source_id).document_id
        except self._missing:
            return None, "document missing", "is not in the index"
        if listed != source_id:
            return listed, "document known under another id", f"is listed as {listed}"
        return listed, None, ""


class _Checker:
    """Checks one line after another, and remembers what was asked before."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        self._ids: dict[str, str] = {}
        self._asked: dict[tuple[str, ...], str] = {}

    def check(self, number: int, line: Line) -> tuple[_Row | None, list[ScenarioFault]]:
        """The scenario as it can be used, if at all, and what is wrong with the line."""
        scenario = line.scenario
        if scenario is None:
            return None, [ScenarioFault(line.where, "malformed line", line.fault)]
        if first := self._ids.get(scenario.id):
            return None, [ScenarioFault(line.where, "id used twice", f"the id {scenario.id!r} is that of {first}")]
        self._ids[scenario.id] = line.where
        if self._library.kind == "mail" and not scenario.message_ids:
            return None, [
                ScenarioFault(line.where, "not about mail", "its sources are documents; a mail index holds none")
            ]
        if self._library.kind == "documents" and not scenario.document_ids:
            return None, [
                ScenarioFault(line.where, "not about documents", "its sources are messages; the index holds none")
            ]
        good, findings = self._sources(scenario, line.where)
        usable = bool(good) and not (scenario.needs_all and len(good) < len(scenario.sources))
        if not usable:
            return None, findings
        mended = good != list(scenario.sources)
        if mended:
            name = "message_ids" if scenario.message_ids else "document_ids"
            scenario = scenario.model_copy(update={name: tuple(dict.fromkeys(good))})
        if first := self._asked_before(scenario, line.where):
            of = ", of the same inbox" if scenario.inbox_address else ""
            text = f"{scenario.question!r} is asked at {first} too{of}"
            return None, [*findings, ScenarioFault(line.where, "question asked twice", text)]
        return _Row(number, line.where, scenario, mended), findings

    def _sources(self, scenario: Scenario, where: str) -> tuple[list[str], list[ScenarioFault]]:
        """The index's ids of the gold sources that can be used, and what is wrong with the others."""
        good, findings = [], []
        for source_id in scenario.sources:
            listed, problem, text = self._library.look(scenario, source_id)
            if problem is not None:
                findings.append(ScenarioFault(where, problem, f"{source_id} {text}"))
            if listed is not None:
                good.append(listed)
        return good, findings

    def _asked_before(self, scenario: Scenario, where: str) -> str | None:
        """Where the same was asked before in the same split, on the same day or with one of the same sources."""
        about = (str(scenario.split), str(scenario.inbox_address), scenario.plain_question)
        keys = [(*about, mark) for mark in (str(scenario.query_date), *scenario.sources)]
        first = next((self._asked[key] for key in keys if key in self._asked), None)
        if first is None:
            self._asked.update(dict.fromkeys(keys, where))
        return first


def _without_overlap(rows: list[_Row]) -> tuple[list[_Row], list[tuple[int, ScenarioFault]]]:
    """The rows that share nothing with a split that learning must not see: test, and then validation."""
    held: dict[str, tuple[Split, str]] = {}
    kept: list[_Row] = [row for row in rows if row.scenario.split is None]
    found: list[tuple[int, ScenarioFault]] = []
    for split in reversed(SPLITS):
        own: dict[str, tuple[Split, str]] = {}
        for row in rows:
            if row.scenario.split != split:
                continue
            shared = next(_shared(row.scenario, held), None)
            if shared is None:
                kept.append(row)
                own.update((tie, (split, row.where)) for tie in ties(row.scenario))
            else:
                found.append((row.number, ScenarioFault(row.where, "overlap between splits", shared)))
        held |= own
    return sorted(kept, key=lambda row: row.number), found


def _shared(scenario: Scenario, held: dict[str, tuple[Split, str]]) -> Iterator[str]:
    for tie in ties(scenario):
        if tie in held:
            split, where = held[tie]
            name, _, value = tie.partition(" ")
            shown = f"the source {value}" if name == "source" else "its question"
            yield f"in {scenario.split}, it shares {shown} with {where}, which is in {split}"
