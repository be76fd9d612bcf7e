"""`gumshoe pipeline submit`, `watch` and `list` against a server that speaks Kubeflow's protocol, and misbehaves."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.operations.cluster import Cluster
from tests.operations.fake_kubernetes import write_kubeconfig
from tests.pipelines.fake_kubeflow import FakeKubeflow, fake_kubeflow
from tests.waiting import Clock

if TYPE_CHECKING:
    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.server import Server
    from gumshoe_pipelines.watch import RunView

ASKED = ["-p", "sources=[jsonl:s3://bucket/mail.jsonl]", "-p", "scenarios=s3://bucket/questions.jsonl"]
WHERE = ["-p", "store=s3://bucket/acme"]
ARGUMENTS = {"sources": ["a"], "scenarios": "b", "store": "s3://bucket/acme", "run": "r1"}


@pytest.fixture
def kubeflow() -> Iterator[FakeKubeflow]:
    with fake_kubeflow() as fake:
        yield fake


@pytest.fixture
def cluster(kubeflow: FakeKubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The server's own."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, kubeflow.url)))
    return Cluster("kubeflow")


@pytest.fixture
def server(kubeflow: FakeKubeflow) -> "Server":
    return server_at(kubeflow)


def server_at(kubeflow: FakeKubeflow, deadline: float = 3600) -> "Server":
    from gumshoe_pipelines.server import Address, Server

    return Server(Address(kubeflow.url, deadline=deadline))


@cache
def train_agent() -> "Graph":
    from gumshoe_pipelines.graphs import compiled

    return compiled("train-agent")


def submitted(server: "Server", **arguments: Any) -> str:
    given = {**ARGUMENTS, **arguments}
    begun = server.submit(train_agent(), given, experiment="e", service_account=None, caching=True)
    return str(begun.run_id)


def _cached(sent: Any) -> set[str]:
    """The steps that may be taken from the cache."""
    spec = sent["pipeline_spec"]
    parts = [spec["root"], *spec["components"].values()]
    tasks = [task for part in parts for task in part.get("dag", {}).get("tasks", {}).items()]
    return {name for name, task in tasks if task.get("cachingOptions", {}).get("enableCache")}


def test_a_run_is_submitted_with_its_graph_and_the_labels_of_its_pods(
    kubeflow: FakeKubeflow, run: Callable[..., Any]
) -> None:
    from gumshoe_pipelines.placement import PROJECT_LABEL, RUN_LABEL, STEP_LABEL

    done = run("pipeline", "submit", "train-agent", *ASKED, *WHERE, "-p", "run=r1", "--host", kubeflow.url)
    assert done.status == 0, done.err
    assert f"{kubeflow.url}/#/runs/details/run-0" in done.out
    begun = kubeflow.runs["run-0"]
    assert begun.runtime_config.parameters["run"] == "r1"
    assert len(begun.runtime_config.parameters["code"]) == 64
    assert [each.display_name for each in kubeflow.experiments] == ["gumshoe"]
    spec = begun.pipeline_spec
    assert spec["pipeline_spec"]["pipelineInfo"]["name"] == "train-agent"
    executors = spec["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    labels = executors["exec-train-grpo"]["podMetadata"]["labels"]
    assert labels == {PROJECT_LABEL: "acme", RUN_LABEL: "r1", STEP_LABEL: "train-grpo"}


def test_an_experiment_that_is_there_is_used(server: "Server", kubeflow: FakeKubeflow) -> None:
    submitted(server)
    submitted(server, run="r2")
    assert len(kubeflow.experiments) == 1
    assert len(kubeflow.runs) == 2


def test_a_run_that_is_going_on_is_not_submitted_once_more(server: "Server", kubeflow: FakeKubeflow) -> None:
    """Its checkpoints would be taken for the other's; one that has ended is taken up."""
    submitted(server)
    with pytest.raises(UsageError, match="run r1 is going on; follow it with gumshoe pipeline watch run-0"):
        submitted(server)
    kubeflow.runs["run-0"].state = "FAILED"
    submitted(server)
    assert len(kubeflow.runs) == 2


