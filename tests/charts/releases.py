"""Record what an upgrade of the chart must keep: accepted values, names of objects, and immutable fields.

Before a release, run `python -m tests.charts.releases` and commit the new directory in tests/charts/releases.
"""

from functools import reduce
from pathlib import Path
from typing import Any

import yaml

RELEASES = Path(__file__).parent / "releases"
IMMUTABLE: dict[str, list[tuple[str, ...]]] = {
    "ClusterRoleBinding": [("roleRef",)],
    "Deployment": [("spec", "selector")],
    "InferenceService": [("metadata", "annotations", "serving.kserve.io/deploymentMode")],
    "Job": [("spec", "selector"), ("spec", "template"), ("spec", "completions")],
    "PersistentVolumeClaim": [("spec",)],
    "RoleBinding": [("roleRef",)],
    "StatefulSet": [("spec", name) for name in ("selector", "serviceName", "volumeClaimTemplates")],
}
"""Fields that an API server, or the webhook of a controller, refuses to change, by kind."""

Objects = dict[tuple[str, str], Any]
"""Rendered objects by kind and name."""


def summarize(objects: Objects) -> dict[str, dict[str, Any]]:
    """Return the immutable fields of each object, by `Kind/name`. Hooks are left out: Helm creates them anew."""
    return {
        f"{kind}/{name}": {".".join(path): reduce(_get, path, each) for path in IMMUTABLE.get(kind, [])}
        for (kind, name), each in sorted(objects.items())
        if "helm.sh/hook" not in each["metadata"].get("annotations", {})
    }


def list_breaks(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """Return what an upgrade would delete or could not change: `Kind/name`, or `Kind/name: field`."""
    gone = [name for name in before if name not in after]
    changed = [
        f"{name}: {field}"
        for name, fields in before.items()
        for field, value in fields.items()
        if name in after and after[name].get(field) != value
    ]
    return gone + changed


def read_releases() -> dict[str, dict[str, Any]]:
    """Return `values` and `objects` of each recorded release and mode, by `VERSION/MODE`."""
    files = sorted(RELEASES.glob("*/*.yaml"))
    return {f"{each.parent.name}/{each.stem}": yaml.safe_load(each.read_text()) for each in files}


def _get(inside: Any, name: str) -> Any:
    return inside.get(name) if isinstance(inside, dict) else None


def main() -> None:
    """Record the chart of this checkout as a release."""
    from tests.charts.test_agent_chart import CHART, MODES, render, values_of

    directory = RELEASES / yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    directory.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        record = {"values": values_of(mode), "objects": summarize(render(values_of(mode)))}
        (directory / f"{mode}.yaml").write_text(yaml.safe_dump(record, sort_keys=False, width=120))


if __name__ == "__main__":
    main()
