"""Replace names of training settings that earlier versions used."""

from typing import Any

from gumshoe.training.algorithms.lookup import AlgorithmChoice

_ALGORITHM = frozenset({"loss_type", "importance", "scale_advantages", "epsilon", "epsilon_high"})
_DEFAULTS = {"scale_advantages": "group", "epsilon": 0.2, "epsilon_high": 0.28}
OLD_NAMES = frozenset({*(f"optimizer.{name}" for name in _ALGORITHM), "rewards.by_turn"})
"""Dotted names of the settings that `optimizer.algorithm` replaces."""


def replace_old_algorithm(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings of the optimizer with `algorithm` in place of its old names; without any, return them unchanged.

    Raises:
        UsageError: `algorithm` is invalid.
    """
    old = {name: values[name] for name in _ALGORITHM & set(values)}
    if not old:
        return values
    before = AlgorithmChoice.parse(values.get("algorithm", "dapo"))
    name = "gspo" if old.get("importance") == "sequence" else old.get("loss_type", before.name)
    settings = dict(before.settings) if name == before.name else {}
    settings |= {
        key.removesuffix("_advantages"): value
        for key, value in old.items()
        if key in _DEFAULTS and value != _DEFAULTS[key]
    }
    if name == "dr_grpo" and name != before.name:
        settings.setdefault("scale", "group")  # the former default of all loss types
    rest = {key: value for key, value in values.items() if key not in _ALGORITHM}
    return {**rest, "algorithm": {"name": name, "settings": settings}}
