"""Define the settings of the agent server.

They are read from a YAML file, environment variables (`GUMSHOE_SERVE__LIMITS__QUEUE`) and flags, which take precedence
in this order: flags, environment, file.
"""

import re
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from gumshoe.corpus import CORPORA
from gumshoe.environments.registry import NamedEnvironment
from gumshoe.errors import UsageError
from gumshoe.inference.policy import MAX_TEMPERATURE
from gumshoe.model_validation import describe_validation_error
from gumshoe.rewards.best_of_n import MAX_SAMPLES, ChoiceMethod, ChoiceSettings
from gumshoe.rollouts.agent_settings import NamedAgent
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.policy_limits import PolicyLimits
from gumshoe.scenarios.scenario import Consent
from gumshoe.serving.access_settings import AccessSettings, check_open_to_network, is_loopback
from gumshoe.trusted_files import check_trusted
from gumshoe.yaml_text import load_yaml

PREFIX = "GUMSHOE_SERVE__"
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ServedModelSettings(BaseModel):
    """The model that answers."""

    model_config = _STRICT

    policy: str | None = Field(None, description="Policy as in `gumshoe rollout --policy`. Default: a local model.")
    adapter: str | None = Field(
        None, description="Adapter of the local model: a directory, a version in the store, or `latest`."
    )
    base: str | None = Field(
        None, description="Base model of the local model. Default: the adapter's own; without an adapter, tiny."
    )
    tokenizer: str | None = Field(None, description="Tokenizer (directory or name), required for a vllm: policy.")
    chat: ChatSettings | None = Field(
        None,
        description="Chat settings, as in section `chat` of the training settings. Default: those that the adapter was "
        "trained with; others are rejected.",
    )
    agent: NamedAgent | None = Field(
        None,
        description="Agent that answers, in place of Gumshoe's own loop, as in `gumshoe rollout --agent`.",
        examples=["my_package.agent:graph"],
    )
    canary: str | None = Field(None, description="Canary: another adapter that the same vLLM servers have loaded.")
    canary_adapter: Path | None = Field(
        None, description="Directory of the canary's files, to read what it was trained on. Needed with bound."
    )
    canary_percent: float = Field(10, ge=0, le=100, description="Percentage of questions or sessions for the canary.")
    bound: Literal["off", "base", "refuse"] = Field(
        "off",
        description="Answers to callers on whose inbox or collections an adapter was not trained. off: from the "
        "adapter; base: from the base model; refuse: status 403.",
    )
    temperature: float = Field(0, ge=0, le=MAX_TEMPERATURE, description="Sampling temperature. 0 is greedy.")
    max_turns: int | None = Field(
        None, ge=1, description="Maximum number of turns per episode. Default: that of the adapter's training, or 10."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens per turn. Default: that of the adapter's training, or 512."
    )
    max_context: int | None = Field(
        None,
        ge=64,
        description="Maximum number of tokens per episode. Default: that of the adapter's training, or 8192.",
    )
    samples: int = Field(
        1, ge=1, le=MAX_SAMPLES, description="Number of concurrent episodes per question, from which one is chosen."
    )
    choose: ChoiceMethod = Field(
        "majority", description="Method of choosing: the majority's answer, or the best by a judge."
    )
    choose_by: str | dict[str, Any] | None = Field(
        None, description="Judge: for majority, compares answers (default: heuristic); for best, ruler:MODEL@URL."
    )

    @property
    def limits(self) -> PolicyLimits:
        """Limits of episodes: those that are set, and the defaults."""
        return self.find_limits(())

    def find_limits(self, directories: Iterable[Path]) -> PolicyLimits:
        """Return the limits of a policy's episodes: those that are set, and for all others those of its training.

        `directories` are those of its adapter and model.
        """
        given = {"max_turns": self.max_turns, "max_tokens": self.max_tokens, "max_context": self.max_context}
        return PolicyLimits.of(directories, **given)

    @property
    def choice(self) -> ChoiceSettings | None:
        """Settings for choosing one of several samples; None if there is only one."""
        if self.samples == 1:
            return None
        options = {"choose": self.choose, "choose_by": self.choose_by, "temperature": self.temperature}
        return ChoiceSettings.from_mapping({"samples": self.samples, **options})

    @model_validator(mode="after")
    def _check(self) -> "ServedModelSettings":
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"model.samples {self.samples} needs model.temperature > 0: greedy samples are identical")
        if self.samples == 1 and "choose_by" in self.model_fields_set and self.choose_by is not None:
            raise ValueError("model.choose_by needs model.samples >= 2, got 1")
        if self.samples > 1:
            _ = self.choice  # raises a UsageError if it is invalid
        if self.policy and (self.adapter or self.base):
            raise ValueError("model.policy excludes model.adapter and model.base; set one of them")
        if self.canary and not (self.policy or "").startswith("vllm:"):
            raise ValueError("model.canary needs vLLM servers; set model.policy to vllm:URL#ADAPTER")
        if self.canary and self.bound != "off" and self.canary_adapter is None:
            raise ValueError(
                f"model.bound {self.bound} needs model.canary_adapter, or it is not known what the canary was trained "
                "on; set it to the directory of its files"
            )
        if self.canary_adapter is not None and not self.canary:
            raise ValueError("model.canary_adapter has no effect without model.canary; set both, or leave it out")
        return self