def test_without_caching_no_step_is_taken_from_the_cache(kubeflow: FakeKubeflow, server: "Server") -> None:
    graph = train_agent()
    for caching in (True, False):
        arguments = {**ARGUMENTS, "run": f"caching-{caching}"}
        server.submit(graph, arguments, experiment="e", service_account="runner", caching=caching)
    first, second = (_cached(kubeflow.runs[each].pipeline_spec) for each in ("run-0", "run-1"))
    assert first >= {"ingest", "load-scenarios", "evaluate-policy"}
    assert not first & {"train-grpo", "publish-adapter", "notify", "gate"}
    assert not second
    assert kubeflow.runs["run-0"].service_account == "runner"


def test_a_recurring_run_never_overlaps_itself(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    done = run("pipeline", "submit", "retrain-agent", *ASKED, *WHERE, "--cron", "0 0 3 * * 0", "--host", kubeflow.url)
    assert done.status == 0, done.err
    (made,) = kubeflow.recurring
    assert _cached(made.pipeline_spec)
    assert made.trigger.cron_schedule.cron == "0 0 3 * * 0"
    assert (made.max_concurrency, made.no_catchup, made.mode) == ("1", True, "ENABLE")


def test_a_recurring_run_without_the_cache_says_so_in_json(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    asked = ["--cron", "0 0 3 * * 0", "--no-cache", "--json", "--host", kubeflow.url]
    done = run("pipeline", "submit", "retrain-agent", *ASKED, *WHERE, *asked)
    assert done.status == 0, done.err
    (made,) = kubeflow.recurring
    assert json.loads(done.out) == {"recurring_run_id": made.recurring_run_id, "cron": "0 0 3 * * 0"}
    assert not _cached(made.pipeline_spec)


def test_what_has_not_begun_cannot_be_followed(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    asked = ["--cron", "0 0 3 * * 0", "--watch", "--host", kubeflow.url]
    done = run("pipeline", "submit", "retrain-agent", *ASKED, *WHERE, *asked)
    assert (done.status, kubeflow.recurring) == (2, [])
    assert "gumshoe pipeline watch ID" in done.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["-p", "gpus=many"], 'gpus is to be a whole number, and not "many"'),
        (["-p", "colour=blue"], "colour is no parameter"),
        (["-p", "run=Nightly Run"], "'Nightly Run' is no id"),
        (["-p", "thresholds={min_gian: 1}"], "min_gian"),
        (["-p", "limits={max_turns: 0}"], "max_turns: 0"),
        (["-p", "config=tinny"], "tinny"),
        (["-p", "settings={optimizer.lerning_rate: 1}"], "lerning_rate"),
        (["-p", "judge=oracle"], "'oracle' names no judge"),
        (["-p", "store=ftp://bucket"], "ftp"),
        (["-p", "sources=[]"], "there is no source"),
        (["-p", "sources=[s3://bucket/mail]"], "'s3://bucket/mail' is not a source of mail; write maildir:DIR"),
        (["-p", "sources=[maildir: s3://bucket/mail]"], "is no text; write maildir:s3://bucket/there, without a space"),
        (["-p", "sources=[maildir:Maildir]"], "Maildir is not to be found from a pod"),
        (["-p", "scenarios=questions.jsonl"], "questions.jsonl is not to be found from a pod"),
        (["-p", "scenarios=hf:@train"], "'hf:@train' names no dataset"),
        (["-p", "scenarios=hf:."], "hf:. is not to be found from a pod; name it with s3:// or hf:"),
        (["-p", "demonstrations=hf:acme/mail"], "hf:acme/mail is not to be found from a pod; name it with s3://"),
        (["-p", "demonstrations=shown.jsonl"], "shown.jsonl is not to be found from a pod"),
        (["-p", "config=./mine.yaml"], "./mine.yaml is not to be found from a pod"),
        (["-p", "store=outputs/store"], "outputs/store is gone with the pod that writes there"),
        (["-p", "run=latest"], "latest is what the newest is called"),
    ],
)
def test_what_cannot_be_is_refused_before_the_server_hears_of_it(
    wrong: list[str], said: str, kubeflow: FakeKubeflow, run: Callable[..., Any]
) -> None:
    done = run("pipeline", "submit", "train-agent", *ASKED, *WHERE, *wrong, "--host", kubeflow.url)
    assert done.status == 2
    assert said in done.err
    assert kubeflow.asked == []


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("hang", UnavailableError, "does not answer in time"),
        ("reset", UnavailableError, "does not answer"),
        ("401", GumshoeError, "refuses (401: because); give a token"),
        ("403", GumshoeError, "refuses (403: because); give a token"),
        ("404", GumshoeError, "does not have it (404: because); check the address"),
        ("503", UnavailableError, "is not well (503: because)"),
        ("nonsense", GumshoeError, "does not answer as Kubeflow Pipelines does"),
    ],
)
def test_a_server_that_misbehaves_is_told_of_in_one_line(
    fault: str, error: type[GumshoeError], said: str, kubeflow: FakeKubeflow
) -> None:
    """A server that hangs does so until the test is over."""
    server = server_at(kubeflow, 0.5 if fault == "hang" else 3600)
    kubeflow.faults.append(fault)
    with pytest.raises(error) as told:
        submitted(server)
    assert said in str(told.value)
    assert "\n" not in str(told.value)
    assert type(told.value) is error
    assert len(kubeflow.asked) == 1, "it is not asked twice: a run that was begun twice costs twice"


