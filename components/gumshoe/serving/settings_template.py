"""Write all settings of the agent server as a YAML file that can be edited: `gumshoe serve --print-config`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, model_validator

from gumshoe.serving.access_settings import AccessSettings
from gumshoe.serving.settings import ServeSettings, read_settings


class _IncompleteAccess(AccessSettings):
    @model_validator(mode="after")
    def _check(self) -> "_IncompleteAccess":
        """Check the settings as a server does, unless no access is configured."""
        if self.open or self.keys or self.jwks_url:
            super()._check()  # type: ignore[operator] # pydantic leaves the method itself
        return self


class _IncompleteSettings(ServeSettings):
    """Settings in which those that a server requires may be missing."""

    index: str | None = Field(None, description=ServeSettings.model_fields["index"].description)  # type: ignore[assignment]
    access: _IncompleteAccess = _IncompleteAccess()


def render_settings(file: Path | None, flags: dict[str, Any]) -> str:
    """Return all settings as YAML, with a comment that describes each. `flags` is nested like the file.

    The values are those of flags, environment and file, or the defaults. Required settings may be missing.

    Raises:
        UsageError: if a value is invalid.
    """
    return "\n".join(_render(read_settings(file, flags, _IncompleteSettings), ServeSettings, "")) + "\n"


def _render(values: BaseModel, kind: type[BaseModel], indent: str) -> Iterator[str]:
    plain = values.model_dump(mode="json")
    for name, field in kind.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield f"{indent}{name}:  # {' '.join((section.__doc__ or '').split())}"
            yield from _render(getattr(values, name), section, f"{indent}  ")
            continue
        value = plain[name]
        is_missing = field.is_required() and not value
        written = yaml.safe_dump(None if is_missing else value, default_flow_style=True, width=10**6)
        note = f"Required. {field.description}" if is_missing else field.description
        yield f"{indent}{name}: {written.removesuffix('...' + chr(10)).strip()}  # {note}"
