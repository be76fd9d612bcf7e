"""Record the times of tests (`make test`), end those that hang, and compare two runs.

    python -m tests.times BEFORE.json AFTER.json

prints the totals of both runs, and the tests whose times differ most.
"""

import faulthandler
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from pydantic import TypeAdapter

LAST = Path("outputs") / "test-times.json"
"""File to which the make targets write the times of a run, relative to the project's root."""
_SHOWN, _SLOWEST = 20, 10
_AFTER_TIMEOUT = 60.0  # seconds that a test may take after its timeout
_WIDTH = 140  # characters of a test's id
_STACKS = pytest.StashKey[int]()  # descriptor of the file for the stacks of a worker that hangs or crashes
_DIRECTORY = pytest.StashKey[TemporaryDirectory[str]]()  # of the workers' files for them


@dataclass
class WorkerTimes:
    """Times of one worker of a run, in seconds of wall time."""

    begun: float = 0.0
    """Time from the start of the run to the worker's first test."""
    busy: float = 0.0
    """Time in tests, with their fixtures."""
    idle: float = 0.0
    """Time between tests, and from the last test to the end of the run."""


@dataclass
class Times:
    """Times of a test run, in seconds."""

    wall: float = 0.0
    """Time from the start to the end of pytest."""
    tests: dict[str, float] = field(default_factory=dict)
    """Time of each test, by its id: setup, call and teardown."""
    tiers: dict[str, str] = field(default_factory=dict)
    """Tier of each test, by its id: quick, ci or nightly."""
    workers: dict[str, WorkerTimes] = field(default_factory=dict)
    """By name; `main` if tests ran in pytest's own process."""


_FORM = TypeAdapter(Times)


def read_times(path: Path) -> Times:
    """Read the times of a run.

    Raises:
        SystemExit: the file does not exist, or does not contain times.
    """
    try:
        return _FORM.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} does not contain times of tests: {error}; run `make test` to write one") from None


def write_times(times: Times, path: Path) -> None:
    """Write the times of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_FORM.dump_json(times, indent=1) + b"\n")


def compare(before: Times, after: Times) -> str:
    """Return a table of two runs: totals, and the tests whose times differ most."""
    lines = [f"{'before':>9} {'after':>9}  seconds"]
    totals = [("wall", before.wall, after.wall), ("all tests", *(sum(each.tests.values()) for each in (before, after)))]
    lines += [f"{old:9.1f} {new:9.1f}  {name}" for name, old, new in totals]
    names = before.tests.keys() | after.tests.keys()
    pairs = [(before.tests.get(name), after.tests.get(name), name) for name in names]
    pairs.sort(key=lambda each: abs((each[1] or 0) - (each[0] or 0)), reverse=True)
    for old, new, name in pairs[:_SHOWN]:
        shown = ["-" if each is None else f"{each:.1f}" for each in (old, new)]
        lines.append(f"{shown[0]:>9} {shown[1]:>9}  {name}")
    return "\n".join(lines)


class Recorder:
    """Record the times of a run in pytest's main process, show the slowest tests, and write the file."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._started = path, time.time()
        self.times = Times()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # its worker crashed
            return
        worker = self.times.workers.setdefault(
            getattr(report, "worker_id", "main"), WorkerTimes(begun=report.start - self._started)
        )
        worker.busy += report.duration
        seconds = self.times.tests.get(report.nodeid, 0.0) + report.duration
        self.times.tests[report.nodeid] = seconds
        self.times.tiers[report.nodeid] = str(dict(report.user_properties)["tier"])  # see `tests.groups`

    def pytest_sessionfinish(self) -> None:
        self.times.wall = time.time() - self._started
        for each in self.times.workers.values():
            each.idle = max(0.0, self.times.wall - each.begun - each.busy)
        if self._path and self.times.tests:
            write_times(self.times, self._path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("times")
        terminalreporter.write_line(summarize(self.times))


def summarize(times: Times) -> str:
    """Return the summary of a run: seconds by tier and file, the slowest tests, and the times of each worker.

    The files of the quick tier are listed only if all tiers ran.
    """
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    count = Counter[tuple[str, str]]()
    for name, taken in times.tests.items():
        for key in ((times.tiers[name], ""), (times.tiers[name], name.partition("::")[0])):
            seconds[key] += taken
            count[key] += 1
    all_tiers = ("nightly", "") in seconds
    lines = [f"{'seconds':>9} {'tests':>6}"]
    for tier in ("quick", "ci", "nightly"):
        by_file = tier != "quick" or all_tiers
        shown = [key for key in seconds if key[0] == tier and (by_file or not key[1])]
        for key in sorted(shown, key=lambda each: -seconds[each]):
            lines.append(f"{seconds[key]:9.1f} {count[key]:6d}  {key[1] or tier}")
    lines.append(f"the {_SLOWEST} slowest:")
    slowest = sorted(times.tests.items(), key=lambda each: -each[1])[:_SLOWEST]
    lines += [f"{taken:9.1f}         {name[:_WIDTH]}" for name, taken in slowest]
    for name, each in sorted(times.workers.items()):
        lines.append(f"{name}: started after {each.begun:.0f} s, {each.busy:.0f} s in tests, {each.idle:.0f} s idle")
    return "\n".join(lines)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process, and show what its threads do, if a test goes on a minute after its timeout.

    pytest-timeout raises an exception in the main thread, which may then wait for another thread for ever. xdist
    reports the test with the stacks of all threads.
    """
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else item.config.getini("timeout")
    if not limit:
        return (yield)
    stash = item.config.stash
    file = stash.get(_STACKS, None) or stash[fault_handler_stderr_fd_key]  # pytest's capture replaces the other one
    faulthandler.dump_traceback_later(float(limit) + _AFTER_TIMEOUT, exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the file for the stacks of a worker that hangs."""
    config = node.config
    if _DIRECTORY not in config.stash:
        config.stash[_DIRECTORY] = TemporaryDirectory(prefix="stacks-")
    node.workerinput["stacks"] = str(Path(config.stash[_DIRECTORY].name) / node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Add the stacks of a worker that was ended because it hung, or that crashed."""
    worker: Any = report
    stacks = Path(worker.node.workerinput["stacks"]).read_text(encoding="utf-8", errors="replace")
    report.longrepr = f"{report.longrepr}\n{stacks}"


def pytest_sessionstart(session: pytest.Session) -> None:
    if (file := session.config.stash.get(_STACKS, None)) is not None:
        faulthandler.enable(file)  # instead of stderr


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write how long each test took to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[_STACKS] = os.open(config.workerinput["stacks"], os.O_WRONLY | os.O_CREAT, 0o600)
    else:
        config.pluginmanager.register(Recorder(config.getoption("--times")))


def main(arguments: Sequence[str]) -> None:
    """Compare the two runs whose files are given.

    Raises:
        SystemExit: the number of files is not two, or one cannot be read.
    """
    if len(arguments) != 2:
        raise SystemExit("usage: python -m tests.times BEFORE.json AFTER.json")
    print(compare(*(read_times(Path(each)) for each in arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
