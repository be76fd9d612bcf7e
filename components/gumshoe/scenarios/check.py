"""Check scenarios against the index that they are about: report problems by line, and keep the usable scenarios."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gumshoe.corpus import Corpus, SourceAudit, load_class
from gumshoe.scenarios.indexes import detect_corpus
from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioSet, Split
from gumshoe.scenarios.sources import ScenarioLine
from gumshoe.scenarios.splitting import overlap_keys


@dataclass(frozen=True, slots=True)
class ScenarioFault:
    """A problem of one line."""

    where: str
    problem: str
    """One of a few short names, for counting."""
    text: str
    """Details, for people."""


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    lines: int = 0
    """Number of lines that were checked."""
    findings: list[ScenarioFault] = field(default_factory=list)
    """In order of lines."""
    clean: ScenarioSet = field(default_factory=lambda: ScenarioSet(()))
    """The usable scenarios, with valid ids as the index lists them."""
    corrected: int = 0
    """Number of scenarios in `clean` that lost an invalid id, or got the id that the index uses."""

    @property
    def counts(self) -> dict[str, int]:
        """Findings by problem, most frequent first."""
        return dict(Counter(finding.problem for finding in self.findings).most_common())


def check_scenarios(
    lines: Iterable[ScenarioLine], index: Path, advance: Callable[[int], object] = lambda _: None
) -> CheckReport:
    """Check that each scenario can be answered from its inbox or the documents, without repetitions and leaks.

    Every gold message must be in the index under that id, in the scenario's inbox, and sent by the end of the query
    date. Every gold document must be in the document index. The inbox of an unanswerable question must be in the index.
    No question may be asked twice of the same inbox or of the documents on one day, or with a common source. No two
    splits may share a source or a question. `advance` is called with the number of lines checked.

    Raises:
        GumshoeError: if the index does not exist, or cannot be read.
    """
    corpus = detect_corpus(index)
    checker = _Checker(corpus, load_class(corpus.audit)(index))
    report = CheckReport()
    found: list[tuple[int, ScenarioFault]] = []
    rows: list[_UsableScenario] = []
    for number, line in enumerate(lines):
        if line.left_out:
            continue
        report.lines += 1
        advance(1)
        row, findings = checker.check(number, line)
        found += [(number, finding) for finding in findings]
        if row is not None:
            rows.append(row)
            report.corrected += row.corrected
    clean, findings_between = _drop_overlaps(rows)
    found += findings_between
    lost = {row.number for row in rows} - {row.number for row in clean}
    report.corrected -= sum(row.corrected for row in rows if row.number in lost)
    report.findings = [finding for _, finding in sorted(found, key=lambda each: each[0])]
    report.clean = ScenarioSet.of(row.scenario for row in clean)
    return report


@dataclass(frozen=True, slots=True)
class _UsableScenario:
    """A usable scenario, and its location."""

    number: int
    where: str
    scenario: Scenario
    corrected: bool


class _Checker:
    """Check one line after another, and remember earlier questions."""

    def __init__(self, corpus: Corpus, audit: SourceAudit) -> None:
        self._corpus, self._audit = corpus, audit
        self._ids: dict[str, str] = {}
        self._asked: dict[tuple[str, ...], str] = {}

    def check(self, number: int, line: ScenarioLine) -> tuple[_UsableScenario | None, list[ScenarioFault]]:
        """Return the usable scenario, if any, and the problems of the line."""
        scenario = line.scenario
        if scenario is None:
            return None, [ScenarioFault(line.where, "malformed line", line.fault)]
        if first := self._ids.get(scenario.id):
            return None, [ScenarioFault(line.where, "id used twice", f"the id {scenario.id!r} is that of {first}")]
        self._ids[scenario.id] = line.where
        if scenario.is_about_mail != self._corpus.has_inboxes:
            sources, content = "messages" if scenario.is_about_mail else "documents", self._corpus.content
            text = f"it is about {sources}; the index contains {content}"
            return None, [ScenarioFault(line.where, f"not about {content}", text)]
        good, findings = self._check_sources(scenario, line.where)
        if scenario.unanswerable:
            problem, text = self._audit.check_scope(scenario)
            if problem is not None:
                return None, [ScenarioFault(line.where, problem, text)]
        elif not good or (scenario.needs_all and len(good) < len(scenario.sources)):
            return None, findings
        mended = good != list(scenario.sources)
        if mended:
            name = "message_ids" if scenario.message_ids else "document_ids"
            scenario = scenario.model_copy(update={name: tuple(dict.fromkeys(good))})
        if first := self._find_repetition(scenario, line.where):
            of = ", for the same inbox" if scenario.inbox_address else ""
            text = f"{scenario.question!r} is also asked at {first}{of}"
            return None, [*findings, ScenarioFault(line.where, "question asked twice", text)]
        return _UsableScenario(number, line.where, scenario, mended), findings

    def _check_sources(self, scenario: Scenario, where: str) -> tuple[list[str], list[ScenarioFault]]:
        """Return the index's ids of the usable gold sources, and the problems of the others."""
        good, findings = [], []
        for source_id in scenario.sources:
            listed, problem, text = self._audit.look_up(source_id, scenario)
            if problem is not None:
                findings.append(ScenarioFault(where, problem, f"{source_id} {text}"))
            if listed is not None:
                good.append(listed)
        return good, findings

    def _find_repetition(self, scenario: Scenario, where: str) -> str | None:
        """Return where the same question was asked in the same split, on the same day or with a common source."""
        about = (str(scenario.split), str(scenario.inbox_address), scenario.plain_question)
        keys = [(*about, mark) for mark in (str(scenario.query_date), *scenario.sources)]
        first = next((self._asked[key] for key in keys if key in self._asked), None)
        if first is None:
            self._asked.update(dict.fromkeys(keys, where))
        return first


def _drop_overlaps(rows: list[_UsableScenario]) -> tuple[list[_UsableScenario], list[tuple[int, ScenarioFault]]]:
    """Drop scenarios that share something with a held-out split: first with test, then with validation."""
    used_keys: dict[str, tuple[Split, str]] = {}
    kept: list[_UsableScenario] = [row for row in rows if row.scenario.split is None]
    found: list[tuple[int, ScenarioFault]] = []
    for split in reversed(SPLITS):
        split_keys: dict[str, tuple[Split, str]] = {}
        for row in rows:
            if row.scenario.split != split:
                continue
            shared = next(_describe_overlaps(row.scenario, used_keys), None)
            if shared is None:
                kept.append(row)
                split_keys.update((tie, (split, row.where)) for tie in overlap_keys(row.scenario))
            else:
                found.append((row.number, ScenarioFault(row.where, "overlap between splits", shared)))
        used_keys |= split_keys
    return sorted(kept, key=lambda row: row.number), found


def _describe_overlaps(scenario: Scenario, used_keys: dict[str, tuple[Split, str]]) -> Iterator[str]:
    for tie in overlap_keys(scenario):
        if tie in used_keys:
            split, where = used_keys[tie]
            name, _, value = tie.partition(" ")
            shown = f"the source {value}" if name == "source" else "its question"
            yield f"in {scenario.split}, it shares {shown} with {where}, which is in {split}"
