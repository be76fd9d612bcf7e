"""Find published adapters, and merge what they need into the values of a chart."""

import json
from dataclasses import dataclass
from typing import Any

from gumshoe.artifacts.adapter_layout import LORA_RANKS, round_up_lora_rank
from gumshoe.artifacts.manifest import Manifest
from gumshoe.artifacts.model_card import BASE_RECORD, is_hub_model
from gumshoe.artifacts.storage import NotFoundError, open_uri
from gumshoe.artifacts.store import CorruptArtifactError, Store
from gumshoe.cluster.serving_state import Values, get_section, merge_values
from gumshoe.errors import UsageError

KIND = "adapters"
_CONFIG = "adapter_config.json"  # PEFT's
_METADATA = "metadata.json"  # with the settings of its training
_LIMITS = ("max_turns", "max_tokens")
_TRAINED_WITH = {"environment": "environment.json", "chat settings": "chat_settings.json"}
"""Files of an adapter with what it was trained with, which the agent server takes from them."""


@dataclass(frozen=True, slots=True)
class PublishedAdapter:
    """Describe an adapter in a store."""

    version: str
    uri: str
    """Folder of its files."""
    base_model: str
    """Base model: a name on the Hugging Face Hub, with the commit or the revision that was trained if it is known, e.g.
    `acme/model:COMMIT`; or a directory on the training machine."""
    is_on_hub: bool
    """The base model is on the Hugging Face Hub."""
    rank: int
    store: str
    max_context: int | None = None
    """Maximum number of tokens per episode of its training, if it is recorded."""


def find_adapter(store: str, version: str) -> PublishedAdapter:
    """Find a published adapter and read its base model and rank from its files.

    Raises:
        NotFoundError: if the store has no adapter of that version.
        UsageError: if the artifact is not an adapter, or the store cannot be read from a cluster.
        CorruptArtifactError: if its configuration is damaged.
    """
    artifacts = Store(store)
    if not artifacts.uri.startswith("s3://"):
        raise UsageError(
            "deploy.store-not-in-s3",
            f"a cluster cannot read from {artifacts.uri}; publish the adapter to a store in S3, s3://BUCKET/PREFIX",
        )
    manifest = artifacts.manifest(f"{KIND}/{version}")
    config = _read_json(artifacts, manifest, _CONFIG)
    if config is None:
        raise UsageError(
            "deploy.not-an-adapter",
            f"{manifest.reference} is not an adapter: it has no {_CONFIG}; name another version",
        )
    ranks = [config.get("r", 0), *(config.get("rank_pattern") or {}).values()]
    named, trained = config.get("base_model_name_or_path"), str(manifest.settings.get("base_model") or "")
    base = trained if not named or trained.startswith(f"{named}:") else str(named)  # the latter has no revision
    known = _read_json(artifacts, manifest, BASE_RECORD) or {}
    is_on_hub = is_hub_model(base, known)
    repository, _ = _split_revision(base)
    if known.get("revision") and _split_revision(str(known.get("name")))[0] == repository:
        base = f"{repository}:{known['revision']}"
    uri = f"{artifacts.uri}/{manifest.reference}/{manifest.data}/"
    trained_with = _read_json(artifacts, manifest, _METADATA) or {}
    context = get_section(get_section(trained_with, "settings"), "model").get("max_context")
    return PublishedAdapter(manifest.version, uri, base, is_on_hub, max(map(int, ranks)), artifacts.uri, context)


