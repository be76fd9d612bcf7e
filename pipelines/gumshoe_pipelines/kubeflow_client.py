"""A Kubeflow Pipelines server: start runs there, and ask how they are. Each request has a deadline."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kfp_server_api as api
import urllib3

from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe_pipelines.graphs import Graph, read_documents
from gumshoe_pipelines.placement import PROJECT_LABEL, RUN_LABEL

IN_CLUSTER = "http://ml-pipeline.{namespace}.svc.cluster.local:8888"
_RECENT = 100  # runs that are looked at
_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")  # where Kubeflow mounts a service account's


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and who asks."""

    host: str
    namespace: str | None = None
    """Of the experiment, where the server has several users."""
    token: str | None = None
    deadline: float = 30
    """Seconds of a request."""

    @classmethod
    def of(cls, host: str | None, namespace: str | None, token: str | None, *, in_cluster: bool) -> "Address":
        """
        Raises:
            UsageError: it says not, or not in this way, where the server is.
        """
        if in_cluster:
            if not _TOKEN.exists() and token is None:
                raise UsageError(
                    "pipelines.no-pod-token",
                    f"--in-cluster needs a token that Kubeflow mounts in pods, but {_TOKEN} does not exist; use --host",
                )
            own = token or _TOKEN.read_text(encoding="utf-8").strip()
            return cls(host or IN_CLUSTER.format(namespace=namespace or "kubeflow"), namespace, own)
        if host is None:
            raise UsageError(
                "pipelines.no-host",
                "the address of Kubeflow Pipelines is missing; set --host or $KFP_HOST, or use --in-cluster in a pod",
            )
        if not host.startswith(("http://", "https://")):
            raise UsageError(
                "pipelines.invalid-host", f"--host must be a URL, got {host}; write e.g. http://localhost:8080"
            )
        return cls(host.rstrip("/"), namespace, token)


