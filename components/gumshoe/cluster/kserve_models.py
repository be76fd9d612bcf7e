"""Convert KServe's resources to the typed models of the KServe SDK.

The SDK's own deserializer fails on every InferenceService: it looks for the models of Kubernetes and Knative in a
module that does not have them.
"""

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

from gumshoe.errors import UsageError
from gumshoe.installation import install_command

_CONTAINER = re.compile(r"(list|dict)[\[(](?:\w+, )?(.+)[\])]")  # e.g. list[V1Container], dict(str, str)


def read_model(model: str, data: Any, *, strict: bool = False) -> Any:
    """Convert JSON data to a model of the KServe SDK, or of the Kubernetes client within it.

    Values of types that have no model stay as they are. With `strict`, unknown and missing fields are errors; otherwise
    unknown fields are ignored, because a newer KServe may add some.

    >>> read_model("V1beta1InferenceService", found).status.conditions[0].type
    'PredictorReady'

    Raises:
        ValueError: with `strict`, if a field is unknown, missing or invalid; the message names it.
    """
    if container := _CONTAINER.fullmatch(model):
        if container[1] == "list" and isinstance(data, list):
            return [read_model(container[2], each, strict=strict) for each in data]
        if container[1] == "dict" and isinstance(data, dict):
            return {name: read_model(container[2], each, strict=strict) for name, each in data.items()}
        return data
    kind = _find_class(model)
    if kind is None or not isinstance(data, dict):
        return data
    names = kind.attribute_map
    unknown = sorted(data.keys() - set(names.values()))
    if strict and unknown:
        raise ValueError(f"{model} has no field {', '.join(unknown)}")
    fields = {
        attribute: read_model(kind.openapi_types[attribute], data[name], strict=strict)
        for attribute, name in names.items()
        if name in data
    }
    return kind(**fields, local_vars_configuration=SimpleNamespace(client_side_validation=strict))


@cache
def _find_class(name: str) -> Any:
    """Return the class of a model by name, or None if the SDK has no such class.

    Raises:
        UsageError: if the SDK is not installed.
    """
    try:
        import kserve  # takes seconds to import
    except ModuleNotFoundError as error:
        raise UsageError(
            "cluster.missing-dependency", f"deployments require {error.name}: {install_command(extra='deploy')}"
        ) from None
    from kubernetes import client

    for module in (kserve, kserve.models, client):
        found = getattr(module, name, None)
        if getattr(found, "openapi_types", None):
            return found
    return None
