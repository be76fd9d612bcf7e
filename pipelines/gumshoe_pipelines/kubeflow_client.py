"""Start and inspect runs on a Kubeflow Pipelines server. Each request has a deadline."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kfp_server_api as api
import urllib3
from httpx import create_ssl_context

from gumshoe.cluster.kubeflow_access import AUDIENCE, IN_CLUSTER_URL, find_pod_token
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.network import clean_credential, find_proxy, proxy_headers, raise_if_untrusted
from gumshoe_pipelines.graphs import Graph, read_documents
from gumshoe_pipelines.run_labels import PROJECT_LABEL, RUN_LABEL, get_project_name

_RECENT = 100  # number of runs checked for one in progress
_REDIRECTS = (301, 302, 303, 307, 308)
_API = "apis/v2beta1/"
_COOKIE = re.compile(r"[!#$%&'*+.^_`|~\w-]+=[^\s;,]+(; ?[!#$%&'*+.^_`|~\w-]+=[^\s;,]+)*", re.A)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address and credentials of a server."""

    host: str
    namespace: str | None = None
    """Namespace of the experiment, in multi-user mode."""
    token: str | None = None
    token_file: Path | None = None
    """File with the token, read for each request, because the kubelet replaces it."""
    cookie: str | None = None
    """Session cookie of the login page in front of Kubeflow, as NAME=VALUE."""
    deadline: float = 30
    """Timeout of a request in seconds."""

    @classmethod
    def of(
        cls, host: str | None, namespace: str | None, token: str | None, cookie: str | None, *, in_cluster: bool
    ) -> "ServerAddress":
        """Build the address from command line options.

        Raises:
            UsageError: if the host is missing or invalid, the cookie or token is malformed, or the pod has no token.
        """
        token_file = None
        if in_cluster and token is None and cookie is None:
            token_file = find_pod_token()
            if not token_file.exists():
                raise UsageError(
                    "pipelines.no-pod-token",
                    f"--in-cluster needs a token for {AUDIENCE} in the pod, but {token_file} does not exist; mount one "
                    "(a projected service account token), or use --token",
                )
        if in_cluster and host is None:
            host = IN_CLUSTER_URL
        if host is None:
            raise UsageError(
                "pipelines.no-host",
                "the address of Kubeflow Pipelines is missing; set --host or $KFP_HOST, or use --in-cluster in a pod",
            )
        if not host.startswith(("http://", "https://")):
            raise UsageError(
                "pipelines.invalid-host", f"--host must be a URL, got {host}; write e.g. http://localhost:8080"
            )
        if cookie is not None and not _COOKIE.fullmatch(cookie):
            raise UsageError(
                "pipelines.invalid-cookie",
                "--cookie ($KFP_COOKIE) must be NAME=VALUE, e.g. oauth2_proxy_kubeflow=...; copy name and value of the "
                "cookie from the browser in which you are signed in",
            )
        found = None if token is None else _check_token(token, "--token ($KFP_TOKEN)")
        return cls(host.rstrip("/"), namespace, found, token_file, cookie)