def _read_json(store: Store, manifest: Manifest, name: str) -> dict[str, Any] | None:
    """Return the content of a file of an adapter, or None if the adapter does not have the file.

    Raises:
        CorruptArtifactError: if it is damaged.
    """
    if all(each.path != name for each in manifest.files):
        return None
    try:
        with store.storage.open(f"{manifest.reference}/{manifest.data}/{name}") as file:
            found = json.loads(file.read())
    except (NotFoundError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise CorruptArtifactError(
            "deploy.adapter-config-corrupt",
            f"{name} of {store.uri}/{manifest.reference} is missing or not valid JSON; publish the adapter again",
        )
    return found


def find_training_differences(served: str, canary: str) -> list[str]:
    """Return in which settings the trainings of two adapters differ that one agent server can have only once.

    Both are URIs of the adapters' files. An adapter without a record is not compared. A setting that is not recorded
    did not exist then, and was off.

    Raises:
        CorruptArtifactError: if a record is not valid JSON.
        StorageError, UnavailableError: if a record cannot be read.
    """
    if not (served.startswith("s3://") and canary.startswith("s3://")):
        return []  # e.g. a volume, which only the pods can read
    found = []
    for what, name in _TRAINED_WITH.items():
        one, other = (_read_record(f"{uri.rstrip('/')}/{name}") for uri in (served, canary))
        if one is not None and other is not None:
            names = sorted(one.keys() | other.keys())
            found += [f"{what}: {each}" for each in names if (one.get(each) or None) != (other.get(each) or None)]
    return found


def find_limit_differences(served: str, canary: str) -> list[str]:
    """Return limits in which the trainings of two adapters differ, e.g. `max_turns 6 and 8`.

    Both are URIs of the adapters' files. Limits that are not recorded are left out.

    Raises:
        CorruptArtifactError: if a record is not valid JSON.
        StorageError, UnavailableError: if a record cannot be read.
    """
    if not (served.startswith("s3://") and canary.startswith("s3://")):
        return []
    records = [_read_record(f"{uri.rstrip('/')}/{_METADATA}") or {} for uri in (served, canary)]
    one, other = (get_section(get_section(each, "settings"), "rollouts") for each in records)
    names = [name for name in _LIMITS if name in one and name in other and one[name] != other[name]]
    return [f"{name} {one[name]} and {other[name]}" for name in names]


def _read_record(uri: str) -> dict[str, Any] | None:
    """Return the settings in a record, those of `arguments` by their own names, or None if it does not exist."""
    try:
        with open_uri(uri) as file:
            found = json.loads(file.read())
        arguments = found.pop("arguments", {})
        return {**found, **arguments}
    except NotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise CorruptArtifactError(
            "deploy.adapter-config-corrupt", f"{uri} is not valid JSON; publish the adapter again"
        ) from None


def merge_adapter_values(adapter: PublishedAdapter, before: Values, given: Values, known: Values) -> Values:
    """Merge chart values to serve an adapter: `before`, overridden by `given`, plus what the adapter needs.

    `known` are the chart's defaults.

    Raises:
        UsageError: if the location of the base model is unknown, or base model or store differ from the deployment's.
    """
    values = merge_values(before, given)
    model, own, agent = (values.setdefault(part, {}) for part in ("model", "adapter", "agent"))
    uri, is_given = str(model.get("uri") or ""), bool(get_section(given, "model").get("uri"))
    if not uri and not adapter.is_on_hub:
        base = adapter.base_model or "its configuration does not name one"
        raise UsageError(
            "deploy.base-model-not-located",
            f"a cluster cannot find the base model of {adapter.version}: {base}; name its place with --set "
            "model.uri=s3://… or hf://…",
        )
    if not uri:
        model["uri"] = f"hf://{adapter.base_model}"
    elif adapter.is_on_hub and not is_given and uri.startswith("hf://") and not _is_same_base(uri, adapter.base_model):
        raise UsageError(
            "deploy.other-base-model",
            f"{adapter.version} is for {adapter.base_model}, but the deployment serves {uri}; to replace the base "
            f"model, or if both are the same, add --set model.uri=… (hf://{adapter.base_model})",
        )
    if agent.setdefault("store", adapter.store) != adapter.store and not agent.get("tokenizer"):
        raise UsageError(
            "deploy.other-store",
            f"{adapter.version} is in {adapter.store}, but the agent server reads from {agent['store']}; publish it "
            "there, or set agent.store if the index is in the adapter's store too",
        )
    rank = round_up_lora_rank(adapter.rank)
    if rank > LORA_RANKS[-1]:
        raise UsageError(
            "deploy.rank-too-high",
            f"{adapter.version} has LoRA rank {adapter.rank}, but vLLM supports at most {LORA_RANKS[-1]}; train it "
            "with a lower rank",
        )
    if rank > own.get("maxRank", known["adapter"]["maxRank"]):
        own["maxRank"] = rank
    context = adapter.max_context
    if context and "maxContext" not in get_section(given, "model"):
        served = model.get("maxContext", known["model"]["maxContext"])
        if not before or context > served:  # a smaller one would restart vLLM, below adapters that it has loaded
            model["maxContext"] = context
    return values


def _is_same_base(uri: str, base_model: str) -> bool:
    """Return True unless a URI of the hub names another model or another revision than an adapter was trained on.

    If one of both has no revision, they cannot be compared.
    """
    (served, revision), (trained, commit) = _split_revision(uri.removeprefix("hf://")), _split_revision(base_model)
    return served == trained and (not revision or not commit or revision == commit)


def _split_revision(base_model: str) -> tuple[str, str]:
    """Return the name of a model on the hub, and its revision or an empty string."""
    name, _, revision = base_model.partition(":")
    return name, revision
