"""Run small pipelines on this machine: stopping, continuing, and the summary at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gumshoe.artifacts.storage import lock_directory
from gumshoe.artifacts.store import Store
from gumshoe.evaluation.metrics import Estimate
from tests.errors import raises
from tests.evaluation.predictions import answers, evaluation, result
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe_pipelines.graphs import Graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> "Graph":
    """Return a pipeline with a step that ends and one that does not."""
    from kfp import compiler, dsl

    from gumshoe_pipelines.graphs import Graph

    @dsl.component(base_image="x", install_kfp_package=False)
    def quick() -> str:
        return "done"

    @dsl.component(base_image="x", install_kfp_package=False)
    def slow(after: str) -> None:
        import time

        print(f"waiting after {after}", flush=True)
        time.sleep(600)

    @dsl.pipeline(name="waits")
    def waits(store: str = "", run: str = "") -> None:  # noqa: ARG001
        slow(after=quick().output)

    path = tmp_path_factory.mktemp("graph") / "pipeline.yaml"
    compiler.Compiler().compile(waits, str(path))
    return Graph("waits", path.read_text())


def test_a_stopped_run_ends_all_processes_and_says_how_to_continue(
    graph: "Graph", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gumshoe_pipelines import local_runner

    arguments = {"store": str(tmp_path / "store"), "run": "r1"}
    handle_line = local_runner.LocalRun.handle_line
    trainings = tmp_path / "out" / ".trainings"
    (trainings / "of a command that was killed").mkdir(parents=True)

    def interrupt(run: Any, line: str) -> str | None:
        if "waiting after done" in line:
            assert list(trainings.iterdir()) == []
            raise KeyboardInterrupt
        return handle_line(run, line)

    monkeypatch.setattr(local_runner.LocalRun, "handle_line", interrupt)
    monkeypatch.setattr("sys.argv", ["gumshoe", "pipeline", "run", "waits", "--new", "-p", "seed=2"])
    with pytest.raises(KeyboardInterrupt):
        local_runner.run_locally(graph, arguments, tmp_path / "out", caching=True)
    assert not trainings.exists()
    printed = capsys.readouterr().err
    assert "Kept: the results of quick." in printed
    assert "Continue with: gumshoe pipeline run waits -p seed=2\n" in printed
    assert [
        each for each in psutil.Process().children(recursive=True) if "local_runner" in " ".join(each.cmdline())
    ] == []
    assert local_runner.find_last_run(tmp_path / "out", graph, {**arguments, "run": ""}) == "r1"
    for other in ({"store": "elsewhere"}, {**arguments, "seed": 2}):
        assert local_runner.find_last_run(tmp_path / "out", graph, other) is None
    assert local_runner.find_last_run(tmp_path, graph, arguments) is None


def test_a_run_stopped_in_a_warm_start_says_if_it_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of an earlier warm start, with other inputs, is not its own."""
    from gumshoe_pipelines.local_runner import LocalRun, LocalStep, _print_what_is_kept

    monkeypatch.setattr("sys.argv", ["gumshoe", "pipeline", "run", "train-agent"])
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "file").touch()
    arguments = {"store": str(tmp_path / "store"), "run": "r1"}

    def claim(key: str, day: int) -> None:
        name = f"runs/warm-start-{key}/attempts/001"
        Store(arguments["store"]).storage.create(name, b"")
        os.utime(tmp_path / "store" / name, (day * 86400.0, day * 86400.0))

    def save(key: str) -> None:
        Store(arguments["store"]).publish(tmp_path / "some", f"runs/warm-start-{key}/checkpoints", "001-000003")

    def is_named(state: str) -> bool:
        _print_what_is_kept(LocalRun([LocalStep("warm-start", state)]), arguments)
        return "the last checkpoint of the warm start" in capsys.readouterr().err

    assert not is_named("running")
    claim("0a1b", 1)
    save("0a1b")
    assert (is_named("running"), is_named("done")) == (True, False)
    claim("2c3d", 2)
    assert not is_named("running")
    save("2c3d")
    assert (is_named("running"), is_named("done")) == (True, False)


@pytest.mark.skipif(sys.platform != "linux", reason="command lines of other processes are read")
@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP], ids=["killed", "terminal closed"])
def test_a_run_whose_command_ends_leaves_no_process(graph: "Graph", tmp_path: Path, number: signal.Signals) -> None:
    """Its directory is locked until then."""
    code = f"""
import os
from pathlib import Path
from gumshoe_pipelines import local_runner
from gumshoe_pipelines.graphs import Graph

def end(run, line):
    if "waiting after done" in line:
        os.kill(os.getpid(), {int(number)})

local_runner.LocalRun.handle_line = end
graph, place = Graph("waits", Path({str(tmp_path / "graph.yaml")!r}).read_text()), Path({str(tmp_path / "out")!r})
with local_runner.lock_run(place) as lock:
    local_runner.run_locally(graph, {{}}, place, caching=False, lock=lock)
"""
    (tmp_path / "graph.yaml").write_text(graph.text)
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode

    def is_running(each: psutil.Process) -> bool:
        return str(tmp_path) in " ".join(each.info["cmdline"] or ())

    def is_free() -> bool:
        with lock_directory(tmp_path / "out", None) as lock:
            return lock is not None

    wait_until(is_free)
    assert not any(map(is_running, psutil.process_iter(["cmdline"])))


def test_a_second_run_in_a_directory_is_refused(tmp_path: Path) -> None:
    from gumshoe_pipelines.local_runner import lock_run

    with lock_run(tmp_path), raises("pipelines.directory-busy", tmp_path, "--out"), lock_run(tmp_path):
        pass
    with lock_run(tmp_path):
        pass


