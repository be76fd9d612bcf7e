"""Settings of an agent that calls the policy and the tools itself, in place of Gumshoe's own loop."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gumshoe.errors import UsageError
from gumshoe.model_validation import validate_model
from gumshoe.plugins import parse_named
from gumshoe.yaml_text import load_yaml

_CODE = "rollouts.invalid-agent"


class ToolServerSettings(BaseModel):
    """An MCP server (streamable HTTP) whose tools an agent gets besides those of the environment.

    All episodes of a run share one connection.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    mcp: str = Field(description="address of the server, e.g. https://tools.example.com/mcp")
    token_env: str | None = Field(
        None, pattern=r"^[A-Za-z_]\w*$", description="environment variable with a bearer token for the server"
    )
    deadline: float = Field(60, gt=0, description="most seconds of a call")
    max_characters: int = Field(20_000, ge=1, description="most characters of a result; the rest is cut off")

    @field_validator("mcp")
    @classmethod
    def _check_address(cls, address: str) -> str:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as https://tools.example.com/mcp")
        if parts.username is not None or parts.fragment:
            raise ValueError("must have no user and no fragment; name a variable with a token in token_env")
        return address


class AgentSettings(BaseModel):
    """An agent: a Python object, or a program, and limits on each of its episodes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    name: str | None = Field(
        None, pattern=r"^[\w.]+:[\w.]+$", description="function, graph or agent in Python, as package.module:name"
    )
    command: tuple[str, ...] = Field(
        (), description="program with its arguments, e.g. [node, agent.js]; one process per episode"
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="environment variables of the program, by name"
    )
    inherit: tuple[str, ...] = Field(
        ("PATH",), description="environment variables of Gumshoe that the program gets; it gets no others"
    )
    deadline: float = Field(300, gt=0, description="most seconds that the agent itself may take in an episode")
    max_sampled_tokens: int | None = Field(
        None, ge=1, description="most tokens that the policy may sample in an episode; unset for no limit"
    )
    max_tool_calls: int = Field(100, ge=1, description="most calls of tools in an episode")
    processes: int = Field(8, ge=1, description="most processes of the program at once")
    on_error: Literal["score", "retry"] = Field(
        "score",
        description="an exception of the agent, or an exit status other than 0, after a turn of the policy: score the "
        "episode as it is, or run it again as after a failure of infrastructure",
    )
    on_crash: Literal["retry", "score"] = Field(
        "retry", description="a process that was killed: run the episode again, or score it as it is"
    )
    on_deadline: Literal["score", "retry"] = Field(
        "score", description="an agent that exceeds its deadline: score the episode as it is, or run it again"
    )
    tools: tuple[ToolServerSettings, ...] = Field(
        (), description="more tools of the agent: MCP servers over streamable HTTP, e.g. [{mcp: http://host/mcp}]"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.name) == bool(self.command):
            raise ValueError("set either name or command")
        return self

    @property
    def word(self) -> str:
        """The agent as an option of the command line."""
        given = self.model_dump(mode="json", exclude_defaults=True)
        return self.name if self.name and list(given) == ["name"] else json.dumps(given)

    @classmethod
    def parse_option(cls, word: str | None) -> Self | None:
        """Parse the option `--agent`. None stays None. See `parse`."""
        return None if word is None else cls.parse(word)

    @classmethod
    def parse(cls, word: Any) -> Self:
        """Parse an agent in a configuration or on the command line.

        That is `package.module:name`, that name with settings (`{package.module:name: {deadline: 60}}`), a mapping of
        settings, or a YAML file with one of them.

        Raises:
            UsageError: if it is none of these.
        """
        if isinstance(word, cls):
            return word
        if isinstance(word, str) and word.endswith((".yaml", ".yml")):
            try:
                word = load_yaml(Path(word).expanduser().read_text())
            except (OSError, ValueError) as error:
                raise UsageError(_CODE, f"cannot read the agent in {word}: {error}") from None
        if isinstance(word, str) and word.lstrip().startswith("{"):
            try:
                word = load_yaml(word)
            except ValueError as error:
                raise UsageError(_CODE, f"not an agent: {error}") from None
        found = parse_named(word, "settings") if not (isinstance(word, dict) and "command" in word) else None
        if found is not None and ":" in found[0]:
            word = {"name": found[0], **found[1]}
        if not isinstance(word, dict):
            raise UsageError(
                _CODE, f"not an agent: {word!r}; use package.module:name, {{command: [program, ...]}}, or a YAML file"
            )
        return validate_model(cls, word, _CODE, "agent")


NamedAgent = Annotated[AgentSettings, BeforeValidator(AgentSettings.parse, json_schema_input_type=str | dict[str, Any])]
"""Agent in a configuration, as `AgentSettings.parse` accepts it."""
