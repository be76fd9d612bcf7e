"""Read the adapters in service from the values of a release, and change which ones they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]
SECTIONS = ("adapter", "canary", "previous")
"""Groups of chart values that name an adapter."""


@dataclass(frozen=True, slots=True)
class ServingState:
    """The adapters that a release has in service."""

    adapter: str
    canary: str = ""
    """The adapter on trial; empty without a canary."""
    percent: float = 0
    """Percentage of the questions that the canary gets: 0 while it is loading, and after a rollback."""
    previous: str = ""
    """The adapter that was in service before, kept loaded for a rollback."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ServingState":
        """Read the state from chart values."""
        names = {part: str(get_section(values, part).get("name") or "") for part in SECTIONS}
        percent = get_section(values, "canary").get("percent", 10) if names["canary"] else 0
        return cls(names["adapter"], names["canary"], percent, names["previous"])

    @property
    def names(self) -> list[str]:
        """The adapters that vLLM has loaded."""
        return [each for each in (self.adapter, self.canary, self.previous) if each]

    @property
    def traffic(self) -> dict[str, float]:
        """Percentage of the questions by adapter."""
        return (
            {self.adapter: 100 - self.percent}
            | dict.fromkeys(self.names[1:], 0)
            | ({self.canary: self.percent} if self.canary else {})
        )


def describe_release(serving: ServingState) -> str:
    """Return the adapters in service and their traffic, in one line."""
    shares = [f"{name} takes {share:g} %" for name, share in serving.traffic.items() if share]
    loaded = [f"{name} is loaded" for name, share in serving.traffic.items() if not share]
    return ", ".join(shares + loaded)


def merge_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """Merge chart values like Helm merges files. An empty group (None) keeps the existing one."""
    both = dict(values)
    for name, value in changes.items():
        inner = both.get(name)
        if value is None and isinstance(inner, dict):
            continue
        both[name] = merge_values(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def get_section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one group of chart values; empty if it is not set."""
    return dict(values.get(name) or {})


def select_name_and_uri(adapter: Mapping[str, Any]) -> Values:
    """Return only the name and the URI of an adapter's values."""
    return {"name": adapter["name"], "uri": adapter.get("uri", "")}


def add_idle_canary(before: Values, after: Values, version: str, uri: str) -> Values:
    """Return the new values, with the old adapter still in service and the new one as a canary without traffic."""
    canary = {"name": version, "uri": uri, "percent": 0}
    return {
        **after,
        "adapter": {**after["adapter"], **select_name_and_uri(before["adapter"])},
        "canary": canary,
        "previous": {},
    }


def promote_canary(values: Values) -> Values:
    """Put the canary into service, and keep the adapter before it."""
    return serve_section(values, "canary", {"previous": select_name_and_uri(values["adapter"]), "canary": {}})


def serve_section(values: Values, by: str, others: Values) -> Values:
    """Put the adapter of section `by` into service."""
    return {**values, "adapter": {**values["adapter"], **select_name_and_uri(values[by])}, **others}