def test_the_directory_of_a_training_is_refused(tmp_path: Path) -> None:
    from gumshoe_pipelines.local_runner import prepare_directory

    prepare_directory(tmp_path / "new")
    (tmp_path / "run.json").write_text('{"pipeline": "pipeline.yaml"}')
    prepare_directory(tmp_path)
    (tmp_path / "run.json").write_text('{"run": "r1", "settings": {}}')
    with raises("pipelines.directory-in-use", tmp_path, "--out"):
        prepare_directory(tmp_path)
    with raises("store.not-a-directory"):
        prepare_directory(tmp_path / "run.json")


@pytest.mark.ci
def test_entries_of_a_loop_run_one_after_another_and_the_first_failure_is_reported(tmp_path: Path) -> None:
    from kfp import compiler, dsl

    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.local_runner import run_locally

    @dsl.component(base_image="x", install_kfp_package=False)
    def work(name: str, log: str) -> None:
        import time
        from pathlib import Path

        with Path(log).open("a") as file:
            file.write(f"begin {name}\n")
        time.sleep(0.2)
        with Path(log).open("a") as file:
            file.write(f"end {name}\n")
        if name == "bad":
            raise ValueError("the reason")

    @dsl.pipeline(name="loops")
    def loops(log: str) -> None:
        with dsl.ParallelFor(["bad", "good"], parallelism=2) as each:
            work(name=each, log=log)

    path, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    compiler.Compiler().compile(loops, str(path))
    with raises("pipelines.local-run-failed", "work", "the reason"):
        run_locally(Graph("loops", path.read_text()), {"log": str(log)}, tmp_path / "out", caching=False)
    assert log.read_text().split() == ["begin", "bad", "end", "bad", "begin", "good", "end", "good"]


def test_a_step_that_ends_is_found_by_its_name() -> None:
    from gumshoe_pipelines.local_runner import LocalRun

    run = LocalRun()
    for line in (
        "Executing task 'a'",
        "    ValueError: the reason",
        "Executing task 'b'",
        "Task 'a' finished with status FAILURE",
        "Task 'b' finished with status SUCCESS",
    ):
        run.handle_line(line)
    assert [(each.name, each.state, each.error) for each in run.steps] == [
        ("a", "failed", "the reason"),
        ("b", "done", ""),
    ]


@pytest.mark.parametrize(
    ("after", "is_published", "agent"),
    [("+" * 38 + "--", True, ""), ("+" * 38 + "--", True, "mine.agent:graph"), ("+" * 19 + "-" * 21, False, "")],
)
def test_the_summary_has_the_comparison_the_verdict_and_what_to_do_next(
    after: str, is_published: bool, agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gumshoe.evaluation.evaluation_step import decide_and_write, publish_report
    from gumshoe.evaluation.gate import GateSettings
    from gumshoe_pipelines.run_summary import print_summary

    measured = tmp_path / "measured"
    measured.mkdir()
    policies = []
    for name, pattern in (("base", "+" * 20 + "-" * 20), ("adapter", after)):
        found = result(answers(pattern, name))
        accuracy = Estimate(value=pattern.count("+") / 40, low=0.3, high=0.99, questions=40)
        policies.append(found.model_copy(update={"metrics": {**found.metrics, "accuracy": accuracy}}))
    evaluation(*policies).write(measured)
    (measured / "report.html").touch()
    decision = decide_and_write(measured, GateSettings())
    assert decision.passed == is_published
    store = Store(str(tmp_path / "store"))
    publish_report(measured, decision, store.uri, "r1")
    if is_published:
        store.publish(measured, "adapters", "r1", settings={"agent": agent})
    index = tmp_path / "out" / "steps" / "train-agent-1" / "ingest" / "index"
    index.mkdir(parents=True)
    split = index.parents[1] / "load-scenarios" / "scenarios" / "scenarios.jsonl"
    split.parent.mkdir(parents=True)
    split.touch()
    arguments = {"store": store.uri, "run": "r1", "scenarios": "questions.jsonl"}
    print_summary(arguments, tmp_path / "out")
    printed = capsys.readouterr().out
    assert "50.0%" in printed
    assert ("95.0%" if is_published else "47.5%") in printed
    assert ("Passed:" if is_published else "Not passed:") in printed
    assert decision.why in printed
    report = next((tmp_path / "store" / "runs" / "r1" / "reports").rglob("report.html"))
    linked = tmp_path / "out" / "report.html"
    assert linked.resolve() == report.resolve()
    assert f"Report:  {linked}\n" in printed
    assert (tmp_path / "out" / "index").resolve() == index
    assert all(len(line) <= 80 for line in printed.partition("Passed:")[0].splitlines()) or not is_published
    commands = printed.partition("Try next:\n")[2].splitlines()
    assert len(commands) == 3
    options = f"--adapter r1 --store {store.uri} --index {tmp_path / 'out' / 'index'}"
    options += f" --agent {agent}" if agent else ""
    asked = tmp_path / "out" / "scenarios.jsonl"
    assert asked.resolve() == split
    assert (f"gumshoe ask --scenarios {asked} {options}" in printed) == is_published
    assert (f"gumshoe serve {options} --open" in printed) == is_published


def test_a_run_without_a_report_has_no_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gumshoe_pipelines.run_summary import print_summary

    print_summary({"store": str(tmp_path / "store"), "run": "r1"}, tmp_path)
    assert capsys.readouterr().out == ""
