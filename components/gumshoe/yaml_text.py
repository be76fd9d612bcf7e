"""Parse YAML from outside, and refuse what would fail later, where nobody can tell its source any more.

PyYAML accepts text that cannot be stored (see `text_checks`), keeps one of two equal keys, and follows aliases and
merges (`<<`) to any size. For text that is not YAML, it raises errors of many classes.
"""

from typing import Any

import yaml

from gumshoe.json_text import MAX_DEPTH
from gumshoe.text_checks import find_bad_texts

_MAX_NODES = 100_000
"""Maximum number of values in a document, with each alias counted as what it stands for."""
_MERGE = "tag:yaml.org,2002:merge"
# Errors that PyYAML is known to raise for values that contradict their tags, e.g. `!!int ""` or 2024-13-45.
_ERRORS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class InvalidYamlError(ValueError):
    """Report text that is not YAML, or that contains values which cannot be stored. The message says why, on a line."""


def load_yaml(text: str | bytes, *, only_text: bool = False) -> Any:
    """Return the value of a YAML document; None if it is empty. Bytes are UTF-8 or UTF-16.

    With `only_text`, values that are not lists or mappings stay text, so that none becomes a date or a number.

    Raises:
        InvalidYamlError: if it is not YAML, has a key twice in a mapping, is nested more than `MAX_DEPTH` deep, is too
            large with its aliases and merges, or contains NUL or a lone surrogate.
    """
    try:
        value = yaml.load(text, _TextLoader if only_text else _Loader)  # noqa: S506 - both are safe
    except _ERRORS as error:
        raise InvalidYamlError(_explain(error)) from None
    _measure(value, {}, 0)
    for path, fault in find_bad_texts(value):
        raise InvalidYamlError(f"{path}: {fault}" if path else fault)
    return value


def _explain(error: Exception) -> str:
    if isinstance(error, yaml.YAMLError | ValueError):
        return " ".join(str(error).split())
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value does not have the form of its type"


def _measure(value: Any, known: dict[int, int], depth: int) -> int:
    """Return the number of values in a value of YAML. `known` has the numbers of the lists and mappings seen so far.

    Raises:
        InvalidYamlError: if there are too many, at most on a path of `MAX_DEPTH`. A value that contains itself has such
            a path.
    """
    if not isinstance(value, list | dict | set | tuple):
        return 1
    if id(value) in known:
        return known[id(value)]
    if depth > MAX_DEPTH:
        raise InvalidYamlError(f"it is nested more than {MAX_DEPTH} levels deep")
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    count = 1 + sum(_measure(each, known, depth + 1) for each in inner)
    if count > _MAX_NODES:
        raise InvalidYamlError(f"it has more than {_MAX_NODES:,} values")
    known[id(value)] = count
    return count


class _LimitedDepth(yaml.scanner.Scanner):  # type: ignore[misc] # PyYAML has no types
    """Refuse brackets that are nested too deeply. For each token, PyYAML looks at all brackets that are open."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.scanner.ScannerError(None, None, f"it is nested more than {MAX_DEPTH} levels deep", mark)
        super().fetch_flow_collection_start(token)


class PlainTextLoader(_LimitedDepth, yaml.BaseLoader):  # type: ignore[misc]
    """Read all values as text. Of two equal keys, the last one counts."""


class _UniqueKeys(yaml.composer.Composer):  # type: ignore[misc]
    """Refuse mappings with a key twice, of which PyYAML keeps the last. Merged mappings may have equal keys."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key = (key_node.tag, key_node.value)
            if key in seen:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key_node.value!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return node


class _LimitedMerges(yaml.constructor.SafeConstructor):  # type: ignore[misc]
    """Refuse a document whose merges (`<<`) copy too many keys, before they are copied."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            for each in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if isinstance(each, yaml.MappingNode):
                    self.flatten_mapping(each)
                    self._merged += len(each.value)
                if self._merged > _MAX_NODES:
                    problem = f"its merges copy more than {_MAX_NODES:,} keys"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        super().flatten_mapping(node)


class _Loader(_LimitedDepth, _UniqueKeys, _LimitedMerges, yaml.SafeLoader):  # type: ignore[misc]
    pass


class _TextLoader(_UniqueKeys, PlainTextLoader):
    pass
