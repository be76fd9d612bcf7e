"""Run steps as their pods do: in a child process, again if they fail for now, and with what the namespace provides."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest

from gumshoe.errors import UnavailableError
from tests.errors import raises
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe_pipelines.graphs import Graph

MODULE = """
import os, sys, time
from pathlib import Path
from gumshoe.errors import UnavailableError, UsageError
attempts = Path(sys.argv[1])
with attempts.open("a") as file:
    file.write(f"{os.getpid()}\\n")
made = len(attempts.read_text().splitlines())
kind, until = sys.argv[2], int(sys.argv[3])
if kind == "sleep":
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(600)
if made <= until:
    if kind == "kill":
        os.kill(os.getpid(), 9)
    if kind == "exit":
        sys.exit(75)
    raise {"unavailable": UnavailableError, "usage": UsageError, "other": RuntimeError}[kind]("test.code", "why")
"""


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Return a function that starts a step, which fails for a number of times. Its attempts are lines of a file."""
    (tmp_path / "step_module.py").write_text(MODULE)

    def run(kind: str, until: int, **environment: str) -> "subprocess.Popen[str]":
        runner = [sys.executable, "-m", "gumshoe_pipelines.step_runner", "step_module", tmp_path / "attempts", kind]
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        env = {**os.environ, "PYTHONPATH": paths, "GUMSHOE_STEP_PAUSE": "0", **environment}
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*runner, str(until)], env=env, text=True, **outputs)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.mark.parametrize(
    ("kind", "failures", "status", "attempts"),
    [
        ("exit", 0, 0, 1),
        ("exit", 2, 0, 3),
        ("unavailable", 3, 0, 4),
        ("unavailable", 9, 75, 4),
        ("usage", 9, 2, 1),
        ("other", 9, 1, 1),
        ("kill", 9, 128 + signal.SIGKILL, 1),
    ],
)
def test_a_step_that_fails_for_now_is_run_again_in_its_pod(
    kind: str, failures: int, status: int, attempts: int, start: Any, tmp_path: Path
) -> None:
    output, _ = (process := start(kind, failures)).communicate()
    assert (process.returncode, len(set((tmp_path / "attempts").read_text().split()))) == (status, attempts), output
    assert ("[test.code]" in output) == (kind in ("unavailable", "usage")), "Kubeflow shows the last lines"


