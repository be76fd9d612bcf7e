"""Which scenarios an adapter has seen: a file beside its weights, so that it is never tested on them."""

import io
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.source_files import read_model
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.scenarios.scenario import ScenarioRecord, ScenarioSet

LINEAGE = "scenarios.json"


class Lineage(BaseModel):
    """What an adapter learned from, and what it was chosen on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned_from: ScenarioRecord
    chosen_on: ScenarioRecord | None = None
    before: "Lineage | None" = None
    """Of the adapter that it was begun at."""

    @property
    def questions(self) -> frozenset[str]:
        """The digests of all the scenarios that were seen."""
        records = [self.learned_from, *([self.chosen_on] if self.chosen_on else [])]
        own = frozenset(each for record in records for each in record.questions)
        return own | self.before.questions if self.before else own

    def write(self, directory: Path) -> None:
        """Into an adapter's directory."""
        write_atomically(directory / LINEAGE, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))

    @classmethod
    def read(cls, directory: Path) -> "Lineage | None":
        """That of an adapter's directory; None where it has none.

        Raises:
            UsageError: it cannot be read.
        """
        return read_model(cls, directory / LINEAGE, "scenarios")

    def check_unseen(self, scenarios: ScenarioSet, policy: str) -> None:
        """
        Raises:
            UsageError: the policy has seen some of the scenarios; it says how many, and names one.
        """
        if self.before is not None:
            self.before.check_unseen(scenarios, policy)
        for was_trained, record in ((True, self.learned_from), (False, self.chosen_on)):
            questions = set(record.questions) if record else set[str]()
            seen = [each.id for each in scenarios if each.digest in questions]
            if seen:
                raise UsageError(
                    "scenarios.seen-in-training" if was_trained else "scenarios.seen-in-selection",
                    f"{policy} was {'trained' if was_trained else 'selected'} on {len(seen):,} of these "
                    f"{len(scenarios):,} scenarios, e.g. {seen[0]}; evaluate it on other scenarios, e.g. --split test",
                )
