"""The distribution of tests: tiers, groups, times, and the clock for tests."""

import asyncio
import mmap
import os
import time
from pathlib import Path

import psutil
import pytest

from tests import conftest
from tests.times import Times, WorkerTimes, compare, main, read_times, summarize, write_times
from tests.waiting import Clock

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["tests.times", "tests.groups"]\n'
FILES = """\
import os, pytest

@pytest.mark.group("together")
def test_one(): ...

@pytest.mark.nightly
def test_slow(): ...

def test_two(): ...

@pytest.mark.group("together")
@pytest.mark.ci
def test_three(): ...
"""
INI = """\
[pytest]
markers =
    ci: one
    nightly: two
addopts = -p no:cacheprovider -p xdist -p pytest_timeout
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Create a project whose tests are run like those of this one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)  # its workers are separate
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # to load the others takes seconds
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)
    return pytester


@pytest.mark.ci
def test_groups_run_in_one_worker_and_the_longest_first(project: pytest.Pytester) -> None:
    project.makepyfile(**{"test_some": FILES, "ci/test_other": "def test_last(): ..."})
    ran = project.runpytest_subprocess("-n", "2", "-v", "--times=times.json")
    ran.assert_outcomes(passed=5)
    times = read_times(project.path / "times.json")
    assert times.tiers == {
        "test_some.py::test_one": "quick",
        "test_some.py::test_slow": "nightly",
        "test_some.py::test_two": "quick",
        "test_some.py::test_three": "ci",
        "ci/test_other.py::test_last": "quick",
    }
    workers = {line.split()[-1]: line.split()[0] for line in ran.outlines if "PASSED" in line}
    assert workers["test_some.py::test_one"] == workers["test_some.py::test_three"]
    assert workers["test_some.py::test_slow"] == workers["test_some.py::test_two"]
    assert workers["test_some.py::test_one"] != workers["test_some.py::test_two"]

    order = [line for line in project.runpytest_subprocess("--collect-only", "-q").outlines if "::" in line]
    assert order == [
        "test_some.py::test_slow",
        "test_some.py::test_two",
        "test_some.py::test_one",
        "test_some.py::test_three",
        "ci/test_other.py::test_last",
    ]
    write_times(Times(tests={"ci/test_other.py::test_last": 1000.0}), project.path / "outputs" / "test-times.json")
    order = [line for line in project.runpytest_subprocess("--collect-only", "-q").outlines if "::" in line]
    assert order[0] == "ci/test_other.py::test_last"


HANGS = """
    import threading, time, pytest

    @pytest.mark.timeout(0.5)
    def test_ends():
        thread = threading.Thread(target=time.sleep, args=[1000])
        thread.start()
        try:
            time.sleep(1000)
        finally:
            thread.join()
"""
CRASHES = """
    import os, signal

    def test_ends():
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.ci
@pytest.mark.parametrize("body", [HANGS, CRASHES], ids=["hangs after its timeout", "crashes"])
def test_a_test_that_ends_its_worker_is_reported_with_the_stacks(project: pytest.Pytester, body: str) -> None:
    project.makeconftest(f"{CONFTEST}import tests.times\ntests.times._AFTER_TIMEOUT = 0.5\n")
    project.makepyfile(test_fine="def test_fine(): ...", test_last=body)
    ran = project.runpytest_subprocess("-n", "2", "--max-worker-restart", "0", timeout=120)
    ran.assert_outcomes(passed=1, failed=1)
    assert "in test_ends" in ran.stdout.str()


@pytest.mark.ci
@pytest.mark.parametrize("fixture", ["vllm", "browser"])
def test_a_quick_test_uses_no_model_server_and_no_browser(project: pytest.Pytester, fixture: str) -> None:
    project.makepyfile(f"import pytest\n@pytest.fixture\ndef {fixture}(): ...\ndef test_a({fixture}): ...")
    ran = project.runpytest_subprocess()
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert f"uses {fixture}; mark it ci or nightly" in ran.stderr.str()


@pytest.mark.ci
def test_slow_packages_are_not_imported_during_collection(project: pytest.Pytester) -> None:
    project.makepyfile(kfp="", test_slow="import kfp\ndef test_a(): ...")
    ran = project.runpytest_subprocess("--collect-only")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_slow.py imports kfp" in ran.stderr.str()


def test_times_are_summarized_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"tests/a.py::one": 2.0, "tests/a.py::two": 1.0, "tests/b.py::three": 30.0}
    tiers = {"tests/a.py::one": "quick", "tests/a.py::two": "quick", "tests/b.py::three": "nightly"}
    times = Times(wall=20.0, tests=names, tiers=tiers, workers={"gw0": WorkerTimes(begun=5, busy=12, idle=3)})
    lines = [line.split() for line in summarize(times).splitlines()]
    for expected in (["3.0", "2", "quick"], ["30.0", "1", "nightly"], ["30.0", "1", "tests/b.py"]):
        assert expected in lines
    assert "gw0: started after 5 s, 12 s in tests, 3 s idle" in summarize(times)

    later = Times(wall=10.0, tests={"tests/a.py::one": 2.0, "tests/c.py::new": 4.0})
    write_times(times, tmp_path / "a.json")
    write_times(later, tmp_path / "b.json")
    main([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert capsys.readouterr().out == compare(times, later) + "\n"
    shown = [line.split() for line in compare(times, later).splitlines()]
    assert shown[1:5] == [
        ["20.0", "10.0", "wall"],
        ["33.0", "6.0", "all", "tests"],
        ["30.0", "-", "tests/b.py::three"],
        ["-", "4.0", "tests/c.py::new"],
    ]
    with pytest.raises(SystemExit, match="times of tests"):
        read_times(tmp_path / "none.json")


def test_many_open_files_of_unreachable_objects_are_closed_after_a_test() -> None:
    before = psutil.Process().num_fds()
    with Path(__file__).open("rb") as file:
        cycle: list[object] = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(300)]
    cycle.append(cycle)
    assert psutil.Process().num_fds() >= before + 300
    del cycle
    conftest.pytest_runtest_teardown()
    assert psutil.Process().num_fds() <= before


def test_the_clock_moves_deadlines(clock: Clock) -> None:
    started = time.monotonic()

    async def wait() -> None:
        never = asyncio.Event()
        async with asyncio.timeout(3600):
            asyncio.get_running_loop().call_soon(clock.advance, 3599)
            waiting = asyncio.create_task(never.wait())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
            clock.advance(2)
            await waiting

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    assert time.monotonic() - started > 3600