class KubeflowClient:
    """Asks a server. Every method raises as `_explained` says."""

    def __init__(self, address: Address) -> None:
        self.address = address
        configuration = api.Configuration(host=address.host)
        if address.token:
            configuration.api_key["authorization"] = address.token
            configuration.api_key_prefix["authorization"] = "Bearer"
        configuration.retries = urllib3.Retry(0)  # a run that was begun twice costs twice
        self._client = api.ApiClient(configuration)

    def submit(
        self, graph: Graph, arguments: dict[str, Any], *, experiment: str, service_account: str | None, caching: bool
    ) -> api.V2beta1Run:
        """Start a run of a pipeline, whose graph is sent with it.

        Raises:
            UsageError: a run of that id is going on, whose checkpoints this one would take for its own.
        """
        name = f"{graph.name} {arguments.get('run', '')}".strip()
        for each in self.runs(_RECENT) if "run" in arguments else ():
            if each.display_name == name and each.state in ("PENDING", "RUNNING"):
                raise UsageError(
                    "pipelines.run-in-progress",
                    f"run {arguments['run']} is in progress; follow it with `gumshoe pipeline watch {each.run_id}`, "
                    "terminate it first, or use another id",
                )
        run = api.V2beta1Run(
            display_name=name,
            experiment_id=self._experiment(experiment),
            pipeline_spec=submit_arguments(graph, arguments, caching=caching),
            runtime_config=api.V2beta1RuntimeConfig(parameters=arguments),
            service_account=service_account,
        )
        return self._ask(api.RunServiceApi(self._client).run_service_create_run, run)

    def schedule(
        self,
        graph: Graph,
        arguments: dict[str, Any],
        *,
        cron: str,
        experiment: str,
        service_account: str | None,
        caching: bool,
    ) -> api.V2beta1RecurringRun:
        """Have a pipeline run again and again, never twice at once."""
        recurring = api.V2beta1RecurringRun(
            display_name=graph.name,
            experiment_id=self._experiment(experiment),
            pipeline_spec=submit_arguments(graph, arguments, caching=caching),
            runtime_config=api.V2beta1RuntimeConfig(parameters=arguments),
            service_account=service_account,
            max_concurrency="1",
            no_catchup=True,
            mode=api.RecurringRunMode.ENABLE,
            trigger=api.V2beta1Trigger(cron_schedule=api.V2beta1CronSchedule(cron=cron)),
        )
        service = api.RecurringRunServiceApi(self._client)
        return self._ask(service.recurring_run_service_create_recurring_run, recurring)

    def run(self, run_id: str) -> api.V2beta1Run:
        """A run with its steps."""
        return self._ask(api.RunServiceApi(self._client).run_service_get_run, run_id, what=f"run {run_id}")

    def runs(self, most: int) -> list[api.V2beta1Run]:
        """The newest runs."""
        more = {"namespace": self.address.namespace} if self.address.namespace else {}
        service = api.RunServiceApi(self._client)
        found = self._ask(service.run_service_list_runs, page_size=most, sort_by="created_at desc", **more)
        return found.runs or []

    def _experiment(self, name: str) -> str:
        """The id of the experiment of that name, which is made where it is missing."""
        service = api.ExperimentServiceApi(self._client)
        wanted = {"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]}
        more = {"namespace": self.address.namespace} if self.address.namespace else {}
        found = self._ask(service.experiment_service_list_experiments, filter=json.dumps(wanted), **more)
        if found.experiments:
            return str(found.experiments[0].experiment_id)
        made = api.V2beta1Experiment(display_name=name, namespace=self.address.namespace)
        return str(self._ask(service.experiment_service_create_experiment, made).experiment_id)

    def _ask(self, method: Callable[..., Any], *arguments: Any, what: str = "the resource", **named: Any) -> Any:
        """Call a method of the published client, within the deadline."""
        deadline = (self.address.deadline, self.address.deadline)  # a number alone would have to be whole
        with self._explained(what):
            found = method(*arguments, **named, _request_timeout=deadline)
            kind = self._client.last_response.getheader("Content-Type") or "nothing that says what it is"
            if "json" not in kind:  # of which the client makes an empty answer
                raise ValueError(f"it returned {kind}")
            return found

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """
        Raises:
            UnavailableError: the server does not answer, or is not well.
            GumshoeError: it refuses.
        """
        host = self.address.host
        try:
            yield
        except api.ApiException as error:
            said = _said(error)
            if error.status == 401:
                raise GumshoeError(
                    "pipelines.unauthenticated",
                    f"{host} does not accept the credentials: 401{said}; set a valid token with --token or $KFP_TOKEN",
                ) from None
            if error.status == 403:
                raise GumshoeError(
                    "pipelines.access-denied",
                    f"{host} denies access: 403{said}; use a token with this right (--token or $KFP_TOKEN)",
                ) from None
            if error.status == 404:
                raise GumshoeError(
                    "pipelines.not-found",
                    f"{what} does not exist at {host}: 404{said}; check the address, the namespace and the id",
                ) from None
            if error.status is None or error.status >= 500 or error.status == 429:
                raise UnavailableError(
                    "pipelines.server-unhealthy", f"{host} failed: {error.status}{said}; try again later"
                ) from None
            raise GumshoeError(
                "pipelines.request-rejected", f"{host} rejected the request: {error.status}{said}"
            ) from None
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            if _is_timeout(reason):
                raise UnavailableError(
                    "pipelines.server-timeout",
                    f"{host} did not answer within {self.address.deadline:g} seconds; check --host and the network",
                ) from None
            raise UnavailableError(
                "pipelines.server-unreachable",
                f"{host} cannot be reached: {_short(reason)}; check --host and the network",
            ) from None
        except (ValueError, AttributeError, TypeError) as error:  # what the client makes of other documents
            raise GumshoeError(
                "pipelines.not-kubeflow",
                f"{host} is not a Kubeflow Pipelines API: {_short(error)}; check --host",
            ) from None


def submit_arguments(graph: Graph, arguments: dict[str, Any], *, caching: bool) -> dict[str, Any]:
    """A pipeline as a server takes it, with the labels of its pods filled in."""
    spec, *platforms = read_documents(graph.text)
    if not caching:
        for part in (spec["root"], *spec["components"].values()):
            for task in part.get("dag", {}).get("tasks", {}).values():
                task["cachingOptions"] = {}
    platform = platforms[0] if platforms else {}
    known = {RUN_LABEL: str(arguments.get("run", "")), PROJECT_LABEL: project_of(str(arguments.get("store", "")))}
    executors = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    for executor in executors.values():
        labels = executor.get("podMetadata", {}).get("labels", {})
        labels.update({label: value for label, value in known.items() if label in labels and value})
    return {"pipeline_spec": spec, "platform_spec": platform}


def project_of(store: str) -> str:
    """What a project is called: the last part of its store's URI."""
    return store.rstrip("/").rpartition("/")[2]


def _is_timeout(reason: object) -> bool:
    """Return whether a deadline passed; urllib3 counts connections that were refused as timeouts too."""
    timeout, refused = urllib3.exceptions.TimeoutError, urllib3.exceptions.NewConnectionError
    return isinstance(reason, timeout) and not isinstance(reason, refused)


def _said(error: api.ApiException) -> str:
    """What an answer says of itself."""
    try:
        body = json.loads(error.body or "")
        said = body.get("message") or body.get("error") or body.get("error_details") or ""
    except (ValueError, AttributeError):
        said = error.reason or ""
    return f": {_short(said)}" if said else ""


def _short(said: object) -> str:
    return " ".join(str(said).split())[:300]