def test_a_server_that_is_not_there(run: Callable[..., Any]) -> None:
    done = run("pipeline", "list", "--host", "http://127.0.0.1:9")
    assert done.status == 75
    assert done.err.count("\n") == 1
    assert "does not answer" in done.err


def test_a_token_is_shown_to_the_server(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    kubeflow.token = "sesame"
    assert run("pipeline", "list", "--host", kubeflow.url).status == 1
    done = run("pipeline", "list", "--host", kubeflow.url, "--token", "sesame", "--json")
    assert (done.status, json.loads(done.out)) == (0, [])


def task(name: str, state: str, minutes: float | None = None, error: str = "") -> Any:
    import kfp_server_api as api

    begun = datetime(2026, 1, 1, tzinfo=UTC)
    return api.V2beta1PipelineTaskDetail(
        display_name=name,
        state=state,
        create_time=begun,
        start_time=begun,
        end_time=begun + timedelta(minutes=minutes) if minutes is not None else None,
        error=api.GoogleRpcStatus(code=2, message=error) if error else None,
    )


def details(*tasks: Any) -> Any:
    import kfp_server_api as api

    return api.V2beta1RunDetails(task_details=list(tasks))


def pod(step: str, status: dict[str, Any]) -> Any:
    """Make the pod of a step, of whose status some parts are given, as the published client has it."""
    from kubernetes import client as kubernetes

    from gumshoe_pipelines.placement import STEP_LABEL

    labels = {"pipeline/runid": "run-0", STEP_LABEL: step}
    about = {"namespace": "kubeflow", "name": f"{step}-pod", "labels": labels}
    told = {
        "metadata": {**about, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
        "status": status,
    }
    return kubernetes.ApiClient().deserialize(SimpleNamespace(data=json.dumps(told)), "V1Pod")


def with_state(phase: str = "Pending", **state: Any) -> dict[str, Any]:
    """Return the status of a pod whose container is in a state: `waiting` or `terminated`."""
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}


def shown(server: "Server", cluster: Cluster | None = None, **more: Any) -> "list[RunView]":
    from gumshoe_pipelines.watch import follow, pods_of

    warned: list[str] = more.setdefault("warned", [])

    def look(run_id: str) -> dict[str, Any]:
        return {} if cluster is None else pods_of(cluster, run_id)

    views = follow(lambda: server.run("run-0"), look, warned.append, every=0.01, silence=3600)
    return list(views)


def test_a_run_is_followed_to_its_end(kubeflow: FakeKubeflow, server: "Server", cluster: Cluster) -> None:
    submitted(server)
    kubeflow.states.extend(["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"])
    kubeflow.runs["run-0"].run_details = details(
        task("root", "RUNNING"), task("ingest", "SUCCEEDED", 2), task("train-grpo", "RUNNING")
    )
    kubeflow.pods.append(pod("train-grpo", {"phase": "Running"}))
    line = "Step 12/200 | Loss 0.52 | Policy 0.51"
    kubeflow.logs["train-grpo-pod"] = f"Starting vLLM\n{line}\nsomething else\n"
    views = shown(server, cluster)
    assert [each.state for each in views] == ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    ingested, trained = views[-1].steps
    assert (ingested.name, ingested.state, ingested.seconds) == ("ingest", "SUCCEEDED", 120)
    assert trained.progress == line
    kubeflow.logs["train-grpo-pod"] = f"{line}\nWaiting for job: it is suspended until queue gumshoe admits it\n"
    assert shown(server, cluster)[-1].steps[1].progress == (
        "Waiting for job: it is suspended until queue gumshoe admits it"
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes: no nvidia",
                    }
                ],
            },
            "no node has room for it: check gpus, node_selector and tolerations, and what the nodes have free "
            "(0/3 nodes: no nvidia)",
        ),
        (with_state(waiting={"reason": "ImagePullBackOff"}), "its image cannot be pulled: check worker_image"),
        (
            with_state(waiting={"reason": "CreateContainerConfigError"}),
            "a secret or a volume that it names is missing",
        ),
        (
            with_state("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}),
            "it needed more memory than it had",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "its node had no more room"),
    ],
)
def test_what_keeps_a_pod_from_running_is_said_in_plain_words(
    status: dict[str, Any], said: str, kubeflow: FakeKubeflow, server: "Server", cluster: Cluster
) -> None:
    submitted(server)
    kubeflow.states.extend(["RUNNING", "FAILED"])
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    kubeflow.pods.append(pod("train-grpo", status))
    (step,) = shown(server, cluster)[-1].steps
    assert said in step.trouble