class LimitSettings(BaseModel):
    """Limits of requests. Times are in seconds."""

    model_config = _STRICT

    concurrency: int = Field(
        64,
        ge=1,
        description="Maximum number of concurrent episodes. Of an agent that is a program, at most `processes` run.",
    )
    queue: int = Field(128, ge=0, description="Maximum number of waiting requests; further ones get status 429.")
    deadline: float = Field(120, gt=0, description="Deadline of a request including waiting; then it gets status 504.")
    body: int = Field(64 << 10, ge=1024, description="Maximum size of a request body in bytes.")
    question: int = Field(2000, ge=1, description="Maximum number of characters in a question.")
    shutdown: float = Field(120, ge=0, description="Seconds for running requests to finish at shutdown.")
    tokens_per_day: int | None = Field(
        None,
        ge=1,
        description="Maximum number of prompt and sampled tokens per caller and day (UTC); further questions get "
        "status 429. Default: unlimited.",
    )
    calls_per_day: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tool calls, of the agent and over MCP, and of sources read, per caller and day "
        "(UTC); further requests get status 429. Default: unlimited.",
    )
    usage_file: Path | None = Field(
        None,
        description="SQLite file for the usage, so that a restart does not renew the budgets. Default: in memory.",
    )

    @model_validator(mode="after")
    def _check(self) -> "LimitSettings":
        if self.usage_file is not None and self.tokens_per_day is None and self.calls_per_day is None:
            raise ValueError("limits.usage_file needs limits.tokens_per_day or limits.calls_per_day; set one of them")
        return self


