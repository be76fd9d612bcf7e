"""Settings of conversations, equal in training, evaluation and service, and recorded with an adapter."""

import io
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, ValidationInfo, field_validator

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error, validate_model
from gumshoe.yaml_text import load_yaml

CHAT_SETTINGS = "chat_settings.json"
"""File in an adapter's directory with the settings that it was trained with."""
_RECORDED = "recorded"


class ChatSettings(BaseModel):
    """How a conversation with a model is written, and what happens with its calls."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    template: str | None = Field(
        None, description="chat template (Jinja), or a file with one; if unset, the tokenizer's own"
    )
    template_kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="variables for the chat template, e.g. {enable_thinking: false}"
    )
    thinking_budget: int | None = Field(
        None,
        ge=1,
        description="maximum number of tokens of reasoning per turn, in addition to max_tokens; reasoning that is "
        "longer is ended. If unset, reasoning counts towards max_tokens",
    )
    reasoning_history: Literal["keep", "drop"] = Field(
        "keep",
        description="reasoning of earlier turns: keep it in the history, or drop it if the chat template does, which "
        "splits an episode into several segments",
    )
    parallel_calls: Literal["allow", "refuse"] = Field(
        "allow", description="several calls in one turn: run all of them, or treat the turn as unusable"
    )
    on_bad_call: Literal["end", "reply"] = Field(
        "end", description="a turn without a usable call: end the episode, or tell the model what is wrong"
    )
    max_bad_calls: int = Field(
        3, ge=1, description="maximum number of turns without a usable call that are answered; the next one ends"
    )

    @field_validator("template")
    @classmethod
    def _read_template(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Read the template if the value is the name of a file. What an adapter records must be the template itself."""
        if value is None or "{{" in value or "{%" in value:
            return value
        if info.context == _RECORDED:
            raise ValueError("not a Jinja template")
        try:
            return Path(value).expanduser().read_text()
        except (OSError, ValueError) as error:
            raise ValueError(f"not a Jinja template, and cannot read it from a file: {error}") from None

    @classmethod
    def parse(cls, text: str | None) -> "ChatSettings | None":
        """Parse the option `--chat`: settings as YAML, or a YAML or JSON file with them.

        Raises:
            UsageError: if it is neither.
        """
        if text is None:
            return None
        what = "--chat"
        try:
            if not text.lstrip().startswith("{"):
                what, text = text, Path(text).expanduser().read_text()
            given = load_yaml(text)
        except (OSError, ValueError) as error:
            raise UsageError("rollouts.invalid-chat-settings", f"{what}: cannot read settings: {error}") from None
        if not isinstance(given, dict):
            raise UsageError(
                "rollouts.invalid-chat-settings", f"{what}: not settings, e.g. {{template_kwargs: {{...}}}}"
            )
        return validate_model(cls, given, "rollouts.invalid-chat-settings", what)

    def write(self, directory: Path) -> None:
        """Write the settings into an adapter's directory."""
        write_atomically(directory / CHAT_SETTINGS, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))


def resolve_chat_settings(given: ChatSettings | None, *places: Path | str | None) -> ChatSettings:
    """Return the settings for a policy: the first that are recorded in one of the places, or else `given`.

    The places are directories of its adapter, model and tokenizer; None and names on the hub have no record.

    Raises:
        UsageError: if `given` differs from what the policy was trained with, or the record cannot be read.
    """
    for place in places:
        path = Path(place).expanduser() / CHAT_SETTINGS if place is not None else None
        if path is None or not path.exists():
            continue
        try:
            recorded = ChatSettings.model_validate_json(path.read_bytes(), context=_RECORDED)
        except (OSError, ValidationError) as error:
            cause = describe_validation_error(error) if isinstance(error, ValidationError) else error
            raise UsageError("rollouts.invalid-chat-settings", f"cannot read {path}: {cause}") from None
        if given is not None and given != recorded:
            different = [name for name in ChatSettings.model_fields if getattr(given, name) != getattr(recorded, name)]
            raise UsageError(
                "rollouts.other-chat-settings",
                f"{place} was trained with other chat settings than given: {', '.join(different)} differ; leave them "
                "out, to use those it was trained with",
            )
        return recorded
    return given or ChatSettings()
