"""Record the environment that a policy was trained in, beside its weights, and use the same one afterwards."""

import io
from pathlib import Path

from pydantic import ValidationError

from gumshoe.artifacts.storage import write_atomically
from gumshoe.corpus import CORPORA
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings, open_env
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error

ENVIRONMENT = "environment.json"
"""File in the directory of an adapter or a model with the environment that it was trained in."""


def write_environment(env_factory: EnvFactory, directory: Path) -> None:
    """Write name and settings of an environment into the directory of an adapter or a model."""
    settings = EnvironmentSettings(name=env_factory.name, arguments=dict(env_factory.arguments))
    write_atomically(directory / ENVIRONMENT, io.BytesIO(settings.model_dump_json(indent=2).encode() + b"\n"))


def has_environment(place: Path | str | None) -> bool:
    """Return True if a place is a directory with the record of an environment."""
    return place is not None and (Path(place).expanduser() / ENVIRONMENT).is_file()


def read_environment(place: Path | str) -> EnvironmentSettings:
    """Read the environment that an adapter or a model was trained in.

    Raises:
        UsageError: if its record cannot be read.
    """
    path = Path(place).expanduser() / ENVIRONMENT
    try:
        return EnvironmentSettings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        cause = describe_validation_error(error) if isinstance(error, ValidationError) else error
        raise UsageError(
            "environments.record-damaged", f"cannot read the environment of the training from {path}: {cause}"
        ) from None


def use_recorded(env_factory: EnvFactory, *places: Path | str | None) -> EnvFactory:
    """Return the environment that is recorded in the first of several places with a record, or else the given one.

    The places are directories of a policy's adapter, model and tokenizer; None and names on the hub have no record.
    Settings that the user has not given are those of the record.

    Raises:
        UsageError: if the user has named another environment or other settings, the index is for another environment,
            or the record cannot be read.
    """
    place = next(filter(has_environment, places), None)
    if place is None:
        return env_factory
    recorded, named = read_environment(place), env_factory.named
    if recorded.name != env_factory.name:
        if named is not None or recorded.name in CORPORA:
            what = f"the environment is {named.word}" if named else f"the index is for {env_factory.name}"
            raise _conflict(place, recorded, what)
        return open_env(env_factory.directory, None, recorded)
    found = env_factory.with_recorded(recorded.arguments)
    differing = {
        name: env_factory.arguments[name] for name in env_factory.given if not _equals(found, env_factory, name)
    }
    if differing:
        raise _conflict(place, recorded, f"the environment has {differing}")
    return found


def _equals(one: EnvFactory, other: EnvFactory, name: str) -> bool:
    return bool(one.arguments[name] == other.arguments[name])


def _conflict(place: Path | str, recorded: EnvironmentSettings, what: str) -> UsageError:
    return UsageError(
        "environments.other-environment",
        f"{place} was trained in the environment {recorded.word}, but {what}; leave the environment out, to use the "
        "one it was trained in",
    )
