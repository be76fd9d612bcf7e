"""Test `gumshoe pipeline submit`, `watch` and `list` with a fake Kubeflow Pipelines server."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.cluster.kubeflow_access import AUDIENCE
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.errors import GumshoeError, UnavailableError
from tests.cluster.fake_kubernetes import write_kubeconfig
from tests.errors import raises
from tests.pipelines.fake_kubeflow import FakeKubeflow, fake_kubeflow
from tests.private_network import forward_proxy
from tests.waiting import Clock

if TYPE_CHECKING:
    from gumshoe_pipelines.graphs import Graph
    from gumshoe_pipelines.kubeflow_client import KubeflowClient
    from gumshoe_pipelines.run_status import PipelineRunView

INPUTS = ["-p", "sources=[jsonl:s3://bucket/mail.jsonl]", "-p", "scenarios=s3://bucket/questions.jsonl"]
IMAGES = {"worker_image": "registry.example.com/worker:1", "trainer_image": "registry.example.com/trainer:1"}
STORE = ["-p", "store=s3://bucket/acme", *(part for each in IMAGES.items() for part in ("-p", "=".join(each)))]
ARGUMENTS = {"sources": ["a"], "scenarios": "b", "store": "s3://bucket/acme", "run": "r1", **IMAGES}


@pytest.fixture
def kubeflow() -> Iterator[FakeKubeflow]:
    with fake_kubeflow() as fake:
        yield fake


@pytest.fixture
def cluster(kubeflow: FakeKubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return the cluster of the server."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, kubeflow.url)))
    return Cluster("kubeflow")


@pytest.fixture
def server(kubeflow: FakeKubeflow) -> "KubeflowClient":
    return connect(kubeflow)


def connect(kubeflow: FakeKubeflow, deadline: float = 3600) -> "KubeflowClient":
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    return KubeflowClient(ServerAddress(kubeflow.url, deadline=deadline))


@cache
def train_agent() -> "Graph":
    from gumshoe_pipelines.graphs import compile_graph

    return compile_graph("train-agent")


def submit_run(server: "KubeflowClient", **arguments: Any) -> str:
    given = {**ARGUMENTS, **arguments}
    created = server.submit(train_agent(), given, experiment="e", service_account=None, caching=True)
    return str(created.run_id)


def _list_cached(sent: Any) -> set[str]:
    """Return the steps that may be taken from the cache."""
    spec = sent["pipeline_spec"]
    parts = [spec["root"], *spec["components"].values()]
    tasks = [task for part in parts for task in part.get("dag", {}).get("tasks", {}).items()]
    return {name for name, task in tasks if task.get("cachingOptions", {}).get("enableCache")}


def test_a_run_is_submitted_with_its_graph_and_pod_labels(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    from gumshoe_pipelines.run_labels import PROJECT_LABEL, RUN_LABEL, STEP_LABEL

    done = run(
        "pipeline", "submit", "train-agent", *INPUTS, *STORE, "-p", "run=r1", "-p", "queue=lq", "--host", kubeflow.url
    )
    assert done.status == 0, done.err
    assert f"{kubeflow.url}/#/runs/details/run-0" in done.out
    created = kubeflow.runs["run-0"]
    assert created.runtime_config.parameters["run"] == "r1"
    assert len(created.runtime_config.parameters["code"]) == 64
    assert [each.display_name for each in kubeflow.experiments] == ["gumshoe"]
    spec = created.pipeline_spec
    assert spec["pipeline_spec"]["pipelineInfo"]["name"] == "train-agent"
    executors = spec["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    labels = executors["exec-train-grpo"]["podMetadata"]["labels"]
    own = {"kueue.x-k8s.io/queue-name": "lq", "sidecar.istio.io/inject": "false"}
    assert labels == {PROJECT_LABEL: "acme", RUN_LABEL: "r1", STEP_LABEL: "train-grpo", **own}
    assert "queue" not in created.runtime_config.parameters, "it is compiled into the pipeline"


def test_an_existing_experiment_is_used(server: "KubeflowClient", kubeflow: FakeKubeflow) -> None:
    submit_run(server)
    submit_run(server, run="r2")
    assert len(kubeflow.experiments) == 1
    assert len(kubeflow.runs) == 2


def test_the_address_of_a_run_is_printed_without_credentials(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    words = [
        "pipeline",
        "submit",
        "train-agent",
        "--host",
        kubeflow.url,
        "--ui",
        "http://ann:planted@ui",
        *INPUTS,
        *STORE,
    ]
    for done in (run(*words), run(*words, "-p", "run=again", "--json")):
        assert done.status == 0, done.err
        assert "http://***@ui/#/runs/details/run-" in done.out
        assert "planted" not in done.out + done.err


def test_a_run_that_is_watched_is_printed_as_one_json_document(
    kubeflow: FakeKubeflow, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    kubeflow.states.append("SUCCEEDED")
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, "--json", "--watch", "--host", kubeflow.url)
    assert done.status == 0, done.err
    assert json.loads(done.out)["run_id"] == "run-0"
    assert "SUCCEEDED" in done.err


def test_runs_of_one_second_have_ids_of_their_own(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    words = ["pipeline", "submit", "train-agent", *INPUTS, *STORE, "--json", "--host", kubeflow.url]
    ids = {json.loads(run(*words).out)["run"] for _ in range(3)}
    assert len(ids) == 3


def test_a_run_in_progress_is_not_submitted_again(server: "KubeflowClient", kubeflow: FakeKubeflow) -> None:
    """Both runs would use the same checkpoints. A run that has ended can be continued."""
    submit_run(server)
    with raises("pipelines.run-in-progress", "r1", "`gumshoe pipeline watch run-0`"):
        submit_run(server)
    kubeflow.runs["run-0"].state = "FAILED"
    submit_run(server)
    assert len(kubeflow.runs) == 2


def test_caching_can_be_disabled(kubeflow: FakeKubeflow, server: "KubeflowClient") -> None:
    graph = train_agent()
    for caching in (True, False):
        arguments = {**ARGUMENTS, "run": f"caching-{caching}"}
        server.submit(graph, arguments, experiment="e", service_account="runner", caching=caching)
    first, second = (_list_cached(kubeflow.runs[each].pipeline_spec) for each in ("run-0", "run-1"))
    assert first >= {"ingest", "load-scenarios", "evaluate-policy"}
    assert not first & {"train-grpo", "publish-adapter", "notify", "gate"}
    assert not second
    assert kubeflow.runs["run-0"].service_account == "runner"


def test_recurring_runs_do_not_overlap(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    given = [*INPUTS, *STORE, "-p", "against=latest", "--cron", "0 0 3 * * 0", "--host", kubeflow.url]
    done = run("pipeline", "submit", "train-agent", *given)
    assert done.status == 0, done.err
    (made,) = kubeflow.recurring
    assert made.runtime_config.parameters["against"] == "latest"
    assert "run" not in made.runtime_config.parameters, "each run has the ID that Kubeflow gives it"
    assert _list_cached(made.pipeline_spec)
    assert made.trigger.cron_schedule.cron == "0 0 3 * * 0"
    assert (made.max_concurrency, made.no_catchup, made.mode) == ("1", True, "ENABLE")


def test_a_recurring_run_is_printed_as_json(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    options = ["--cron", "0 0 3 * * 0", "--no-cache", "--json", "--host", kubeflow.url]
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, *options)
    assert done.status == 0, done.err
    (made,) = kubeflow.recurring
    assert json.loads(done.out) == {"recurring_run_id": made.recurring_run_id, "cron": "0 0 3 * * 0"}
    assert not _list_cached(made.pipeline_spec)


def test_a_schedule_cannot_be_watched(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    options = ["--cron", "0 0 3 * * 0", "--watch", "--host", kubeflow.url]
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, *options)
    assert (done.status, done.code) == (2, "pipelines.cron-with-watch")
    assert kubeflow.recurring == []


@pytest.mark.parametrize("cron", ["0 3 * * 0", "", "0 0 3 * * 0 2027"])
def test_a_schedule_without_six_fields_is_refused(cron: str, kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, "--cron", cron, "--host", kubeflow.url)
    assert (done.status, done.code) == (2, "pipelines.invalid-cron")
    assert kubeflow.recurring == []


def test_runs_of_a_schedule_cannot_share_an_id(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    options = ["--cron", "0 0 3 * * 0", "-p", "run=r1", "--host", kubeflow.url]
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, *options)
    assert (done.status, done.code) == (2, "pipelines.run-with-cron")
    assert kubeflow.recurring == []


def test_the_earlier_name_of_a_pipeline_is_still_accepted(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    done = run("pipeline", "submit", "retrain-agent", *INPUTS, *STORE, "--host", kubeflow.url)
    assert done.status == 0, done.err
    assert "train-agent -p against=latest" in done.err
    made = kubeflow.runs["run-0"]
    assert made.pipeline_spec["pipeline_spec"]["pipelineInfo"]["name"] == "train-agent"
    assert made.runtime_config.parameters["against"] == "latest"


@pytest.mark.parametrize(
    ("wrong", "code", "value"),
    [
        ("gpus=many", "pipelines.wrong-parameter-type", 'an integer, got "many"'),
        ("colour=blue", "pipelines.unknown-parameter", "colour"),
        ("run=Nightly Run", "pipelines.invalid-run-id", "'Nightly Run'"),
        ("thresholds={min_gian: 1}", "gate.invalid-threshold", "min_gian"),
        ("limits={max_turns: 0}", "evaluation.invalid-limits", "max_turns: "),
        ("config=tinny", "pipelines.not-readable-from-pods", "config: pods cannot read tinny;"),
        ("settings={optimizer.lerning_rate: 1}", "settings.unknown-name", "lerning_rate"),
        ("judge=oracle", "judges.unknown-judge", "'oracle'"),
        ("store=ftp://bucket", "store.unknown-scheme", "ftp"),
        ("sources=[]", "pipelines.no-sources", "[maildir:s3://"),
        ("sources=[s3://bucket/mail]", "sources.unknown-form", "'s3://bucket/mail'"),
        ("sources=[maildir: s3://bucket/mail]", "pipelines.source-not-a-string", "{'maildir': 's3://bucket/mail'}"),
        ("sources=[maildir:Maildir]", "pipelines.not-readable-from-pods", "Maildir"),
        ("scenarios=questions.jsonl", "pipelines.not-readable-from-pods", "questions.jsonl"),
        ("scenarios=hf:@train", "sources.no-dataset-name", "'hf:@train'"),
        ("scenarios=hf:.", "pipelines.not-readable-from-pods", "hf:.; use a path that begins with s3:// or hf:"),
        ("demonstrations=hf:acme/mail", "pipelines.not-readable-from-pods", "hf:acme/mail"),
        ("demonstrations=shown.jsonl", "pipelines.not-readable-from-pods", "shown.jsonl"),
        ("config=./mine.yaml", "pipelines.not-readable-from-pods", "./mine.yaml"),
        ("store=outputs/store", "pipelines.store-not-in-s3", "outputs/store"),
        ("run=latest", "pipelines.reserved-run-id", "latest"),
    ],
)
def test_invalid_parameters_are_refused_before_any_request(
    wrong: str, code: str, value: str, kubeflow: FakeKubeflow, run: Callable[..., Any]
) -> None:
    done = run("pipeline", "submit", "train-agent", *INPUTS, *STORE, "-p", wrong, "--host", kubeflow.url)
    assert (done.status, done.code) == (2, code)
    assert value in done.err
    assert kubeflow.requests == []


@pytest.mark.parametrize(
    ("fault", "error", "code", "value"),
    [
        ("hang", UnavailableError, "pipelines.server-timeout", "0.5 seconds"),
        ("reset", UnavailableError, "pipelines.server-unreachable", ""),
        ("401", GumshoeError, "pipelines.unauthenticated", "401: because"),
        ("403", GumshoeError, "pipelines.access-denied", "403: because"),
        ("404", GumshoeError, "pipelines.not-found", "404: because"),
        ("400", GumshoeError, "pipelines.request-rejected", "400: because"),
        ("503", UnavailableError, "pipelines.server-unhealthy", "503: because"),
        ("429", UnavailableError, "pipelines.server-unhealthy", "429: because"),
        ("nonsense", GumshoeError, "pipelines.not-kubeflow", "text/html"),
    ],
)
def test_server_errors_are_reported_in_one_line(
    fault: str, error: type[GumshoeError], code: str, value: str, kubeflow: FakeKubeflow
) -> None:
    """A server that hangs does so until the end of the test."""
    server = connect(kubeflow, 0.5 if fault == "hang" else 3600)
    kubeflow.faults.append(fault)
    with raises(code, kubeflow.url, value) as raised:
        submit_run(server)
    assert "\n" not in str(raised.value)
    assert raised.type is error
    assert len(kubeflow.requests) == 1, "no retry, which could start a run twice"


def test_an_unreachable_server_ends_with_75(run: Callable[..., Any]) -> None:
    done = run("pipeline", "list", "--host", "http://127.0.0.1:9")
    assert (done.status, done.code) == (75, "pipelines.server-unreachable")
    assert done.err.count("\n") == 1


def test_the_api_accepts_only_tokens_for_its_audience(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    kubeflow.tokens = {"sesame": AUDIENCE, "other": "https://kubernetes.default.svc"}
    for given in ([], ["--token", "other"], ["--token", "unknown"]):
        refused = run("pipeline", "list", "--host", kubeflow.url, *given)
        assert (refused.status, refused.code) == (1, "pipelines.unauthenticated")
        assert AUDIENCE in refused.err
    done = run("pipeline", "list", "--host", kubeflow.url, "--token", "sesame", "--json")
    assert (done.status, json.loads(done.out)) == (0, [])


@pytest.mark.parametrize(
    ("gateway", "code"),
    [("401", "pipelines.unauthenticated"), ("403", "pipelines.login-required"), ("302", "pipelines.login-required")],
)
def test_a_gateway_needs_a_session_or_a_token(
    gateway: str, code: str, kubeflow: FakeKubeflow, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeflow.gateway, kubeflow.tokens = gateway, {"sesame": "https://kubernetes.default.svc"}
    for given in ([], ["--cookie", "oauth2_proxy_kubeflow=expired"]):
        refused = run("pipeline", "list", "--host", kubeflow.url, *given)
        assert (refused.status, refused.code) == (1, code)
        assert "KFP_COOKIE" in refused.err
    assert len(kubeflow.requests) == 2, "a redirect is not followed"
    assert run("pipeline", "list", "--host", kubeflow.url, "--token", "sesame").status == 0
    monkeypatch.setenv("KFP_COOKIE", kubeflow.session)
    assert run("pipeline", "list", "--host", kubeflow.url).status == 0


def test_another_address_of_the_server_is_named(kubeflow: FakeKubeflow, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = b"https://kubeflow.example.com/pipeline/apis/v2beta1/runs?page_size=1"
    monkeypatch.setattr(kubeflow, "check_credentials", lambda _: (302, "text/html", moved))
    with raises("pipelines.moved", "--host https://kubeflow.example.com/pipeline"):
        connect(kubeflow).list_runs(1)


@pytest.mark.parametrize("cookie", ["", "value", "name=", "a=b\r\nX: y", "a=b c", "=b"])
def test_a_malformed_cookie_is_refused(cookie: str, kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    done = run("pipeline", "list", "--host", kubeflow.url, "--cookie", cookie)
    assert (done.status, done.code) == (2, "pipelines.invalid-cookie")
    assert kubeflow.requests == []


@pytest.mark.parametrize("token", ["secret\nword", "two secrets", "secr\u00e9t", " "])
def test_a_malformed_token_is_refused_and_not_shown(
    token: str, kubeflow: FakeKubeflow, run: Callable[..., Any]
) -> None:
    done = run("pipeline", "list", "--host", kubeflow.url, "--token", token)
    assert (done.status, done.code) == (2, "pipelines.invalid-token")
    assert not [part for part in ("secret", "secr\u00e9t") if part in done.err]
    assert kubeflow.requests == []


def test_white_space_around_a_token_is_ignored(kubeflow: FakeKubeflow, run: Callable[..., Any]) -> None:
    kubeflow.tokens = {"sesame": AUDIENCE}
    assert run("pipeline", "list", "--host", kubeflow.url, "--token", "sesame\n").status == 0


def test_a_pod_uses_its_projected_token_and_reads_it_again(
    kubeflow: FakeKubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet replaces the token in time."""
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    place = tmp_path / "token"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(place))
    with raises("pipelines.no-pod-token", place, AUDIENCE):
        ServerAddress.of(None, "acme", None, None, in_cluster=True)
    kubeflow.tokens = {"first": AUDIENCE}
    place.write_text("first\n")
    server = KubeflowClient(ServerAddress.of(kubeflow.url, "acme", None, None, in_cluster=True))
    assert server.list_runs(1) == []
    kubeflow.tokens = {"second": AUDIENCE}
    place.write_text("second\n")
    assert server.list_runs(1) == []
    place.write_text("")
    with raises("pipelines.invalid-token", place):
        server.list_runs(1)
    place.unlink()
    with raises("pipelines.no-pod-token", place):
        server.list_runs(1)


