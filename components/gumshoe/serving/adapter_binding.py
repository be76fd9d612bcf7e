"""Bind adapters to the inboxes and collections that they were trained on: nobody else gets answers from them.

An adapter may give away what it memorized of its training mail, whatever its tools may read.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gumshoe.errors import UsageError
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.settings import ServedModelSettings

if TYPE_CHECKING:
    from gumshoe.serving.served_policies import ServedPolicy

_log = logging.getLogger(__name__)


class AdapterBoundError(Exception):
    """Report that no policy in service may answer a question about this inbox."""


def read_lineages(directories: Iterable[Path]) -> tuple[Lineage, ...]:
    """Return the records of what a policy was trained on, of its adapter and of its model.

    Raises:
        UsageError: if a record cannot be read.
    """
    found = map(Lineage.read, directories)
    return tuple(each for each in found if each is not None)


def bind_policies(policies: Sequence["ServedPolicy"], model: ServedModelSettings) -> None:
    """Bind policies to what they were trained on, as the settings say. Warn if one learned from real mail and is not.

    Raises:
        UsageError: if a policy that must be bound has no complete record of what it was trained on.
    """
    for each in policies:
        lineages = read_lineages(each.directories)
        if model.bound == "off":
            _warn_if_unbound(each.name.version, lineages)
            continue
        if not lineages or any(lineage.learned_sources is None for lineage in lineages):
            wanted = "model.canary_adapter" if each is not policies[0] else "model.adapter or model.tokenizer"
            raise UsageError(
                "serving.binding-record-missing",
                f"model.bound is {model.bound}, but what {each.name.version} was trained on is not recorded; set "
                f"{wanted} to the directory of an adapter that this version of Gumshoe trained, or model.bound to off",
            )
        each.bound_to = lineages


def check_fallback(directories: Iterable[Path]) -> None:
    """Check that the base model, which answers all other callers, was not trained on mail or collections itself.

    Raises:
        UsageError: if it was.
    """
    lineages = read_lineages(directories)
    if any(each.learned_sources is None or any(not one.is_empty for one in each.learned_sources) for each in lineages):
        raise UsageError(
            "serving.base-model-trained",
            "model.bound is base, but the base model was trained on mail or collections itself; set model.bound to "
            "refuse",
        )


def admits(policy: "ServedPolicy", scenario: Scenario) -> bool:
    """Return True if a policy may answer a question: it is bound to its inbox, or not at all."""
    return all(lineage.admits(scenario) for lineage in policy.bound_to)


def _warn_if_unbound(version: str, lineages: Iterable[Lineage]) -> None:
    known = [each for lineage in lineages for each in lineage.learned_sources or ()]
    inboxes = {each for one in known if not one.is_invented for each in one.inboxes}
    if inboxes:
        _log.warning(
            "%s was trained on the mail of %s inboxes and is not bound to them: callers of other inboxes may get what "
            "it memorized. Set model.bound to base or refuse, or measure it with `gumshoe evaluate --memorised`.",
            version,
            len(inboxes),
        )