class KubeflowClient:
    """Call a Kubeflow Pipelines server. Every method raises the errors of `_translate_errors`.

    Certificates and proxies are those of the environment (see `gumshoe.network`).
    """

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        configuration = api.Configuration(host=address.host)
        if address.token or address.token_file:
            configuration.api_key["authorization"] = address.token or ""
            configuration.api_key_prefix["authorization"] = "Bearer"
            configuration.refresh_api_key_hook = self._refresh_token if address.token_file else None
        self._client = api.ApiClient(configuration, cookie=address.cookie)
        self._proxy = find_proxy(address.host)
        self._client.rest_client.pool_manager = _create_pool(self._proxy)  # its own ignores the environment

    def _refresh_token(self, configuration: api.Configuration) -> None:
        if self.address.token_file:
            text = self.address.token_file.read_text(encoding="utf-8", errors="replace")
            configuration.api_key["authorization"] = _check_token(text, str(self.address.token_file))

    def submit(
        self, graph: Graph, arguments: dict[str, Any], *, experiment: str, service_account: str | None, caching: bool
    ) -> api.V2beta1Run:
        """Start a run of a pipeline. The compiled pipeline is sent with the request.

        Raises:
            UsageError: if a run with the same ID is in progress, because both would use the same checkpoints.
        """
        name = f"{graph.name} {arguments.get('run', '')}".strip()
        for each in self.list_runs(_RECENT) if "run" in arguments else ():
            if each.display_name == name and each.state in ("PENDING", "RUNNING"):
                raise UsageError(
                    "pipelines.run-in-progress",
                    f"run {arguments['run']} is in progress; follow it with `gumshoe pipeline watch {each.run_id}`, "
                    "terminate it first, or use another id",
                )
        run = api.V2beta1Run(
            display_name=name,
            experiment_id=self._ensure_experiment(experiment),
            pipeline_spec=build_pipeline_spec(graph, arguments, caching=caching),
            runtime_config=api.V2beta1RuntimeConfig(parameters=arguments),
            service_account=service_account,
        )
        return self._call(api.RunServiceApi(self._client).run_service_create_run, run)

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
        """Schedule a recurring run of a pipeline, at most one at a time."""
        recurring = api.V2beta1RecurringRun(
            display_name=graph.name,
            experiment_id=self._ensure_experiment(experiment),
            pipeline_spec=build_pipeline_spec(graph, arguments, caching=caching),
            runtime_config=api.V2beta1RuntimeConfig(parameters=arguments),
            service_account=service_account,
            max_concurrency="1",
            no_catchup=True,
            mode=api.RecurringRunMode.ENABLE,
            trigger=api.V2beta1Trigger(cron_schedule=api.V2beta1CronSchedule(cron=cron)),
        )
        service = api.RecurringRunServiceApi(self._client)
        return self._call(service.recurring_run_service_create_recurring_run, recurring)

    def get_run(self, run_id: str) -> api.V2beta1Run:
        """Return a run with its steps."""
        return self._call(api.RunServiceApi(self._client).run_service_get_run, run_id, what=f"run {run_id}")

    def list_runs(self, most: int) -> list[api.V2beta1Run]:
        """Return the newest runs."""
        more = {"namespace": self.address.namespace} if self.address.namespace else {}
        service = api.RunServiceApi(self._client)
        found = self._call(service.run_service_list_runs, page_size=most, sort_by="created_at desc", **more)
        return found.runs or []

    def _ensure_experiment(self, name: str) -> str:
        """Return the ID of an experiment, which is created if it does not exist."""
        service = api.ExperimentServiceApi(self._client)
        wanted = {"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]}
        more = {"namespace": self.address.namespace} if self.address.namespace else {}
        found = self._call(service.experiment_service_list_experiments, filter=json.dumps(wanted), **more)
        if found.experiments:
            return str(found.experiments[0].experiment_id)
        experiment = api.V2beta1Experiment(display_name=name, namespace=self.address.namespace)
        return str(self._call(service.experiment_service_create_experiment, experiment).experiment_id)

    def _call(self, method: Callable[..., Any], *arguments: Any, what: str = "the resource", **named: Any) -> Any:
        """Call a method of the Kubeflow client with the deadline."""
        deadline = (self.address.deadline, self.address.deadline)  # a single number would have to be an integer
        with self._translate_errors(what):
            found = method(*arguments, **named, _request_timeout=deadline)
            kind = self._client.last_response.getheader("Content-Type") or "no content type"
            if "json" not in kind:  # the client would return an empty object
                raise ValueError(f"it returned {kind}")
            return found

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Translate errors of the Kubeflow client.

        Raises:
            UnavailableError: if the server does not answer, or fails.
            UsageError: if its certificate is not trusted.
            GumshoeError: if it rejects the request.
        """
        host = self.address.host
        try:
            yield
        except api.ApiException as error:
            raise_if_untrusted(error, host)
            raise _explain_status(error, host, what) from None
        except urllib3.exceptions.HTTPError as error:
            raise_if_untrusted(error, host)
            raise self._explain_connection(error) from None
        except OSError as error:  # of the token's file
            raise GumshoeError(
                "pipelines.no-pod-token", f"cannot read the token in {self.address.token_file}: {error.strerror}"
            ) from None
        except (ValueError, AttributeError, TypeError) as error:  # raised by the client for malformed answers
            raise GumshoeError(
                "pipelines.not-kubeflow",
                f"{host} is not a Kubeflow Pipelines API: {_shorten(error)}; check --host",
            ) from None

    def _explain_connection(self, error: urllib3.exceptions.HTTPError) -> GumshoeError:
        """Return the error for a server that does not answer."""
        host = self.address.host
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, urllib3.exceptions.ProxyError) and self._proxy:
            proxy = urllib3.util.parse_url(self._proxy)._replace(auth=None)  # without the password
            return UnavailableError(
                "pipelines.proxy-failed",
                f"the proxy {proxy} does not connect to {host}: {_shorten(reason.original_error)}; check the proxy "
                "(--proxy or $HTTPS_PROXY), or add the host to $NO_PROXY",
            )
        if _is_timeout(reason):
            return UnavailableError(
                "pipelines.server-timeout",
                f"{host} did not answer within {self.address.deadline:g} seconds; check --host and the network",
            )
        return UnavailableError(
            "pipelines.server-unreachable",
            f"{host} cannot be reached: {_shorten(reason)}; check --host and the network",
        )


def _check_token(text: str, source: str) -> str:
    """Return a token without the white space around it.

    Raises:
        UsageError: if it cannot be sent in a header. The message does not contain it.
    """
    token = clean_credential(text)
    if not token:
        why = "it is empty" if token == "" else "it contains white space or characters other than ASCII"
        raise UsageError("pipelines.invalid-token", f"{source} is not a token: {why}; copy the whole token again")
    return token


def _create_pool(proxy: str | None) -> urllib3.PoolManager:
    """Return connections through a proxy, or direct ones without."""
    options: dict[str, Any] = {
        "ssl_context": create_ssl_context(),
        # A repeated request could start a run twice. A redirect leads to a login page, and is explained.
        "retries": urllib3.Retry(0, redirect=0, raise_on_redirect=False),
    }
    if proxy is None:
        return urllib3.PoolManager(**options)
    options["proxy_ssl_context"] = options["ssl_context"]
    return urllib3.ProxyManager(proxy, proxy_headers=proxy_headers(proxy), **options)


def _explain_status(error: api.ApiException, host: str, what: str) -> GumshoeError:
    """Return the error for a response with an error status."""
    detail, status = _error_detail(error), error.status
    headers = error.headers or {}
    location = headers.get("Location", "")
    if status in _REDIRECTS and f"/{_API}" in urlsplit(location).path:
        address = location.partition(f"/{_API}")[0]
        return GumshoeError("pipelines.moved", f"{host} redirects to {address}: {status}; use --host {address}")
    if status in _REDIRECTS or (status == 403 and "html" in headers.get("Content-Type", "")):
        page = f" ({urlsplit(location)._replace(query='').geturl()})" if location else ""
        return GumshoeError(
            "pipelines.login-required",
            f"{host} answers with its login page{page}: {status}; set a token (--token or $KFP_TOKEN) or the session "
            "cookie of your browser (--cookie or $KFP_COOKIE), or a new one if it has expired",
        )
    if status == 401:
        return GumshoeError(
            "pipelines.unauthenticated",
            f"{host} does not accept the credentials: 401{detail}; set a valid token (--token or $KFP_TOKEN) or "
            f"session cookie (--cookie or $KFP_COOKIE). Tokens for the API itself need the audience {AUDIENCE}",
        )
    if status == 403:
        return GumshoeError(
            "pipelines.access-denied",
            f"{host} denies access: 403{detail}; use a token with this right (--token or $KFP_TOKEN), and check "
            "--namespace",
        )
    if status == 404:
        return GumshoeError(
            "pipelines.not-found",
            f"{what} does not exist at {host}: 404{detail}; check the address, the namespace and the id",
        )
    if status is None or status >= 500 or status == 429:
        return UnavailableError("pipelines.server-unhealthy", f"{host} failed: {status}{detail}; try again later")
    return GumshoeError("pipelines.request-rejected", f"{host} rejected the request: {status}{detail}")


def build_pipeline_spec(graph: Graph, arguments: dict[str, Any], *, caching: bool) -> dict[str, Any]:
    """Return a pipeline in the form of the API, with the labels of its pods filled in."""
    spec, *platforms = read_documents(graph.text)
    if not caching:
        for part in (spec["root"], *spec["components"].values()):
            for task in part.get("dag", {}).get("tasks", {}).values():
                task["cachingOptions"] = {}
    platform = platforms[0] if platforms else {}
    values = {
        RUN_LABEL: str(arguments.get("run", "")),
        PROJECT_LABEL: get_project_name(str(arguments.get("store", ""))),
    }
    executors = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    for executor in executors.values():
        labels = executor.get("podMetadata", {}).get("labels", {})
        labels.update({label: value for label, value in values.items() if label in labels and value})
    return {"pipeline_spec": spec, "platform_spec": platform}


def _is_timeout(reason: object) -> bool:
    """Return True if a deadline passed. urllib3 counts refused connections as timeouts too."""
    timeout, refused = urllib3.exceptions.TimeoutError, urllib3.exceptions.NewConnectionError
    return isinstance(reason, timeout) and not isinstance(reason, refused)


def _error_detail(error: api.ApiException) -> str:
    """Return the message in an error response."""
    try:
        body = json.loads(error.body or "")
        message = body.get("message") or body.get("error") or body.get("error_details") or ""
    except (ValueError, AttributeError):
        message = error.reason or ""
    return f": {_shorten(message)}" if message else ""


def _shorten(text: object) -> str:
    return " ".join(str(text).split())[:300]
