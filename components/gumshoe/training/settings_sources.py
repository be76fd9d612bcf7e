"""Read the settings of a training run from flags, environment variables and a YAML file.

They take precedence in this order: a flag with the dotted name (`--set optimizer.learning_rate=1e-5`), the environment
variable `GUMSHOE_TRAIN__OPTIMIZER__LEARNING_RATE`, one with a familiar name (`LEARNING_RATE`), the file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from gumshoe.artifacts.storage import NotFoundError, open_uri
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.network import is_service_link
from gumshoe.terminal import err, printable
from gumshoe.text_checks import InvalidTextError, check_text
from gumshoe.training.settings import SECTIONS, TrainSettings, walk_fields
from gumshoe.training.settings_old_names import OLD_NAMES
from gumshoe.training.settings_sections import EnvVar
from gumshoe.yaml_text import InvalidYamlError, load_yaml

CONFIGS = Path(__file__).parent / "configs"
"""Configurations that come with Gumshoe; the file name without `.yaml` is the name."""
PREFIX = "GUMSHOE_TRAIN__"
# Not parsed as YAML: a name may consist of digits, and a template is Jinja.
_PLAIN_TEXT = ("model.name", "chat.template", "lora.start", "output.directory")


class _Value(NamedTuple):
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings, with the source of each value."""

    settings: TrainSettings
    origins: Mapping[str, str]
    """The source of each value that is not a default, by dotted name."""

    def as_yaml(self) -> str:
        """Return the settings as a configuration file, with a comment that describes each and names its source."""
        return "\n".join(_describe(self.settings, self.origins, "")) + "\n"


