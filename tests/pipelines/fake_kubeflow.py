"""Fake a Kubeflow Pipelines server and a Kubernetes API on a real socket.

Requests and responses use the types of the published clients. Tests can make the server misbehave.

Credentials are checked as the real ones are: by the API (backend/src/apiserver/auth/authenticator_token_review.go), or
by the gateway in front of it (oauth2-proxy in the manifests of Kubeflow, and older ones that redirect to Dex).
"""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gumshoe.cluster.kubeflow_access import AUDIENCE
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
    tokens: dict[str, str] = field(default_factory=dict)
    """Audience of each token that was issued. If there are any, the API requires one for `AUDIENCE`."""
    gateway: str = ""
    """Answer to a request without a token or session: 401, 403 (sign-in page) or 302 (to Dex); empty to accept it."""
    session: str = "oauth2_proxy_kubeflow=open"
    """The cookie that the gateway accepts."""
    runs: "dict[str, api.V2beta1Run]" = field(default_factory=dict)
    recurring: "list[api.V2beta1RecurringRun]" = field(default_factory=list)
    experiments: "list[api.V2beta1Experiment]" = field(default_factory=list)
    pods: "list[kubernetes.V1Pod]" = field(default_factory=list)
    events: "list[kubernetes.CoreV1Event]" = field(default_factory=list)
    workflows: list[dict[str, Any]] = field(default_factory=list)
    """Argo's workflows of the runs."""
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
            case "GET", str() if path.endswith("/workflows") and "argoproj.io" in path:
                name, _, value = query["labelSelector"].partition("=")
                found = [each for each in self.workflows if each["metadata"]["labels"].get(name) == value]
                return 200, {"apiVersion": "argoproj.io/v1alpha1", "kind": "WorkflowList", "items": found}
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

    def check_credentials(self, request: ReceivedRequest) -> tuple[int, str, bytes] | None:
        """Return the answer to a request whose credentials are not accepted, or None."""
        token = (request.authorization or "").removeprefix("Bearer ")
        if self.gateway and request.cookie != self.session and token not in self.tokens:
            if self.gateway == "302":
                page = f"{self.url}/dex/auth?client_id=kubeflow-oidc-authservice&state=x7"
                return 302, "text/html; charset=utf-8", page.encode()
            return int(self.gateway), "text/html; charset=utf-8", b"<html>Sign in with Dex</html>"
        if self.tokens and not self.gateway and self.tokens.get(token) != AUDIENCE:
            reason = "Failed to authenticate token review" if token else "there is no user identity header"
            message = f"Internal error: Unauthenticated: {reason}: Request header error"
            return 401, "application/json", json.dumps({"error": message, "code": 16, "message": message}).encode()
        return None


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
        refused = fake.check_credentials(request)
        if refused:
            return refused
        if fault.isdigit():
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
