"""`gumshoe serve` and `gumshoe serve-key`: the agent server, and keys for it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from gumshoe.errors import UsageError
from gumshoe.terminal import JsonFlag, err, out, plain, print_json

serve = typer.Typer(add_completion=False)
serve_key = typer.Typer(add_completion=False)


@serve.command()
def run(
    index: Annotated[
        str | None,
        typer.Option(
            "--index", envvar="GUMSHOE_INDEX", metavar="DIR|KIND/VERSION", help="A mail index, here or in the store."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", envvar="GUMSHOE_STORE", help="Where indexes and adapters were published.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="As for `gumshoe rollout`: vllm:URL#ADAPTER, chat:MODEL@URL, tiny, ..."),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|latest|DIR", help="In place of --policy: this adapter, with a vLLM server started for it."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|NAME", help="The adapter's base model, where it is not its own.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(metavar="DIR|NAME", help="The model's, for vllm:.")] = None,
    canary: Annotated[str | None, typer.Option(metavar="ADAPTER", help="Another adapter of the same servers.")] = None,
    canary_percent: Annotated[
        float | None, typer.Option(min=0, max=100, help="Of the episodes that it takes; 10 unless given.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may ask, as `gumshoe serve-key` wrote it.")
    ] = None,
    open_access: Annotated[
        bool, typer.Option("--open", help="Anybody may read every mailbox: for one's own machine alone.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen at; 127.0.0.1 unless given.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="8000 unless given; 0 is any that is free.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as YAML.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting, as limits.queue=10.")
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings, and serve nothing.")] = False,
) -> None:
    """Serve an agent that answers questions about mail: HTTP at /invoke, MCP at /mcp, and a page at /.

    Flags come before the environment (GUMSHOE_SERVE__LIMITS__QUEUE=10), and that before the file of settings. Who may
    ask is to be said: --keys, access.jwks_url, or --open.
    """
    try:
        from gumshoe.serving.server import serve as serve_until_asked_to_end
        from gumshoe.serving.settings import read_settings
        from gumshoe.serving.telemetry import log_as_json, told
    except ModuleNotFoundError as error:
        raise UsageError(f"an agent server needs {error.name}; install gumshoe[serve]") from None

    flags: dict[str, Any] = _nested(sets or [])
    given = {
        "index": index,
        "store": store,
        "host": host,
        "port": port,
        "model.policy": policy,
        "model.adapter": adapter,
        "model.base": model,
        "model.tokenizer": tokenizer,
        "model.canary": canary,
        "model.canary_percent": canary_percent,
        "access.keys": None if keys is None else str(keys),
        "access.open": open_access or None,
    }
    for setting, value in given.items():
        if value is not None:
            _put(flags, setting, value)
    settings = read_settings(config, flags)
    if print_config:
        out.print(escape(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)), end="", soft_wrap=True)
        return
    if sys.stderr.isatty():
        serve_until_asked_to_end(settings, lambda url: err.print(f"Serving at [bold]{escape(url)}[/]"))
    else:
        log_as_json()
        serve_until_asked_to_end(settings, lambda url: told(f"Serving at {url}"))


@serve_key.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys; it is made where there is none.")],
    name: Annotated[str, typer.Argument(help="Who is to have it, as logs say.")],
    inbox: Annotated[
        list[str], typer.Option("--inbox", metavar="ADDRESS", help="May be read; patterns such as *@example.com too.")
    ],
    json: JsonFlag = False,
) -> None:
    """Make a key for the agent server, and show it this once: the file holds its hash.

    A server that runs reads the file when it is started again. Who takes a key's lines out of it takes it back.
    """
    from gumshoe.serving.access import add_key

    key = add_key(file, name, inbox)
    if json:
        print_json({"name": name, "key": key, "inboxes": inbox})
        return
    out.print(key, soft_wrap=True)
    err.print(f"{escape(plain(name))} may read {escape(plain(', '.join(inbox)))}", soft_wrap=True)


def _nested(sets: list[str]) -> dict[str, Any]:
    """
    Raises:
        UsageError: one is no NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for each in sets:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is no setting; write NAME=VALUE, as limits.queue=10")
        try:
            _put(found, name.strip(), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise UsageError(f"{each!r} is no setting: {error}") from None
    return found


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    *groups, last = name.split(".")
    for group in groups:
        inner = found.setdefault(group, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{name} is no setting: {group} is one itself")
        found = inner
    found[last] = value
