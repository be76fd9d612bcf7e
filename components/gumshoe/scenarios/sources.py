"""Read scenarios from `jsonl:` files and `hf:` datasets, and select among them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gumshoe.artifacts.hub import dataset_errors_explained, open_dataset, split_names
from gumshoe.artifacts.lines import DAMAGED, file_size, read_lines
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.documents.sources import is_of_medquad
from gumshoe.mail.message import normal_address
from gumshoe.scenarios import medquad
from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split, as_split, seeded

_SHOWN = 5  # malformed lines told of in one error
_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, or one row of a dataset."""

    where: str
    """The place, such as `questions.jsonl:12`."""
    scenario: Scenario | None
    fault: str = ""
    """What is wrong with it where it holds no scenario."""
    left_out: int = 0
    """Records that hold no answer, told of at the end of a set that has such."""


def read_scenarios(source: str) -> Iterator[Line]:
    """Each line of `jsonl:FILE[.gz]` (or a plain path; `file://`, `s3://`) or row of `hf:DATASET[@SPLIT]`.

    All splits of a dataset are read, unless one is named; a row without a `split` of its own is in the dataset's.
    Records of MedQuAD come last, gathered by question, and are in no split.

    Raises:
        ScenarioError: the file does not exist, or is damaged; the dataset's splits have other names.
        GumshoeError: the file or the dataset could not be read.
    """
    records = _rows(source) if source.startswith("hf:") else _lines(source.removeprefix("jsonl:"))
    gatherer = medquad.MedQuadGatherer()
    for where, record, split in records:
        if isinstance(record, Line):
            yield record
        elif isinstance(record, dict) and is_of_medquad(record):
            try:
                gatherer.add(record, where)
            except (TypeError, ValueError) as error:
                yield Line(where, None, str(error))
        else:
            yield _line(record, where, split)
    for where, gathered in gatherer.scenarios():
        yield _line(gathered, where, None)
    if gatherer.without_answer:
        yield Line(source, None, left_out=gatherer.without_answer)


def load_scenarios(source: str, left_out: Counter[str] | None = None) -> ScenarioSet:
    """All scenarios of a source, as `read_scenarios` reads it. Records without an answer are counted in `left_out`.

    Raises:
        ScenarioError: a line is malformed, or an id is used twice; the message names the lines. And as above.
    """
    places: dict[str, str] = {}
    scenarios, faults = [], []
    has_malformed = False
    for line in read_scenarios(source):
        if line.left_out:
            if left_out is not None:
                left_out[medquad.NO_ANSWER] += line.left_out
        elif line.scenario is None:
            has_malformed = True
            faults.append(f"{line.where}: {line.fault}")
        elif first := places.get(line.scenario.id):
            faults.append(f"{line.where}: the id {line.scenario.id!r} is already used at {first}; give each its own")
        else:
            places[line.scenario.id] = line.where
            scenarios.append(line.scenario)
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise ScenarioError(
            "scenarios.malformed-line" if has_malformed else "scenarios.duplicate-id",
            "\n".join([*faults[:_SHOWN], *more]),
        )
    if not scenarios:
        raise ScenarioError("scenarios.no-scenarios", f"{source} holds no scenarios; check the source")
    return ScenarioSet.of(scenarios)


_Found = tuple[str, Any, Split | None]
"""Where a record stands, the record, or the line that is none, and the split that it is in unless it says so."""


def _lines(place: str) -> Iterator[_Found]:
    try:
        file_size(place)  # refuses what is not one file
    except NotFoundError as error:
        raise ScenarioError(error.code, error.message) from None
    number = 0
    try:
        for number, line in enumerate(read_lines(place), 1):
            if line.strip():
                where = f"{place}:{number}"
                yield where, _parsed(line, where), None
    except DAMAGED as error:
        raise ScenarioError(
            "scenarios.damaged-file", f"{place} cannot be unpacked after line {number} ({error}); fetch it again"
        ) from None


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # covers bytes that are not UTF-8
        return Line(where, None, f"not JSON ({error}); write one object per line, in UTF-8")