class ConnectionSettings(BaseModel):
    """Limits of client connections. Times are in seconds."""

    model_config = _STRICT

    total: int = Field(
        4096,
        ge=1,
        description="Maximum number of connections. If there are more, the one that has waited longest for its client "
        "is closed. At most three quarters of the file descriptors are used.",
    )
    per_address: int = Field(
        512, ge=1, description="Maximum number of connections from one IP address, or one /64 network of IPv6."
    )
    trusted_proxies: tuple[str, ...] = Field(
        (),
        description="Addresses or networks of proxies, e.g. 10.0.0.0/8. They have no limit per address, and their "
        "X-Forwarded-For header names the client.",
    )
    header_deadline: float = Field(10, gt=0, description="Deadline for the headers of a request.")
    header_bytes: int = Field(64 << 10, ge=1024, description="Maximum size of a request's headers in bytes.")
    idle_deadline: float = Field(75, gt=0, description="Time after which a connection without requests is closed.")
    write_deadline: float = Field(
        30, gt=0, description="Time in which a client must take what was sent to it; then its connection is closed."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for each in proxies:
            try:
                ip_network(each)
            except ValueError:
                raise ValueError(f"not an IP address or network: {each!r}; write e.g. 10.0.0.0/8") from None
        return proxies


class RecordingSettings(BaseModel):
    """Recording of feedback and episodes for training. Nothing is recorded by default."""

    model_config = _STRICT

    feedback: bool = Field(False, description="Accept feedback (POST /feedback) and publish it as scenarios.")
    consent: Consent = Field(
        "none",
        description="What feedback may be used for if it does not say so itself: `training`, e.g. because the users "
        "have agreed to that, or `none`. It is recorded with each line.",
    )
    trajectories: float = Field(0, ge=0, le=1, description="Fraction of the episodes to publish as trajectories.")
    redact: tuple[str, ...] = Field(
        (), description="Regular expressions of text to redact. If set, token IDs are not recorded."
    )
    every: float = Field(300, gt=0, description="Seconds between two publications.")
    feedback_per_hour: int = Field(
        100, ge=1, description="Maximum number of feedback records per caller and hour; further ones get status 429."
    )
    verdicts_per_caller: int = Field(
        3,
        ge=1,
        description="Maximum number of verdicts per caller and policy within 24 hours that count in the measures of a "
        "canary. Increase it if one key serves many users.",
    )

    @model_validator(mode="after")
    def _check(self) -> "RecordingSettings":
        for each in self.redact:
            try:
                re.compile(each)
            except re.error as error:
                raise ValueError(f"not a regular expression: {each!r}: {error}") from None
        return self


class ServeSettings(BaseSettings):
    """All settings of the agent server."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    index: str = Field(description="Index of mail or documents: a directory, or KIND/VERSION in the store.")
    environment: NamedEnvironment | None = Field(
        None,
        description=f"Environment: {', '.join(CORPORA)}, package.module:Class, or one with settings, e.g. {{documents: "
        "{reasoning: false}}. Default: the one that the model was trained in, or that fits the index.",
    )
    store: str | None = Field(None, description="Store of the indexes and adapters, and for recorded data.")
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="Port to listen on; 0 for any free port.")
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None,
        description="Another port for `/metrics`, so that what publishes `port` does not publish the metrics. Default: "
        "`/metrics` is on `port`.",
    )
    workers: Annotated[int, Field(ge=0, le=64)] = Field(
        0,
        description="Number of processes that run the episodes, beside the one that answers HTTP and MCP. They share "
        "the index and all limits. 0: that one runs them itself, with about one processor.",
    )
    audit: str = Field(
        "log",
        min_length=1,
        description="Destination of the audit log, which records who read whose mail or documents: `log`, `none`, or "
        "the path of a file.",
    )
    log_questions: bool = Field(False, description="Log questions and answers, which may quote mail or documents.")
    model: ServedModelSettings = ServedModelSettings()
    access: AccessSettings = Field(default={}, validate_default=True)
    limits: LimitSettings = LimitSettings()
    connections: ConnectionSettings = ConnectionSettings()
    keeping: RecordingSettings = RecordingSettings()

    @model_validator(mode="after")
    def _check(self) -> "ServeSettings":
        if self.access.open and not is_loopback(self.host):
            check_open_to_network(self.access, self.host)
        if self.metrics_port is not None and self.metrics_port == self.port:
            raise ValueError(
                f"metrics_port must differ from port, got {self.port} for both; leave it out, or change it"
            )
        if (self.keeping.feedback or self.keeping.trajectories) and not self.store:
            raise ValueError("keeping.feedback and keeping.trajectories need a store; set store")
        if self.model.samples > self.concurrency:
            limit = "limits.concurrency" if self.concurrency == self.limits.concurrency else "the agent's processes"
            raise ValueError(f"model.samples must be <= {limit} ({self.concurrency}), got {self.model.samples}")
        return self

    @property
    def concurrency(self) -> int:
        """Maximum number of concurrent episodes: `limits.concurrency`, and for a program no more than its processes.

        An episode with a slot thus never waits for a process, so that the slots decide whose turn it is.
        """
        agent, most = self.model.agent, self.limits.concurrency
        return min(most, self.processes_per_worker * max(1, self.workers)) if agent and agent.command else most

    @property
    def processes_per_worker(self) -> int:
        """Number of the agent's processes that each process running episodes may have."""
        return max(1, self.model.agent.processes // max(1, self.workers)) if self.model.agent else 0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, highest precedence first."""
        return init_settings, env_settings, _SettingsFile(settings_cls)


class _SettingsFile(YamlConfigSettingsSource):
    """Read a settings file with the checks of `load_yaml`."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        return load_yaml(file_path.read_bytes()) or {}


def read_settings(file: Path | None, flags: dict[str, Any], kind: type[ServeSettings] = ServeSettings) -> ServeSettings:
    """Read the settings of a server. `flags` is nested like the file. `kind` may be a class that requires less.

    Raises:
        UsageError: if they are invalid; the message names each wrong setting.
    """
    if file is not None and not file.is_file():
        raise UsageError("serving.settings-file-not-found", f"settings file {file} does not exist")
    if file is not None:
        check_trusted(file, "the settings file")

    class GivenServeSettings(kind):  # type: ignore[misc, valid-type]
        model_config = SettingsConfigDict(yaml_file=file)

    try:
        given: ServeSettings = GivenServeSettings(**flags)
        return given
    except ValidationError as error:
        raise UsageError(
            "serving.invalid-settings", f"invalid server settings: {describe_validation_error(error)}"
        ) from None
    except (OSError, SettingsError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            "serving.settings-unreadable", f"cannot read settings from {file or 'the environment'}: {error}"
        ) from None
