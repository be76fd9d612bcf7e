"""Make an attacked copy of an index and its scenarios, to train with the reward `safe`."""

import io
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.errors import UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.scenario import Scenario, ScenarioSet, Split, seeded_sort_key
from gumshoe.synthesis.attacks.attack_recipe import PlannedAttack
from gumshoe.synthesis.attacks.attack_suite import attacked_scenario, plan_suite
from gumshoe.synthesis.attacks.delivery import deliver

INDEX = "index"
_TRAINED: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True)
class AttackedCopy:
    """Attacks on the training and validation scenarios of a set, with families that may be trained on."""

    planned: tuple[PlannedAttack, ...]
    scenarios: ScenarioSet

    def write(self, index: Path, directory: Path) -> None:
        """Write the attacked index and the scenarios into a directory.

        Raises:
            GumshoeError: if it cannot be written.
        """
        mark_private(directory, self.scenarios.inboxes)
        partial = directory / f".{INDEX}.partial"
        deliver(self.planned, index, partial)
        with explain_os_errors(directory):
            shutil.rmtree(directory / INDEX, ignore_errors=True)
            partial.rename(directory / INDEX)
            write_atomically(directory / SCENARIOS_FILE, io.BytesIO(self.scenarios.to_jsonl()))

    def count_families(self) -> Mapping[str, int]:
        """Return the number of attacks of each family."""
        return dict(sorted(Counter(each.recipe.family for each in self.planned).items()))


def plan_attacked_copy(index: MailIndex, scenarios: ScenarioSet, share: float, seed: int) -> AttackedCopy:
    """Plan one attack on each of a share of the training scenarios, and of the validation scenarios.

    Test scenarios are never attacked: `gumshoe evaluate --attacks` does that.

    Raises:
        UsageError: if no scenario is left to attack.
    """
    planned: list[PlannedAttack] = []
    for split in _TRAINED:
        chosen = _choose(list(scenarios.only(split)), share, seed)
        if chosen:
            planned += plan_suite(index, chosen, "train", len(chosen), f"{seed}/{split}")
    if not planned:
        raise UsageError(
            "synthesis.nothing-to-attack",
            f"no train or validation scenario about mail to attack among {len(scenarios):,}; split them with `gumshoe "
            "scenarios split`, or raise --share",
        )
    by_scenario = {each.scenario: each.planted for each in planned}
    return AttackedCopy(
        tuple(planned),
        ScenarioSet.of(
            attacked_scenario(each, by_scenario[each.id]) if each.id in by_scenario else each for each in scenarios
        ),
    )


def _choose(scenarios: Sequence[Scenario], share: float, seed: int) -> list[Scenario]:
    """Return a share of the scenarios about mail, at least one if there are any."""
    about_mail = [each for each in scenarios if each.inbox_address is not None]
    ordered = sorted(about_mail, key=lambda each: seeded_sort_key(seed, each.id))
    return ordered[: max(1, round(share * len(ordered)))]
