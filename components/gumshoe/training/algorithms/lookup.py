"""Find an algorithm by its name, and validate its settings."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from gumshoe.errors import UsageError
from gumshoe.model_validation import validate_model
from gumshoe.plugins import import_attribute, parse_named
from gumshoe.training.algorithms.algorithm import Algorithm

BUILT_IN = {
    "grpo": "gumshoe.training.algorithms.grpo:Grpo",
    "dapo": "gumshoe.training.algorithms.dapo:Dapo",
    "bnpo": "gumshoe.training.algorithms.bnpo:Bnpo",
    "dr_grpo": "gumshoe.training.algorithms.dr_grpo:DrGrpo",
    "gspo": "gumshoe.training.algorithms.gspo:Gspo",
    "cispo": "gumshoe.training.algorithms.cispo:Cispo",
    "sapo": "gumshoe.training.algorithms.sapo:Sapo",
    "rloo": "gumshoe.training.algorithms.rloo:Rloo",
    "turn_level": "gumshoe.training.algorithms.turn_level:TurnLevel",
}
"""Algorithms that are named without their module."""


class AlgorithmChoice(BaseModel):
    """An algorithm as a configuration names it: `dapo`, or with settings `{dapo: {epsilon: 0.1}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    settings: dict[str, Any] = {}

    @classmethod
    def parse(cls, value: Any) -> "AlgorithmChoice":
        """Read a name, or a mapping of one name to its settings; text may be either, in YAML.

        Raises:
            UsageError: the value has another form.
        """
        if isinstance(value, cls):
            return value
        if (found := parse_named(value, "settings")) is not None:
            return cls(name=found[0], settings=found[1])
        raise UsageError(
            "settings.invalid-algorithm",
            f"not an algorithm: {value!r}; give one of {', '.join(BUILT_IN)}, package.module:Class, or one with its "
            "settings, as {dapo: {epsilon: 0.1}}",
        )

    def load(self) -> Algorithm:
        """Return the algorithm.

        Raises:
            UsageError: no such algorithm exists, or it does not accept the settings.
        """
        return find_algorithm(self.name, self.settings)


NamedAlgorithm = Annotated[
    AlgorithmChoice, BeforeValidator(AlgorithmChoice.parse, json_schema_input_type=str | dict[str, Any])
]
"""An algorithm, as a setting."""


def find_algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm with its settings.

    Raises:
        UsageError: no such algorithm exists, or it does not accept the settings.
    """
    place, _, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not place:
        raise UsageError(
            "settings.unknown-algorithm",
            f"unknown algorithm: {name!r}; give one of {', '.join(BUILT_IN)}, or your own as my_package.module:Class",
        )
    kind = import_attribute(f"the algorithm {name}", place, attribute, "settings.algorithm-not-importable")
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise UsageError(
            "settings.not-an-algorithm",
            f"{name} is not an algorithm: {place} has no class {attribute!r} that derives from "
            f"{Algorithm.__module__}.{Algorithm.__name__}",
        )
    return kind(validate_model(kind.Settings, settings, "settings.invalid-algorithm-setting", f"the algorithm {name}"))