def test_a_step_is_not_run_again_if_its_pod_ends_soon(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe_pipelines.step_runner import count_seconds_left

    for seconds, pause, attempts in (("1000000", "0", 4), ("0", "0", 1), ("1000", "901", 1)):
        (tmp_path / "attempts").unlink(missing_ok=True)
        process = start("exit", 9, GUMSHOE_STEP_SECONDS=seconds, GUMSHOE_STEP_PAUSE=pause)
        process.communicate()
        assert len((tmp_path / "attempts").read_text().split()) == attempts
    monkeypatch.delenv("GUMSHOE_STEP_ENDS", raising=False)
    assert count_seconds_left() == float("inf")
    monkeypatch.setenv("GUMSHOE_STEP_ENDS", "0")
    assert count_seconds_left() < 0


def test_the_pauses_grow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gumshoe_pipelines import step_runner

    pauses = list[float]()

    def wait(_: object, seconds: float) -> bool:
        pauses.append(seconds)
        return True

    monkeypatch.setattr(step_runner._Attempts, "_wait", wait)
    (tmp_path / "step_module.py").write_text("import sys\nsys.exit(75)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("GUMSHOE_STEP_PAUSE", raising=False)
    assert step_runner.main(["step_module"]) == UnavailableError.exit_status
    assert pauses == [60, 120, 240]


def test_a_step_that_was_asked_to_end_is_not_run_again(start: Any, tmp_path: Path) -> None:
    process, attempts = start("sleep", 0), tmp_path / "attempts"
    wait_until(lambda: attempts.exists() and attempts.read_text().endswith("\n"), process)
    wait_until(lambda: _handles_sigterm(int(attempts.read_text())), process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert (process.returncode, len(attempts.read_text().split())) == (75, 1)


def _handles_sigterm(process: int) -> bool:
    (caught,) = [each for each in Path(f"/proc/{process}/status").read_text().splitlines() if "SigCgt" in each]
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_step_whose_pod_did_not_wait_in_its_queue_is_refused(start: Any, tmp_path: Path) -> None:
    output, _ = (process := start("exit", 0, GUMSHOE_STEP_QUEUED="")).communicate()
    assert process.returncode == 2
    assert "[pipelines.not-queued]" in output
    assert not (tmp_path / "attempts").exists()
    output, _ = (process := start("exit", 0, GUMSHOE_STEP_QUEUED="true")).communicate()
    assert process.returncode == 0


def test_a_step_has_the_certificates_and_the_proxy_of_its_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gumshoe.cluster.pod_environment import CA_VARIABLES, PROXY_VARIABLES, find_ca_file
    from gumshoe_pipelines import step_runner

    proxies = [name for each in PROXY_VARIABLES for name in (each, each.lower(), f"GUMSHOE_{each}")]
    for name in (*CA_VARIABLES, *proxies):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(step_runner, "find_ca_file", lambda: find_ca_file(str(tmp_path)))
    step_runner.prepare_environment()
    assert not {*CA_VARIABLES, *proxies} & os.environ.keys(), "the namespace has neither"
    bundle = tmp_path / "ca-bundle.crt"
    bundle.write_text("no certificate")
    with raises("network.invalid-ca-bundle", str(bundle)):
        step_runner.prepare_environment()
    shutil.copy(certifi.where(), bundle)
    monkeypatch.setenv("https_proxy", "http://kubeflow:3128")  # by Kubeflow, which has another
    monkeypatch.setenv("GUMSHOE_HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("GUMSHOE_NO_PROXY", "example.com, localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    step_runner.prepare_environment()
    assert {os.environ[name] for name in CA_VARIABLES} == {str(bundle)}
    assert {os.environ["HTTPS_PROXY"], os.environ["https_proxy"]} == {"http://proxy:3128"}
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    excluded = os.environ["NO_PROXY"].split(",")
    assert excluded[0] == "example.com"
    assert {"localhost", "127.0.0.1", ".svc", "169.254.169.254", "10.96.0.1"} <= {*excluded}
    assert len(excluded) == len({*excluded})


def test_a_step_has_the_keys_of_agents_as_variables(tmp_path: Path) -> None:
    from gumshoe.cluster.pod_environment import set_agent_keys

    set_agent_keys(own := {"PATH": "/bin"}, str(tmp_path / "none"))
    assert own == {"PATH": "/bin"}
    for name, text in {"TOOLS_TOKEN": "secret\n", "PATH": "/evil", "..data": "", "not-a-name": "x"}.items():
        (tmp_path / name).write_text(text)
    set_agent_keys(own, str(tmp_path))
    assert own == {"PATH": "/bin", "TOOLS_TOKEN": "secret"}


@pytest.fixture
def graph(tmp_path: Path) -> "Graph":
    """Return a pipeline whose step fails once for now."""
    from kfp import compiler, dsl

    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.placement import Placement, PodOptions

    @dsl.component(base_image="x", install_kfp_package=False)  # type: ignore[untyped-decorator]
    def flaky(place: str) -> str:
        from pathlib import Path

        from gumshoe.errors import UnavailableError

        if not Path(place).exists():
            Path(place).touch()
            raise UnavailableError("test.code", "not yet")
        return "done"

    where = Placement("x", "x", 0, "nvidia.com/gpu", "1", "1Gi", "1", "1Gi", {}, [], PodOptions())

    @dsl.pipeline(name="recovers")  # type: ignore[untyped-decorator]
    def recovers(place: str) -> None:
        where.on_cpu(flaky(place=place))

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(recovers, str(path))
    return Graph("recovers", path.read_text())


def test_a_step_is_run_again_on_this_machine_too(
    graph: "Graph", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe_pipelines import local_runner

    monkeypatch.setenv("GUMSHOE_STEP_PAUSE", "0")
    local_runner.run_locally(graph, {"place": str(tmp_path / "seen")}, tmp_path / "out", caching=False)
    log = (tmp_path / "out" / "run.log").read_text()
    assert log.count("[test.code]") == 1
    assert "Attempt 1 of 4" in log


def test_the_command_of_a_step_ends_with_the_runner_s_status(graph: "Graph", tmp_path: Path) -> None:
    """The shell of Kubeflow's command is replaced, so that signals and the exit status are the runner's."""
    (container,) = (each["container"] for each in graph.spec["deploymentSpec"]["executors"].values())
    script = container["command"][2].replace("python3", shlex.quote(sys.executable))
    parent = subprocess.run(
        ["sh", "-ec", script.replace("gumshoe_pipelines.step_runner", "this"), "source"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "PYTHONPATH": str(_write_this(tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (parent.returncode, parent.stdout) == (75, f"{os.getpid()} true kfp.dsl.executor_main\n")


def _write_this(directory: Path) -> Path:
    (directory / "this.py").write_text(
        "import os, sys\nprint(os.getppid(), os.environ['_KFP_RUNTIME'], sys.argv[1])\nsys.exit(75)"
    )
    return directory


@pytest.mark.parametrize("kind", ["GumshoeError", "RuntimeError"])
def test_a_step_prints_no_credentials(kind: str, tmp_path: Path) -> None:
    body = f"""
        import logging, os
        from gumshoe.errors import GumshoeError
        url = "http://ann:" + os.environ["SOME_PASSWORD"] + "@host"
        logging.getLogger("library").warning("asking %s", url)
        try:
            raise OSError("cannot connect to " + url)
        except OSError as error:
            raise {kind}(*["x.failed", "the step failed"][-2 if "{kind}" == "GumshoeError" else -1:]) from error
    """
    (tmp_path / "leaking_step.py").write_text(textwrap.dedent(body))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "SOME_PASSWORD": "planted"}
    command = [sys.executable, "-m", "gumshoe_pipelines.step_runner", "leaking_step"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "cannot connect to http://***@host" in ended.stderr
    assert "asking http://***@host" in ended.stderr
    assert "planted" not in ended.stderr + ended.stdout