def resolve(config: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ResolvedSettings:
    """Return the settings of a run.

    `config` is a name from `CONFIGS`, a path, or a `file://` or `s3://` URI. `flags` maps dotted names to values.
    Values that are strings are parsed as YAML.

    Raises:
        UsageError: a value is invalid; the message names it and its source.
    """
    file = dict(_flatten(_read_config(config), config or ""))
    variables = dict(_read_environment(environ))
    sources = _drop_overridden(dict(_flatten(flags, "flag")), variables, file)
    origins = {name: each.origin for source in sources for name, each in source.items()}
    _warn_about_old_names(origins)
    try:
        return ResolvedSettings(_combine(sources), origins)
    except ValidationError as error:
        raise _to_usage_error(error, origins) from None


def list_env_vars() -> Iterator[tuple[str, str]]:
    """Yield the dotted name of each setting that has an environment variable with a familiar name, and the variable."""
    for name, field in walk_fields():
        yield from ((name, each.name) for each in field.metadata if isinstance(each, EnvVar))


class _NamedValues(PydanticBaseSettingsSource):
    """Values by dotted name, as pydantic-settings takes them."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, _Value]) -> None:
        super().__init__(settings_cls)
        self.nested: dict[str, Any] = {}
        for name, each in values.items():
            _set_value(self.nested, name, each.value)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return self.nested.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self.nested


def _drop_overridden(*sources: dict[str, _Value]) -> list[dict[str, _Value]]:
    """Return sources, highest first, without the values that a higher one replaces.

    pydantic-settings would merge values that are mappings, e.g. two choices of `optimizer.algorithm`.
    """
    kept: list[dict[str, _Value]] = []
    given: set[str] = set()
    for source in sources:
        kept.append({name: each for name, each in source.items() if given.isdisjoint(_list_parents(name))})
        given |= source.keys()
    return kept


def _list_parents(name: str) -> Iterator[str]:
    """Yield the sections that a dotted name is in, and the name itself."""
    return accumulate(name.split("."), "{}.{}".format)


def _combine(sources: Sequence[Mapping[str, _Value]]) -> TrainSettings:
    """Return the settings of sources, highest first, as a model that does not read the environment itself.

    Raises:
        ValidationError: a value is invalid.
    """

    class GivenTrainSettings(BaseSettings, TrainSettings):  # type: ignore[misc] # their `model_config` have different types
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_NamedValues(settings_cls, source) for source in sources)

    given = GivenTrainSettings()
    return TrainSettings.model_construct(given.model_fields_set, **dict(given))


def _to_usage_error(error: ValidationError, origins: Mapping[str, str]) -> UsageError:
    places = [".".join(map(str, each["loc"])) for each in error.errors()]
    found = {
        origin
        for name, origin in origins.items()
        if any(f"{place}.".startswith(f"{name}.") or f"{name}.".startswith(f"{place}.") for place in places)
    }
    where = f" (from {', '.join(sorted(found))})" if found else ""
    are_unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
    return UsageError(
        "settings.unknown-name" if are_unknown else "settings.invalid-value",
        f"invalid settings: {describe_validation_error(error)}{where}",
    )


def _warn_about_old_names(names: Iterable[str]) -> None:
    if old := sorted(OLD_NAMES & set(names)):
        text = f"{', '.join(old)} will be removed; use optimizer.algorithm, e.g. {{dapo: {{epsilon: 0.1}}}}"
        err.print(f"[bold yellow]warning:[/] {printable(text)}", soft_wrap=True)


def _read_config(config: str | None) -> dict[str, Any]:
    """Read a configuration file. Return an empty mapping if no file is given."""
    if not config:
        return {}
    own = CONFIGS / f"{config}.yaml"
    try:
        if own.parent == CONFIGS and own.is_file():
            text = own.read_text(encoding="utf-8")
        else:
            with open_uri(config) as file:
                text = file.read().decode()
        read = load_yaml(text)
    except InvalidYamlError as error:
        raise UsageError("settings.config-not-yaml", f"{config} is not YAML: {error}") from None
    except (OSError, ValueError, NotFoundError) as error:
        names = ", ".join(sorted(each.stem for each in CONFIGS.glob("*.yaml")))
        raise UsageError(
            "settings.config-unreadable", f"cannot read {config}: {error}; give a YAML file, or one of {names}"
        ) from None
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise UsageError(
            "settings.config-not-a-mapping",
            f"{config} is not a mapping of settings; write them as `optimizer: {{learning_rate: 1e-5}}`",
        )
    return read


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Value]]:
    """Yield the values of environment variables; a later one replaces an earlier one for the same setting."""
    for name, variable in list_env_vars():
        if variable in environ and not is_service_link(variable, environ[variable]):
            yield from _flatten({name: environ[variable]}, f"${variable}")
    for variable in sorted(environ):  # a section comes before its settings
        if variable.upper().startswith(PREFIX):
            name = variable[len(PREFIX) :].lower().replace("__", ".")
            yield from _flatten({name: environ[variable]}, f"${variable}")


def _flatten(read: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[tuple[str, _Value]]:
    """Yield the values of a mapping by dotted name. Its keys may be dotted names, or sections with mappings.

    Raises:
        UsageError: a text is not YAML.
    """
    known = {name for name, _ in walk_fields()}
    for key, given in read.items():
        name = f"{prefix}{key}"
        value = _parse_value(given, name, origin) if isinstance(given, str) else given
        if isinstance(value, dict) and name not in known:
            yield from _flatten(value, origin, f"{name}.")
        else:
            yield name, _Value(value, origin)


def _parse_value(text: str, name: str, origin: str) -> Any:
    """Parse a value given as text; empty text and `null` mean None."""
    is_plain = name in _PLAIN_TEXT and text not in ("", "null")
    try:
        return check_text(text, name) if is_plain else load_yaml(text)
    except (InvalidTextError, InvalidYamlError):
        raise UsageError(
            "settings.value-not-yaml", f"{name} must be a value in YAML, got {text!r} (from {origin})"
        ) from None


def _set_value(values: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[last] = value


def _describe(section: BaseModel, origins: Mapping[str, str], prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, SECTIONS):
            yield f"{indent}{name}:"
            yield from _describe(value, origins, f"{prefix}{name}.")
            continue
        plain = section.model_dump(mode="json", include={name})[name]
        written = yaml.safe_dump(plain, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
        origin = origins.get(f"{prefix}{name}", "default")
        notes = [origin, *(each.name for each in field.metadata if isinstance(each, EnvVar)), field.description]
        yield f"{indent}{name}: {written}  # {'; '.join(filter(None, notes))}"