@pytest.mark.parametrize("namespace", [None, "acme"])
def test_a_pod_asks_the_api_in_its_own_namespace(
    namespace: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace of the run is another one than that of Kubeflow."""
    from gumshoe_pipelines.kubeflow_client import ServerAddress

    (tmp_path / "token").write_text("sesame")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    found = ServerAddress.of(None, namespace, None, None, in_cluster=True)
    assert found.host == "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
    assert found.namespace == namespace
    other = ServerAddress.of("https://ml-pipeline.other.svc:8888", namespace, None, None, in_cluster=True)
    assert other.host == "https://ml-pipeline.other.svc:8888"


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_does_not_connect_is_named_without_its_password(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    with forward_proxy() as proxy:
        proxy.status = status
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://ann:secret@"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        with raises("pipelines.proxy-failed", proxy.url, str(status)) as raised:
            KubeflowClient(ServerAddress("https://kubeflow.example.com/pipeline")).list_runs(1)
    assert "secret" not in raised.value.message
    assert proxy.requested == ["kubeflow.example.com:443"]
    assert proxy.credentials == ["ann:secret"]


def task(name: str, state: str, minutes: float | None = None, error: str = "") -> Any:
    import kfp_server_api as api

    started = datetime(2026, 1, 1, tzinfo=UTC)
    return api.V2beta1PipelineTaskDetail(
        display_name=name,
        state=state,
        create_time=started,
        start_time=started,
        end_time=started + timedelta(minutes=minutes) if minutes is not None else None,
        error=api.GoogleRpcStatus(code=2, message=error) if error else None,
    )


def details(*tasks: Any) -> Any:
    import kfp_server_api as api

    return api.V2beta1RunDetails(task_details=list(tasks))


def pod(step: str, status: dict[str, Any]) -> Any:
    """Return the pod of a step with parts of its status, as a type of the Kubernetes client."""
    from kubernetes import client as kubernetes

    from gumshoe_pipelines.run_labels import STEP_LABEL

    labels = {"pipeline/runid": "run-0", STEP_LABEL: step}
    about = {"namespace": "kubeflow", "name": f"{step}-pod", "labels": labels}
    document = {
        "metadata": {**about, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
        "status": status,
    }
    return kubernetes.ApiClient().deserialize(SimpleNamespace(data=json.dumps(document)), "V1Pod")


def with_state(phase: str = "Pending", **state: Any) -> dict[str, Any]:
    """Return the status of a pod whose container is `waiting` or `terminated`."""
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}


def collect_views(server: "KubeflowClient", cluster: Cluster | None = None, **more: Any) -> "list[PipelineRunView]":
    from gumshoe.cluster.pod_refusals import find_step_refusals
    from gumshoe_pipelines.run_status import view_pods, watch_run

    warned: list[str] = more.setdefault("warned", [])

    def get_pods(run_id: str) -> dict[str, Any]:
        return {} if cluster is None else view_pods(cluster, run_id)

    def get_refusals(run_id: str) -> dict[str, str]:
        return {} if cluster is None else find_step_refusals(cluster, run_id)

    asked = (lambda: server.get_run("run-0")), get_pods, get_refusals
    return list(watch_run(*asked, warned.append, every=0.01, timeout=3600))


def test_a_run_is_watched_to_its_end(kubeflow: FakeKubeflow, server: "KubeflowClient", cluster: Cluster) -> None:
    submit_run(server)
    kubeflow.states.extend(["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"])
    kubeflow.runs["run-0"].run_details = details(
        task("root", "RUNNING"), task("ingest", "SUCCEEDED", 2), task("train-grpo", "RUNNING")
    )
    kubeflow.pods.append(pod("train-grpo", {"phase": "Running"}))
    line = "Step 12/200 | Loss 0.52 | Policy 0.51"
    kubeflow.logs["train-grpo-pod"] = f"Starting vLLM\n{line}\nsomething else\n"
    views = collect_views(server, cluster)
    assert [each.state for each in views] == ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    ingested, trained = views[-1].steps
    assert (ingested.name, ingested.state, ingested.seconds) == ("ingest", "SUCCEEDED", 120)
    assert trained.progress == line
    waits = "Waiting for job: it is suspended"
    kubeflow.logs["train-grpo-pod"] = f"{line}\n{waits}\n"
    assert collect_views(server, cluster)[-1].steps[1].progress == waits


@pytest.mark.parametrize(
    ("status", "reason", "values"),
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
            "Unschedulable",
            ["node_selector and tolerations", "(0/3 nodes: no nvidia)"],
        ),
        (with_state(waiting={"reason": "ImagePullBackOff"}), "ImagePullBackOff", ["worker_image and trainer_image"]),
        (with_state(waiting={"reason": "CreateContainerConfigError"}), "CreateContainerConfigError", ["secret"]),
        (
            with_state("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}),
            "OOMKilled",
            ["model.max_context"],
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted", ["checkpoint"]),
    ],
)
def test_a_pod_problem_is_explained(
    status: dict[str, Any],
    reason: str,
    values: list[str],
    kubeflow: FakeKubeflow,
    server: "KubeflowClient",
    cluster: Cluster,
) -> None:
    submit_run(server)
    kubeflow.states.extend(["RUNNING", "FAILED"])
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    kubeflow.pods.append(pod("train-grpo", status))
    (step,) = collect_views(server, cluster)[-1].steps
    assert step.problem.startswith(f"{reason}: ")
    for value in values:
        assert value in step.problem


def test_a_pod_problem_is_found_in_events(kubeflow: FakeKubeflow, server: "KubeflowClient", cluster: Cluster) -> None:
    submit_run(server)
    kubeflow.states.append("FAILED")
    from kubernetes import client as kubernetes

    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    kubeflow.pods.append(pod("train-grpo", {"phase": "Pending"}))
    about = kubernetes.V1ObjectReference(name="train-grpo-pod")
    metadata = kubernetes.V1ObjectMeta(namespace="kubeflow", name="e")
    kubeflow.events.append(
        kubernetes.CoreV1Event(involved_object=about, metadata=metadata, reason="FailedMount", message="no secret s3")
    )
    (step,) = collect_views(server, cluster)[-1].steps
    assert step.problem.startswith("FailedMount: ")
    assert "(no secret s3)" in step.problem


QUOTA = 'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=5, limited: pods=5'


def workflow(**nodes: dict[str, Any]) -> dict[str, Any]:
    """Return Argo's workflow of run-0 with its nodes by ID."""
    return {"metadata": {"name": "w", "labels": {"pipeline/runid": "run-0"}}, "status": {"nodes": nodes}}


def test_refused_pods_are_explained(kubeflow: FakeKubeflow, server: "KubeflowClient", cluster: Cluster) -> None:
    """Argo waits if a quota is used up. No pod exists, and the server may not know the step yet."""
    submit_run(server)
    kubeflow.states.extend(["RUNNING", "FAILED"])
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    executor = {"type": "Pod", "phase": "Pending", "displayName": "executor", "boundaryID": "dag", "message": QUOTA}
    driver = {"type": "Pod", "phase": "Error", "displayName": "ingest-driver"}
    driver["message"] = 'pods "y" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    kubeflow.workflows.append(workflow(dag={"displayName": "train-grpo"}, executor=executor, driver=driver))
    trained, ingested = collect_views(server, cluster)[-1].steps
    assert (trained.name, ingested.name, ingested.state) == ("train-grpo", "ingest", "PENDING")
    assert "quota team is used up" in trained.problem
    assert "pod security level restricted" in ingested.problem


def test_a_driver_that_cannot_start_is_a_problem_of_its_step(
    kubeflow: FakeKubeflow, server: "KubeflowClient", cluster: Cluster
) -> None:
    """Drivers have no labels of the project."""
    submit_run(server)
    kubeflow.states.append("FAILED")
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    found = pod("train-grpo", with_state(waiting={"reason": "ImagePullBackOff"}))
    found.metadata.labels = {"pipeline/runid": "run-0"}
    found.metadata.annotations = {"workflows.argoproj.io/node-name": "train-agent-x7.root.train-grpo-driver"}
    kubeflow.pods.append(found)
    (step,) = collect_views(server, cluster)[-1].steps
    assert step.problem.startswith("ImagePullBackOff: ")


def test_a_problem_is_printed_once_and_again_if_it_changes(
    kubeflow: FakeKubeflow,
    server: "KubeflowClient",
    run: Callable[..., Any],
    cluster: Cluster,  # noqa: ARG001 - sets KUBECONFIG
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit_run(server)
    kubeflow.states.extend(["RUNNING", "RUNNING", "RUNNING", "SUCCEEDED"])
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "RUNNING"))
    node = {"type": "Pod", "phase": "Pending", "displayName": "train-grpo", "message": QUOTA}
    kubeflow.workflows.append(workflow(train=node))
    messages = [QUOTA.replace("used: pods=5", "used: pods=6"), 'pods "x" is forbidden: no PriorityClass']

    def change(_: float) -> None:
        node["message"] = messages.pop(0) if messages else node["message"]

    monkeypatch.setattr("gumshoe_pipelines.run_status.time.sleep", change)
    done = run("pipeline", "watch", "run-0", "--host", kubeflow.url)
    assert done.status == 0, done.err
    assert done.err.count("quota team is used up") == 1
    assert done.err.count("PriorityClass") == 1


