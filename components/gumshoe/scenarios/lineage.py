"""The scenarios that an adapter has seen: a file beside its weights, so that it is never tested on them."""

import io
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gumshoe.artifacts.source_files import read_json_model
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.scenarios.learned_sources import LearnedSources
from gumshoe.scenarios.scenario import Scenario, ScenarioRecord, ScenarioSet
from gumshoe.scenarios.splitting import SeenQuestions

LINEAGE_FILE = "scenarios.json"


class Lineage(BaseModel):
    """The scenarios that an adapter was trained on and selected on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned_from: ScenarioRecord
    chosen_on: ScenarioRecord | None = None
    sources: LearnedSources | None = None
    """Inboxes and collections that it was trained on; None in adapters of earlier versions."""
    before: "Lineage | None" = None
    """Lineage of the adapter that training started from."""

    @classmethod
    def of(cls, learned: ScenarioSet, chosen: ScenarioSet | None = None, before: "Lineage | None" = None) -> "Lineage":
        """Return the lineage of an adapter that was trained on some scenarios, and selected on others."""
        return cls(
            learned_from=learned.to_record(),
            chosen_on=None if chosen is None else chosen.to_record(),
            sources=LearnedSources.of(learned),
            before=before,
        )

    @property
    def history(self) -> list["Lineage"]:
        """This lineage and those before it."""
        return [self, *(self.before.history if self.before else ())]

    @property
    def learned_sources(self) -> list[LearnedSources] | None:
        """All sources that it was trained on; None if some of them are not recorded."""
        trained = [each for each in self.history if each.learned_from.ids]
        known = [each.sources for each in trained if each.sources is not None]
        return known if len(known) == len(trained) else None

    def admits(self, scenario: Scenario) -> bool:
        """Return True if a question is about an inbox that the adapter was trained on.

        A caller who may read documents must be able to read all collections that it was trained on. Nobody else is
        admitted if it was trained on mail and on such collections, or if its sources are not recorded.
        """
        known = self.learned_sources
        if known is None:
            return False
        has_mail = any(each.inboxes for each in known)
        has_collections = any(each.collections is not None for each in known)
        if scenario.inbox_address is None:
            return not has_mail and all(each.may_read_all(scenario) for each in known)
        if has_collections:
            return False
        return not has_mail or any(each.has_inbox(scenario.inbox_address) for each in known)

    @property
    def seen(self) -> SeenQuestions:
        """All questions that were seen, also by the adapter that training started from."""
        learned = frozenset(question for each in self.history for question in each.learned_from.questions)
        chosen = (question for each in self.history if each.chosen_on for question in each.chosen_on.questions)
        return SeenQuestions(learned, frozenset(chosen) - learned)

    @property
    def questions(self) -> frozenset[str]:
        """Digests of all questions that were seen."""
        return frozenset(self.seen.learned | self.seen.chosen)

    def write(self, directory: Path) -> None:
        """Write the lineage into an adapter's directory."""
        write_atomically(directory / LINEAGE_FILE, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))

    @classmethod
    def read(cls, directory: Path) -> "Lineage | None":
        """Return the lineage in an adapter's directory, or None if the file does not exist.

        Raises:
            UsageError: if it cannot be read.
        """
        return read_json_model(cls, directory / LINEAGE_FILE, "scenarios")

    def check_unseen(self, scenarios: ScenarioSet, policy: str) -> None:
        """Check that a policy has not seen any of the scenarios.

        Raises:
            UsageError: if it has; the message gives their number and an example.
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
