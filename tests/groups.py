"""Tiers of tests, and their distribution to workers: by group, the longest group first.

The group of a test is named by the marker `group`, else by `DIRECTORIES`, else it is the file. The tests of a group run
in one worker, one after another, and share module fixtures. The times of groups come from the last run (`tests.times`).
Without one, tests marked `nightly` and `ci` come first, and the many small groups of the other tests fill up the end.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.times import LAST, read_times

TIERS = ("nightly", "ci")
"""Markers, the longest first; a test without one belongs to the quick tier."""
NEEDS_MARKER = {"vllm", "browser"}
"""Fixtures that no quick test may use."""
SLOW_IMPORTS = {"datasets", "fastapi", "kfp", "mcp", "peft", "torch", "transformers", "trl", "vllm"}
"""Packages that test modules import in fixtures and tests only, because each worker collects all tests."""
DIRECTORIES = {"tests/serving": "serving"} | {f"tests/{each}": "torch" for each in ("inference", "tiny", "training")}
"""Groups of whole directories, whose tests share slow imports and fixtures of the session."""
_ESTIMATES = {"nightly": 60.0, "ci": 3.0, "quick": 0.1}  # seconds of a test without a measured time
_LONG, _LONG_ESTIMATE = ("tests/integration/", "tests/test_doc_commands.py"), 30.0  # tests of `ci` that take longest


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: nightly, ci or quick. `nightly` on a test wins over `ci` on its module.

    Raises:
        pytest.UsageError: a quick test uses a fixture that it must not use.
    """
    for tier in TIERS:
        if item.get_closest_marker(tier):
            return tier
    if heavy := NEEDS_MARKER.intersection(getattr(item, "fixturenames", ())):
        raise pytest.UsageError(f"{item.nodeid} uses {', '.join(sorted(heavy))}; mark it ci or nightly")
    return "quick"


def group_of(item: pytest.Item) -> str:
    """Return the name of the group that a test runs in."""
    marker = item.get_closest_marker("group")
    file = item.nodeid.partition("::")[0]
    return str(marker.args[0]) if marker else DIRECTORIES.get(file.rpartition("/")[0], file)


def sort_longest_first(items: Iterable[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Sort tests by group, the longest group first; the order within a group stays."""
    groups = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        groups[group_of(item)].append(item)

    def taken(group: Sequence[pytest.Item]) -> float:
        return sum(seconds.get(each.nodeid, _estimate(each)) for each in group)

    return [item for group in sorted(groups.values(), key=taken, reverse=True) for item in group]


def _estimate(item: pytest.Item) -> float:
    tier = tier_of(item)
    return _LONG_ESTIMATE if tier == "ci" and item.nodeid.startswith(_LONG) else _ESTIMATES[tier]


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Give a worker one group at a time, in the order in which the groups were collected.

    xdist's own `loadgroup` changes the ids of tests, which pytest 9.2 no longer permits. The workers write the groups
    to a file.
    """

    def __init__(self, config: pytest.Config, log: Any, groups: Path) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._file = groups
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        self._groups = json.loads(self._file.read_bytes())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "group(name): run with the tests of that group, instead of with its file's")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if found := SLOW_IMPORTS.intersection(sys.modules):
        raise pytest.UsageError(f"{report.nodeid} imports {', '.join(sorted(found))}; import it in a fixture or a test")


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    last = config.rootpath / LAST
    items[:] = sort_longest_first(items, read_times(last).tests if last.exists() else {})
    for item in items:
        item.user_properties.append(("tier", tier_of(item)))  # for `tests.times`
    worker = getattr(config, "workerinput", None)
    if worker:  # all workers write the same content
        path = Path(worker[_GROUPS])
        partial = path.with_suffix(f".{worker['workerid']}")
        partial.write_text(json.dumps({each.nodeid: group_of(each) for each in items}))
        partial.replace(path)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_GROUPS] = str(_groups_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log, _groups_file(config))


_GROUPS = "groups"
_DIRECTORY = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()


def _groups_file(config: pytest.Config) -> Path:
    """Return the file with a run's groups, in a temporary directory of the run."""
    if _DIRECTORY not in config.stash:
        config.stash[_DIRECTORY] = tempfile.TemporaryDirectory(prefix="test-groups-")
        config.add_cleanup(config.stash[_DIRECTORY].cleanup)
    return Path(config.stash[_DIRECTORY].name) / "groups.json"
