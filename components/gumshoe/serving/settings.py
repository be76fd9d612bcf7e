"""What an agent server is told: read from a YAML file, then the environment (`GUMSHOE_SERVE__LIMITS__QUEUE`), then
flags.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from gumshoe.environments.registry import NamedEnvironment
from gumshoe.errors import UsageError, faults_of
from gumshoe.inference.policy import HIGHEST_TEMPERATURE
from gumshoe.rewards.best_of_n import MOST, ChoiceSettings, Way, code_of

PREFIX = "GUMSHOE_SERVE__"
_STRICT = ConfigDict(extra="forbid", frozen=True)
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class ServedModelSettings(BaseModel):
    """Who answers."""

    model_config = _STRICT

    policy: str | None = Field(None, description="as `gumshoe rollout --policy`; what is to be started here unless set")
    adapter: str | None = Field(None, description="a directory, or a version in the store or `latest`, to start here")
    base: str | None = Field(None, description="the base model to start here: the adapter's own unless given, or tiny")
    tokenizer: str | None = Field(None, description="the model's tokenizer (a directory or a name), for vllm:")
    canary: str | None = Field(None, description="another adapter that the same vLLM servers have")
    canary_percent: float = Field(10, ge=0, le=100, description="of the episodes, or sessions, that the canary takes")
    temperature: float = Field(0, ge=0, le=HIGHEST_TEMPERATURE, description="0 is greedy, as evaluations are")
    max_turns: int = Field(10, ge=1, description="most turns of an episode")
    max_tokens: int = Field(512, ge=1, description="most tokens of a turn")
    max_context: int = Field(8192, ge=64, description="most tokens of an episode")
    samples: int = Field(1, ge=1, le=MOST, description="episodes of a question, at once, of which one answers it")
    choose: Way = Field("majority", description="which of several: the answer of most, or the best by a judge")
    choose_by: str | dict[str, Any] | None = Field(
        None, description="who says which answers are alike (heuristic unless set), or which is best: ruler:MODEL@URL"
    )

    @property
    def choice(self) -> ChoiceSettings | None:
        """How one of several samples is chosen; None where there is one."""
        if self.samples == 1:
            return None
        given = {"choose": self.choose, "choose_by": self.choose_by, "temperature": self.temperature}
        return ChoiceSettings.of({"samples": self.samples, **given})

    @model_validator(mode="after")
    def _whole(self) -> "ServedModelSettings":
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"model.samples {self.samples} needs model.temperature > 0: greedy samples are identical")
        if self.samples == 1 and "choose_by" in self.model_fields_set and self.choose_by is not None:
            raise ValueError("model.choose_by needs model.samples >= 2, got 1")
        if self.samples > 1:
            try:
                _ = self.choice
            except UsageError as error:
                raise ValueError(error) from None
        if self.policy and (self.adapter or self.base):
            raise ValueError("model.policy excludes model.adapter and model.base; set one of them")
        if self.canary and not (self.policy or "").startswith("vllm:"):
            raise ValueError("model.canary needs vLLM servers; set model.policy to vllm:URL#ADAPTER")
        return self


class AccessSettings(BaseModel):
    """Who may ask, and of whose mail; documents may be read by all who may ask. One of `keys`, `jwks_url` and `open` is
    to be set, or the first two.
    """

    model_config = _STRICT

    open: bool = Field(False, description="anybody may read all of the index; for one's own machine alone")
    keys: Path | None = Field(None, description="a file of keys, as `gumshoe serve-key` writes it")
    jwks_url: str | None = Field(None, description="where the keys that tokens (JWT) are signed with are published")
    issuer: str | None = Field(None, description="what a token's `iss` is to be")
    audience: str | None = Field(None, description="what a token's `aud` is to be, or to hold")
    algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256"), description="that tokens may be signed with")
    inbox_claim: str | None = Field("email", description="the claim that names the inbox, or the inboxes, of a token")
    verified_email: bool = Field(
        True, description="the claim email counts beside email_verified: true alone; some providers let users choose it"
    )
    inboxes: tuple[str, ...] = Field((), description="patterns (*@example.com) that every token may read")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="names that requests may be sent to; any, but where access is open: this machine's alone"
    )

    @model_validator(mode="after")
    def _whole(self) -> "AccessSettings":
        if self.open == bool(self.keys or self.jwks_url):
            raise ValueError(
                "set access.keys or access.jwks_url, or else access.open to let anybody read everything; not both"
            )
        if self.jwks_url and not (self.issuer and self.audience):
            raise ValueError(
                "access.jwks_url needs access.issuer and access.audience, or it would accept tokens for other services"
            )
        if self.jwks_url and not (self.inbox_claim or self.inboxes):
            raise ValueError("set access.inbox_claim or access.inboxes, or no token can read anything")
        return self


class LimitSettings(BaseModel):
    """Bounds on what is taken and kept. Times are in seconds."""

    model_config = _STRICT

    concurrency: int = Field(64, ge=1, description="episodes at once")
    queue: int = Field(128, ge=0, description="requests that wait for one of them to end; more are told 429")
    deadline: float = Field(120, gt=0, description="for one request, waiting included; 504 after it")
    body: int = Field(64 << 10, ge=1024, description="most bytes of a request")
    question: int = Field(2000, ge=1, description="most characters of a question")
    shutdown: float = Field(120, ge=0, description="for what runs when the server is asked to end")


class RecordingSettings(BaseModel):
    """What is kept of what was asked, for training; nothing unless it is switched on."""

    model_config = _STRICT

    feedback: bool = Field(False, description="take POST /feedback, and publish it as scenarios")
    trajectories: float = Field(0, ge=0, le=1, description="share of the episodes that is published")
    redact: tuple[str, ...] = Field((), description="regular expressions; what matches is not kept, nor are token ids")
    every: float = Field(300, gt=0, description="seconds between two publications")

    @model_validator(mode="after")
    def _whole(self) -> "RecordingSettings":
        for each in self.redact:
            try:
                re.compile(each)
            except re.error as error:
                raise ValueError(f"not a regular expression: {each!r}: {error}") from None
        return self


class ServeSettings(BaseSettings):
    """All of it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    index: str = Field(description="the directory of an index, of mail or documents, or KIND/VERSION in the store")
    environment: NamedEnvironment | None = Field(
        None,
        description="email, documents, package.module:Class, or one with its settings, as {documents: {reasoning: "
        "false}}; as the index tells unless set",
    )
    store: str | None = Field(None, description="where indexes are fetched from, and what is kept goes")
    host: str = Field("127.0.0.1", description="address to listen at; 0.0.0.0 is every one")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0 is any that is free")
    log_questions: bool = Field(
        False, description="questions and answers stand in the log, which may quote what was read"
    )
    model: ServedModelSettings = ServedModelSettings()
    access: AccessSettings = Field(default={}, validate_default=True)
    limits: LimitSettings = LimitSettings()
    keeping: RecordingSettings = RecordingSettings()

    @model_validator(mode="after")
    def _stored(self) -> "ServeSettings":
        if (self.keeping.feedback or self.keeping.trajectories) and not self.store:
            raise ValueError("keeping.feedback and keeping.trajectories need a store; set store")
        if self.model.samples > self.limits.concurrency:
            raise ValueError(
                f"model.samples must be <= limits.concurrency ({self.limits.concurrency}), got {self.model.samples}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The first that has a setting wins."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


def read_settings(file: Path | None, flags: dict[str, Any]) -> ServeSettings:
    """The settings of a server; `flags` are nested as the file is.

    Raises:
        UsageError: they cannot be; the message names each that is wrong.
    """
    if file is not None and not file.is_file():
        raise UsageError("serving.settings-file-not-found", f"settings file {file} does not exist")

    class Given(ServeSettings):
        model_config = SettingsConfigDict(yaml_file=file)

    try:
        return Given(**flags)
    except ValidationError as error:
        raise UsageError(
            code_of(error, "serving.invalid-settings"), f"invalid server settings: {faults_of(error)}"
        ) from None
    except (yaml.YAMLError, SettingsError, TypeError, ValueError) as error:
        raise UsageError(
            "serving.settings-unreadable", f"cannot read settings from {file or 'the environment'}: {error}"
        ) from None