def _rows(uri: str) -> Iterator[_Found]:
    names = split_names(uri)
    unknown = sorted(set(names) - set(SPLITS))
    if unknown:
        raise ScenarioError(
            "scenarios.unknown-dataset-split",
            f"{uri} has splits that scenarios cannot be in: {', '.join(unknown)}; name one of {', '.join(SPLITS)}, "
            f"e.g. {uri.removesuffix('@').removesuffix('@' + names[0])}@test",
        )
    for name in names:
        place = uri if uri.endswith(f"@{name}") else f"{uri.removesuffix('@')}@{name}"
        with dataset_errors_explained(place):
            for number, row in enumerate(open_dataset(uri, name), 1):
                yield f"{place}#{number}", row, as_split(name)


def _line(record: Any, where: str, split: Split | None) -> Line:
    if not isinstance(record, dict):
        return Line(where, None, f"{_KINDS[type(record)]}, not an object; write one object per line")
    said = {name: value for name, value in record.items() if value is not None}
    if split is not None and not said.get("split"):
        said["split"] = split
    try:
        return Line(where, Scenario.model_validate(said))
    except ValidationError as error:
        return Line(where, None, "; ".join(map(_explained, error.errors(include_url=False))))


def _explained(error: Any) -> str:
    field_name = ".".join(map(str, error["loc"]))
    said = error["msg"].removeprefix("Value error, ")
    said = said[:1].lower() + said[1:].replace("valid tuple", "list")
    if error["type"] == "missing":
        return f"{field_name} is missing"
    if not field_name:
        return str(said)
    given = str(error["input"])
    return f"{field_name}: {said} (got {given[:60] + '…' if len(given) > 60 else given!r})"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which scenarios to take. Each default takes all."""

    splits: frozenset[Split] = frozenset()
    min_messages: int = 0
    """Fewest sources of a scenario."""
    max_messages: int | None = None
    """Most sources of a scenario."""
    min_realism: float = 0
    """Least `how_realistic`; a scenario that does not say is left out where this is above 0."""
    max_answer: int | None = None
    """Most words of a reference answer."""
    inboxes: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    """Ids to leave out."""
    shuffle: int | None = None
    """Seed of an order that does not depend on the order before; None leaves that as it is."""
    limits: Mapping[Split, int] = field(default_factory=dict)
    """Most scenarios of a split, the first of them in the order chosen."""

    def apply(self, scenarios: ScenarioSet) -> tuple[ScenarioSet, Counter[str]]:
        """Those that are taken, and how many were left out, by reason."""
        inboxes = {normal_address(inbox) for inbox in self.inboxes}
        left_out: Counter[str] = Counter()
        kept: list[Scenario] = []
        taken: Counter[Split | None] = Counter()
        ordered = list(scenarios)
        if self.shuffle is not None:
            seed = self.shuffle
            ordered.sort(key=lambda each: seeded(seed, each.id))
        for scenario in ordered:
            reason = self._reason_against(scenario, inboxes)
            limit = None if scenario.split is None else self.limits.get(scenario.split)
            if reason is None and limit is not None and taken[scenario.split] >= limit:
                reason = f"over the limit of {scenario.split}"
            if reason is None:
                taken[scenario.split] += 1
                kept.append(scenario)
            else:
                left_out[reason] += 1
        return ScenarioSet.of(kept), left_out

    def _reason_against(self, scenario: Scenario, inboxes: set[str]) -> str | None:
        sources = len(scenario.sources)
        reasons = {
            "excluded": scenario.id in self.exclude,
            "in another split": bool(self.splits) and scenario.split not in self.splits,
            "in another inbox": bool(inboxes) and scenario.inbox_address not in inboxes,
            "fewer sources": sources < self.min_messages,
            "more sources": self.max_messages is not None and sources > self.max_messages,
            "longer answer": self.max_answer is not None and len(scenario.answer.split()) > self.max_answer,
            "less realistic": (scenario.how_realistic or 0) < self.min_realism,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)
