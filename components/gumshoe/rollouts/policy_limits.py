"""Take the limits of episodes from the training of a policy, so that it is measured and served as it was trained."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.inference.policy_names import MERGE_RECORD
from gumshoe.rollouts.episode import EpisodeLimits

METADATA = "metadata.json"
"""File in an adapter's directory with the settings that it was trained with."""
_WARM_START = "warm_start.json"  # the same of an adapter or a model after a warm start


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """Limits of the episodes of a policy. The defaults are for policies whose training is not known."""

    max_turns: int = 10
    max_tokens: int = 512
    """Maximum number of tokens per turn."""
    max_context: int = 8192
    """Maximum number of tokens per episode."""

    @classmethod
    def of(
        cls,
        directories: Iterable[Path],
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_context: int | None = None,
    ) -> "PolicyLimits":
        """Return the given limits, and for all others those that a policy was trained with, or the defaults.

        `directories` are those of the policy's adapter, model and tokenizer. The first one with a record counts.
        """
        known = next(filter(None, map(read_trained_limits, directories)), cls())
        return cls(max_turns or known.max_turns, max_tokens or known.max_tokens, max_context or known.max_context)

    @property
    def episode(self) -> EpisodeLimits:
        """The limits as an episode takes them."""
        return EpisodeLimits(self.max_turns, self.max_context)

    def __str__(self) -> str:
        return f"{self.max_turns} turns of {self.max_tokens:,} tokens, {self.max_context:,} tokens in all"


def read_trained_limits(directory: Path) -> PolicyLimits | None:
    """Return the limits of the training of an adapter or a model, or of a merged adapter; None without a record."""
    damaged = (OSError, ValueError, LookupError, TypeError, AttributeError)  # e.g. a file of another program
    for name in (METADATA, _WARM_START):
        with suppress(*damaged):
            found: Any = json.loads((directory / name).read_bytes())
            settings = found.get("spec", found)["settings"]
            rollouts, model = settings["rollouts"], settings["model"]
            return PolicyLimits(int(rollouts["max_turns"]), int(rollouts["max_tokens"]), int(model["max_context"]))
    with suppress(*damaged):
        merged = json.loads((directory / MERGE_RECORD).read_bytes())["limits"]
        return PolicyLimits(*(int(merged[name]) for name in ("max_turns", "max_tokens", "max_context")))
    return None
