"""Page of the environment variables."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from docs.generate.command_line import list_commands
from docs.generate.markdown import anchor, code, page, sentence, table

from gumshoe.cluster.notify import WEBHOOK
from gumshoe.embeddings.reranker import API_KEY as RERANK_KEY
from gumshoe.inference.policy_names import ENGINE_VARIABLE
from gumshoe.inference.vllm_access import KEY_VARIABLE
from gumshoe.serving.settings import PREFIX as SERVE_PREFIX
from gumshoe.training.settings_sources import PREFIX as TRAIN_PREFIX
from gumshoe.training.settings_sources import list_env_vars

READ = {
    "Models and judges": {
        "OPENAI_API_KEY": "Key for chat models, chat judges and embedding endpoints (OpenAI-compatible).",
        RERANK_KEY: "Key of the `/rerank` endpoint that document searches use, if it needs one.",
        ENGINE_VARIABLE: "Engine of the policies `tiny` and `local:MODEL`: `vllm` or `transformers`. Default: vLLM if "
        "it is installed. Trainings do not read it: use `gumshoe train --engine`.",
        KEY_VARIABLE: "Key of vLLM servers: servers that Gumshoe starts demand it, and clients send it. A training on "
        "several nodes makes its own.",
        "VLLM_LOGGING_LEVEL": "Log level of the vLLM servers that Gumshoe starts. Default: `INFO`.",
        "VLLM_CPU_KVCACHE_SPACE": "GiB for the KV cache of vLLM on a CPU. Default: derived from the memory.",
        "HF_TOKEN": "Token for gated models and private datasets on the Hugging Face Hub.",
        "HF_HOME": "Directory of models and datasets from the Hugging Face Hub. Default: `~/.cache/huggingface`.",
        "HF_HUB_OFFLINE": "`1` to use only models and datasets that are already in `HF_HOME`.",
        "DO_NOT_TRACK": "`0` to let TRL and vLLM report their use to their makers. Default: `1`.",
    },
    "Agents": {
        "PATH": "Directories in which the programs of agents (`--agent '{command: [node, agent.js]}'`) are looked for. "
        "The programs inherit it, unless their setting `inherit` names other variables.",
    },
    "Files": {
        "GUMSHOE_CACHE": "Directory of cached answers of judges, cached pages and converted base models. Default: "
        "`gumshoe` in `XDG_CACHE_HOME`.",
        "XDG_CACHE_HOME": "Directory of caches. Default: `~/.cache`.",
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE": "Credentials for S3. They come "
        "from the usual chain of AWS.",
        "AWS_REGION": "Region of the S3 bucket.",
        "AWS_ENDPOINT_URL": "Address of an S3 server other than AWS.",
    },
    "Certificates and proxy": {
        "SSL_CERT_FILE": "File with the CA certificates to trust (PEM), instead of the public ones. The option "
        "`gumshoe --ca-bundle` wins.",
        "REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE": "The same, if `SSL_CERT_FILE` is not set. Otherwise they get its value, "
        "unless they are set.",
        "AWS_CA_BUNDLE": "The same for S3 only. It wins there.",
        "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY": "Proxy for `https` and `http` addresses, and for both. The option "
        "`gumshoe --proxy` wins. Not used for IMAP, scraping and Kubernetes in a pod.",
        "NO_PROXY": "Hosts and domains that are reached without a proxy, e.g. `localhost,.svc,.example.com`.",
    },
    "Mail": {
        "GUMSHOE_IMAP_PASSWORD": "Password for `imap:` sources. `GUMSHOE_IMAP_PASSWORD_ANN_EXAMPLE_COM` is for the "
        "account `ann@example.com` only.",
        "GUMSHOE_IMAP_TOKEN": "OAuth 2 access token (XOAUTH2) for `imap:` sources, with the same suffix. It wins over "
        "a password.",
    },
    "Cluster": {
        "KUBECONFIG": "Configuration of access to Kubernetes. Default: `~/.kube/config`.",
        "KFP_TOKEN": "Bearer token for the Kubeflow Pipelines API.",
        "KFP_COOKIE": "Session cookie of Kubeflow's login page, as `NAME=VALUE`.",
        "KF_PIPELINES_SA_TOKEN_PATH": "File with the token of a pod's service account, for `--in-cluster`. Default: "
        "`/var/run/secrets/kubeflow/pipelines/token`.",
        "HELM_DRIVER": "Where Helm stores releases. Default: `secret`.",
        "GUMSHOE_METRICS_TOKEN": "Bearer token for the addresses of `gumshoe promote --metrics`.",
        "GUMSHOE_STEP_PAUSE": "Seconds before a pipeline step that failed for now is run again. Default: 60.",
        WEBHOOK: "Webhook URL that receives the outcome of each pipeline run.",
    },
    "Training on several machines": {
        "PET_NNODES": "Number of machines of the run. Kubeflow Trainer and torchrun set it and the next four.",
        "PET_NODE_RANK": "Number of this machine, from 0.",
        "PET_NPROC_PER_NODE": "Number of trainers on this machine, or `auto`.",
        "PET_MASTER_ADDR": "Host of the first machine.",
        "PET_MASTER_PORT": "Port on the first machine.",
        "CUDA_VISIBLE_DEVICES": "GPUs that the run uses. Default: all.",
        "POD_IP": "Address that a rollout server listens on, and its adapter loader finds it at. Default: 127.0.0.1.",
        "OMP_NUM_THREADS": "Threads of each trainer on a CPU. Default: the cores, shared out among the trainers.",
    },
    "Trackers": {
        "WANDB_API_KEY": "Key for Weights & Biases (`output.report_to: [wandb]`).",
        "MLFLOW_TRACKING_URI": "Address of the MLflow server (`output.report_to: [mlflow]`).",
    },
    "Telemetry of the agent server": {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "Address that spans are sent to (OpenTelemetry, OTLP over HTTP). Default: none.",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same for spans only.",
        "OTEL_SERVICE_NAME": "Name of the service in spans. Default: `gumshoe-agent`.",
    },
}
"""Variables that are read elsewhere than by an option or a setting. A test compares them with the code."""


def render_environment_variables() -> str:
    """Return the page."""
    return page(
        "Environment variables",
        "Every command reads the file `.env` in the working directory. Variables that are set already win.",
        (line for title, variables in READ.items() for line in (f"## {title}", *_render(variables))),
        "## Options of commands",
        "An option on the command line wins over its variable.",
        table(("variable", "option", "commands"), _list_options()),
        "## Training settings",
        f"Each [training setting](train-settings.md) has a variable: {code(TRAIN_PREFIX)}, then its name in capitals "
        f"with `__` for each dot, e.g. {code(TRAIN_PREFIX + 'OPTIMIZER__MAX_STEPS')}. The following also have one with "
        "a familiar name; if both are set, the one with the prefix wins.",
        table(
            ("variable", "setting"),
            ((code(each), f"[{code(name)}](train-settings.md#{name})") for name, each in list_env_vars()),
        ),
        "## Server settings",
        f"Each [server setting](serve-settings.md) has a variable: {code(SERVE_PREFIX)}, then its name in capitals "
        f"with `__` for each dot, e.g. {code(SERVE_PREFIX + 'LIMITS__QUEUE')}.",
    )


def _render(variables: Mapping[str, str]) -> Iterator[str]:
    def target(names: str) -> str:
        return "".join(anchor(name.lower()) for name in names.split(", "))

    def shown(names: str) -> str:
        return ", ".join(map(code, names.split(", ")))

    return table(
        ("variable", "meaning"), ((target(names) + shown(names), sentence(text)) for names, text in variables.items())
    )


def _list_options() -> Iterator[tuple[str, str, str]]:
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for command, each in list_commands():
        for parameter in each.params:
            if parameter.envvar:
                target = f"cli.md#{command.replace(' ', '-')}{parameter.opts[0]}"
                link = f"[{code(command)}]({target})"
                found[parameter.envvar, parameter.opts[0]][link] = None
    for (variable, option), commands in sorted(found.items()):
        yield code(variable), code(option), ", ".join(commands)