def test_an_event_tells_what_a_status_does_not(kubeflow: FakeKubeflow, server: "Server", cluster: Cluster) -> None:
    submitted(server)
    kubeflow.states.append("FAILED")
    from kubernetes import client as kubernetes

    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    kubeflow.pods.append(pod("train-grpo", {"phase": "Pending"}))
    about = kubernetes.V1ObjectReference(name="train-grpo-pod")
    metadata = kubernetes.V1ObjectMeta(namespace="kubeflow", name="e")
    kubeflow.events.append(
        kubernetes.CoreV1Event(involved_object=about, metadata=metadata, reason="FailedMount", message="no secret s3")
    )
    (step,) = shown(server, cluster)[-1].steps
    assert step.trouble.startswith("FailedMount: ")
    assert "(no secret s3)" in step.trouble


def test_a_watch_that_breaks_goes_on(kubeflow: FakeKubeflow, server: "Server") -> None:
    submitted(server)
    kubeflow.states.extend(["RUNNING", "SUCCEEDED"])
    kubeflow.faults.extend(["fine", "reset", "503", "reset", "fine"])
    warned: list[str] = []
    views = shown(server, warned=warned)
    assert [each.state for each in views] == ["RUNNING", "SUCCEEDED"]
    assert len(warned) == 3
    assert all("asking again" in each for each in warned)


def test_a_server_that_stays_silent_is_not_waited_for_for_ever(
    kubeflow: FakeKubeflow, server: "Server", clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause between two tries takes half of the time that it may be silent."""
    submitted(server)
    kubeflow.asked.clear()
    kubeflow.faults.extend(["reset"] * 1000)
    monkeypatch.setattr("gumshoe_pipelines.watch.time.sleep", lambda _: clock.advance(1800))
    with pytest.raises(UnavailableError, match="does not answer"):
        shown(server)
    assert len(kubeflow.asked) == 3


def test_a_run_goes_on_where_its_pods_cannot_be_seen(
    kubeflow: FakeKubeflow, server: "Server", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(server)
    kubeflow.states.append("SUCCEEDED")
    warned: list[str] = []
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, "http://127.0.0.1:9")))
    assert shown(server, Cluster("kubeflow"), warned=warned)[-1].state == "SUCCEEDED"
    assert "pods cannot be seen: Kubernetes does not answer" in warned[0]


def test_watching_a_run_that_fails_ends_with_1(
    kubeflow: FakeKubeflow,
    server: "Server",
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    submitted(server)
    kubeflow.states.append("FAILED")
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "FAILED", 1, "exit code 75"))
    done = run("pipeline", "watch", "run-0", "--host", kubeflow.url)
    assert done.status == 1
    assert "train-grpo: FAILED" in done.err
    assert "exit code 75" in done.out
    assert "pods cannot be seen: there is no kubeconfig" in done.err
    done = run("pipeline", "watch", "another", "--host", kubeflow.url)
    assert done.status == 1
    assert "does not have run another (404" in done.err