def test_watching_continues_after_errors(kubeflow: FakeKubeflow, server: "KubeflowClient") -> None:
    submit_run(server)
    kubeflow.states.extend(["RUNNING", "SUCCEEDED"])
    kubeflow.faults.extend(["fine", "reset", "503", "reset", "fine"])
    warned: list[str] = []
    views = collect_views(server, warned=warned)
    assert [each.state for each in views] == ["RUNNING", "SUCCEEDED"]
    assert len(warned) == 3
    unreachable, unhealthy = "[pipelines.server-unreachable]", "[pipelines.server-unhealthy]"
    assert [re.findall(r"\[pipelines\S+\]", each) for each in warned] == [[unreachable], [unhealthy], [unreachable]]


def test_watching_gives_up_on_an_unreachable_server(
    kubeflow: FakeKubeflow, server: "KubeflowClient", clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause takes half of the timeout."""
    submit_run(server)
    kubeflow.requests.clear()
    kubeflow.states.append("RUNNING")
    kubeflow.faults.extend(["fine", *["reset"] * 1000])
    monkeypatch.setattr("gumshoe_pipelines.run_status.time.sleep", lambda _: clock.advance(1800))
    with raises("pipelines.server-unreachable", kubeflow.url) as raised:
        collect_views(server)
    assert raised.type is UnavailableError
    assert len(kubeflow.requests) == 3


def test_watching_fails_if_the_first_request_fails(kubeflow: FakeKubeflow, server: "KubeflowClient") -> None:
    submit_run(server)
    kubeflow.requests.clear()
    kubeflow.faults.append("reset")
    with raises("pipelines.server-unreachable", kubeflow.url):
        collect_views(server)
    assert len(kubeflow.requests) == 1


def test_a_run_can_be_watched_without_access_to_its_pods(
    kubeflow: FakeKubeflow, server: "KubeflowClient", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_run(server)
    kubeflow.states.append("SUCCEEDED")
    warned: list[str] = []
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, "http://127.0.0.1:9")))
    assert collect_views(server, Cluster("kubeflow"), warned=warned)[-1].state == "SUCCEEDED"
    assert "[cluster.unreachable]" in warned[0]


def test_watching_a_failed_run_ends_with_1(
    kubeflow: FakeKubeflow,
    server: "KubeflowClient",
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    submit_run(server)
    kubeflow.states.append("FAILED")
    kubeflow.runs["run-0"].run_details = details(task("train-grpo", "FAILED", 1, "exit code 75"))
    done = run("pipeline", "watch", "run-0", "--host", kubeflow.url)
    assert (done.status, done.code) == (1, "pipelines.run-failed")
    assert "train-grpo: FAILED" in done.err
    assert "exit code 75" in done.out
    assert "[cluster.no-kubeconfig]" in done.err
    done = run("pipeline", "watch", "another", "--host", kubeflow.url)
    assert (done.status, done.code) == (1, "pipelines.not-found")
    assert "run another" in done.err
