"""DAPO."""

from collections.abc import Mapping
from typing import Any

from gumshoe.training.algorithms.algorithm import Algorithm, clipped_trl_arguments


class Dapo(Algorithm):
    """DAPO (https://arxiv.org/abs/2503.14476): each token of a step counts the same, and the upper clip is wider."""

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `dapo`."""
        return clipped_trl_arguments("dapo", self.settings)
