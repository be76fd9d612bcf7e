"""Read scenarios from `jsonl:` files and `hf:` datasets, and select some of them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gumshoe.artifacts.hub import explain_dataset_errors, list_splits, open_dataset
from gumshoe.artifacts.lines import GZIP_ERRORS, file_size, read_lines
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.documents.sources import is_medquad_record
from gumshoe.json_text import load_json
from gumshoe.mail.message import normalize_address
from gumshoe.scenarios import medquad
from gumshoe.scenarios.scenario import SPLITS, Scenario, ScenarioError, ScenarioSet, Split, parse_split, seeded_sort_key

_MAX_SHOWN = 5  # malformed lines listed in one error
_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class ScenarioLine:
    """One line of a file, or one row of a dataset."""

    where: str
    """Its location, e.g. `questions.jsonl:12`."""
    scenario: Scenario | None
    fault: str = ""
    """Problem of a line without a scenario."""
    left_out: int = 0
    """Number of records without an answer, reported once at the end."""


def read_scenarios(source: str) -> Iterator[ScenarioLine]:
    """Yield each line of `jsonl:FILE[.gz]` (or a path, `file://`, `s3://`) or each row of `hf:DATASET[@SPLIT]`.

    All splits of a dataset are read, unless one is named. A row without its own `split` gets the dataset's split.
    MedQuAD records come last, grouped by question, and have no split.

    Raises:
        ScenarioError: if the file does not exist or is damaged, or the dataset's splits have other names.
        GumshoeError: if the file or the dataset cannot be read.
    """
    records = _read_rows(source) if source.startswith("hf:") else _read_lines(source.removeprefix("jsonl:"))
    gatherer = medquad.MedQuadGrouper()
    for where, record, split in records:
        if isinstance(record, ScenarioLine):
            yield record
        elif isinstance(record, dict) and is_medquad_record(record):
            try:
                gatherer.add(record, where)
            except (TypeError, ValueError) as error:
                yield ScenarioLine(where, None, str(error))
        else:
            yield _to_line(record, where, split)
    for where, gathered in gatherer.make_scenarios():
        yield _to_line(gathered, where, None)
    if gatherer.without_answer:
        yield ScenarioLine(source, None, left_out=gatherer.without_answer)


def load_scenarios(source: str, left_out: Counter[str] | None = None) -> ScenarioSet:
    """Load all scenarios of a source (see `read_scenarios`). Records without an answer are counted in `left_out`.

    Raises:
        ScenarioError: if a line is malformed, or an id is used twice; the message names the lines.
        ScenarioError, GumshoeError: as in `read_scenarios`.
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
        more = [f"and {len(faults) - _MAX_SHOWN} more"] if len(faults) > _MAX_SHOWN else []
        raise ScenarioError(
            "scenarios.malformed-line" if has_malformed else "scenarios.duplicate-id",
            "\n".join([*faults[:_MAX_SHOWN], *more]),
        )
    if not scenarios:
        raise ScenarioError("scenarios.no-scenarios", f"{source} holds no scenarios; check the source")
    return ScenarioSet.of(scenarios)


_LocatedRecord = tuple[str, Any, Split | None]
"""Location of a record, the record (or a ScenarioLine if it cannot be read), and its default split."""


def _read_lines(place: str) -> Iterator[_LocatedRecord]:
    try:
        file_size(place)  # raises if it is not a single file
    except NotFoundError as error:
        raise ScenarioError(error.code, error.message) from None
    number = 0
    try:
        for number, line in enumerate(read_lines(place), 1):
            if line.strip():
                where = f"{place}:{number}"
                yield where, _parse_json(line, where), None
    except GZIP_ERRORS as error:
        raise ScenarioError(
            "scenarios.damaged-file", f"{place} cannot be unpacked after line {number} ({error}); fetch it again"
        ) from None


def _parse_json(line: bytes, where: str) -> Any:
    try:
        return load_json(line)
    except ValueError as error:
        return ScenarioLine(where, None, f"not JSON ({error}); write one object per line, in UTF-8")


def _read_rows(uri: str) -> Iterator[_LocatedRecord]:
    names = list_splits(uri)
    unknown = sorted(set(names) - set(SPLITS))
    if unknown:
        raise ScenarioError(
            "scenarios.unknown-dataset-split",
            f"{uri} has splits that scenarios cannot be in: {', '.join(unknown)}; name one of {', '.join(SPLITS)}, "
            f"e.g. {uri.removesuffix('@').removesuffix('@' + names[0])}@test",
        )
    for name in names:
        place = uri if uri.endswith(f"@{name}") else f"{uri.removesuffix('@')}@{name}"
        with explain_dataset_errors(place):
            for number, row in enumerate(open_dataset(uri, name), 1):
                yield f"{place}#{number}", row, parse_split(name)


def _to_line(record: Any, where: str, split: Split | None) -> ScenarioLine:
    if not isinstance(record, dict):
        return ScenarioLine(where, None, f"{_KINDS[type(record)]}, not an object; write one object per line")
    fields = {name: value for name, value in record.items() if value is not None and value == value}  # NaN
    if split is not None and not fields.get("split"):
        fields["split"] = split
    try:
        return ScenarioLine(where, Scenario.model_validate(fields))
    except ValidationError as error:
        return ScenarioLine(where, None, "; ".join(map(_explain_error, error.errors(include_url=False))))


def _explain_error(error: Any) -> str:
    field_name = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:].replace("valid tuple", "list")
    if error["type"] == "missing":
        return f"{field_name} is missing"
    if not field_name:
        return str(message)
    given = str(error["input"])
    return f"{field_name}: {message} (got {given[:60] + '…' if len(given) > 60 else given!r})"


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters for scenarios. The defaults select all."""

    splits: frozenset[Split] = frozenset()
    min_messages: int = 0
    """Minimum number of sources."""
    max_messages: int | None = None
    """Maximum number of sources."""
    min_realism: float = 0
    """Minimum `how_realistic`. Above 0, scenarios without this field are excluded."""
    max_answer: int | None = None
    """Maximum number of words in the reference answer."""
    inboxes: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()
    """Ids to exclude."""
    shuffle: int | None = None
    """Seed of an order that is independent of the input order. None keeps the input order."""
    limits: Mapping[Split, int] = field(default_factory=dict)
    """Maximum number of scenarios per split: the first ones in the chosen order."""

    def apply(self, scenarios: ScenarioSet) -> tuple[ScenarioSet, Counter[str]]:
        """Return the selected scenarios, and the number of excluded ones by reason."""
        inboxes = {normalize_address(inbox) for inbox in self.inboxes}
        left_out: Counter[str] = Counter()
        kept: list[Scenario] = []
        selected_counts: Counter[Split | None] = Counter()
        ordered = list(scenarios)
        if self.shuffle is not None:
            seed = self.shuffle
            ordered.sort(key=lambda each: seeded_sort_key(seed, each.id))
        for scenario in ordered:
            reason = self._find_exclusion_reason(scenario, inboxes)
            limit = None if scenario.split is None else self.limits.get(scenario.split)
            if reason is None and limit is not None and selected_counts[scenario.split] >= limit:
                reason = f"over the limit of {scenario.split}"
            if reason is None:
                selected_counts[scenario.split] += 1
                kept.append(scenario)
            else:
                left_out[reason] += 1
        return ScenarioSet.of(kept), left_out

    def _find_exclusion_reason(self, scenario: Scenario, inboxes: set[str]) -> str | None:
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
