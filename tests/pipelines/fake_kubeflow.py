"""Fake a Kubeflow Pipelines server and a Kubernetes API on a real socket.

Requests and responses use the types of the published clients. Tests can make the server misbehave.
"""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.http_server import ReceivedRequest, run_faulty_server

if TYPE_CHECKING:
    import kfp_server_api as api
    from kubernetes import client as kubernetes

_RUNS = "/apis/v2beta1/runs"
_EXPERIMENTS = "/apis/v2beta1/experiments"
_RECURRING = "/apis/v2beta1/recurringruns"


@dataclass
class FakeKubeflow:
    """The state of the server, its faults, and a record of requests."""

    url: str = ""
    token: str | None = None
    """If set, the only token that is accepted."""
    runs: "dict[str, api.V2beta1Run]" = field(default_factory=dict)
    recurring: "list[api.V2beta1RecurringRun]" = field(default_factory=list)
    experiments: "list[api.V2beta1Experiment]" = field(default_factory=list)
    pods: "list[kubernetes.V1Pod]" = field(default_factory=list)
    events: "list[kubernetes.CoreV1Event]" = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: deque[str] = field(default_factory=deque)
    """Faults of the next requests, one each: reset, hang, an HTTP status, nonsense, or fine."""
    states: deque[str] = field(default_factory=deque)
    """States of the runs, one per request for a run; the last one stays."""

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        import kfp_server_api as api
        from kubernetes import client as kubernetes

        match method, path:
            case "GET", "/apis/v2beta1/healthz":
                return 200, {"commit_sha": "", "tag_name": "2.17.0", "multi_user": False}
            case "GET", str() if path == _EXPERIMENTS:
                wanted = json.loads(query["filter"])["predicates"][0]["stringValue"]
                found = [each for each in self.experiments if each.display_name == wanted]
                return 200, api.V2beta1ListExperimentsResponse(experiments=found or None)
            case "POST", str() if path == _EXPERIMENTS:
                made = read(body, "V2beta1Experiment")
                made.experiment_id = f"e{len(self.experiments)}"
                self.experiments.append(made)
                return 200, made
            case "POST", str() if path == _RUNS:
                run = read(body, "V2beta1Run")
                assert run.experiment_id in {each.experiment_id for each in self.experiments}
                run.run_id, run.state = f"run-{len(self.runs)}", "PENDING"
                self.runs[run.run_id] = run
                return 200, run
            case "POST", str() if path == _RECURRING:
                recurring = read(body, "V2beta1RecurringRun")
                recurring.recurring_run_id = f"again-{len(self.recurring)}"
                self.recurring.append(recurring)
                return 200, recurring
            case "GET", str() if path == _RUNS:
                return 200, api.V2beta1ListRunsResponse(runs=list(self.runs.values()) or None)
            case "GET", str() if path.removeprefix(f"{_RUNS}/") in self.runs:
                run = self.runs[path.removeprefix(f"{_RUNS}/")]
                if self.states:
                    run.state = self.states.popleft() if len(self.states) > 1 else self.states[0]
                return 200, run
            case "GET", str() if path.endswith("/pods"):
                name, _, value = query["labelSelector"].partition("=")
                found = [each for each in self.pods if (each.metadata.labels or {}).get(name) == value]
                return 200, kubernetes.V1PodList(items=found)
            case "GET", str() if path.endswith("/log"):
                return 200, self.logs[path.split("/")[-2]]
            case "GET", str() if path.endswith("/events"):
                pod = query["fieldSelector"].partition("involvedObject.name=")[2].partition(",")[0]
                found = [each for each in self.events if each.involved_object.name == pod]
                return 200, kubernetes.CoreV1EventList(items=found)
        return 404, {"message": "Not Found"}


def read(body: bytes, kind: str) -> Any:
    """Parse a request body into a type of the client. Fails on unknown fields, which the client would ignore."""
    import kfp_server_api as api

    sent = json.loads(body)
    found = api.ApiClient().deserialize(SimpleNamespace(data=body.decode()), kind)
    unknown = set(sent) - set(found.attribute_map.values()) - set(found.attribute_map)
    assert not unknown, f"{kind} has no {unknown}"
    return found


@contextmanager
def fake_kubeflow() -> Iterator[FakeKubeflow]:
    import kfp_server_api as api
    from kubernetes import client as kubernetes

    fake = FakeKubeflow()

    def answer(request: ReceivedRequest, fault: str) -> tuple[int, str, bytes]:
        fake.requests.append(f"{request.method} {request.path}")
        found: Any
        if fault in ("reset", "hang"):
            return 0, "", b""
        if fake.token and request.authorization != f"Bearer {fake.token}":
            status, found = 401, {"message": "who are you?"}
        elif fault.isdigit():
            status, found = int(fault), {"message": "because"}
        else:
            status, found = fake.answer(request.method, request.path, request.query, request.body)
        if fault == "nonsense":
            return status, "text/html", b"<html>a login page</html>"
        if isinstance(found, str):
            return status, "application/json", found.encode()
        client = kubernetes.ApiClient() if type(found).__module__.startswith("kubernetes") else api.ApiClient()
        return status, "application/json", json.dumps(client.sanitize_for_serialization(found)).encode()

    with run_faulty_server(fake.faults, answer) as url:
        fake.url = url
        yield fake
