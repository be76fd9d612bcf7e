"""Command line of Gumshoe: `gumshoe`. A package is imported only when its command runs.

Exit status: 0 success, 1 failure, 2 usage error, 3 negative result (e.g. a gate that fails), 75 temporary failure, 129,
130 or 143 if a signal interrupted the command.
"""

import atexit
import gc
import math
import sys
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from dotenv import load_dotenv
from typer.core import TyperGroup

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.help_pages import print_help
from gumshoe.redaction import print_traceback, redact
from gumshoe.signals import exit_on_signals
from gumshoe.terminal import err, has_printed_json, print_json, printable, reset_printed_json

_INTERRUPTED = 130
_GROUPS = {
    "Data": {
        "mail": ("gumshoe.mail.commands", "Index, search and read mail, one inbox at a time."),
        "documents": ("gumshoe.documents.commands", "Scrape, index and search documents."),
        "scenarios": ("gumshoe.scenarios.commands", "Write, split and check questions with known answers."),
        "synthesize": ("gumshoe.synthesis.commands", "Generate synthetic mail, documents and questions."),
    },
    "Agent": {
        "ask": ("gumshoe.serving.commands:ask", "Ask an agent one question about mail or documents."),
        "rollout": ("gumshoe.rollouts.commands:rollout", "Run episodes of scenarios and write their trajectories."),
        "trajectories": ("gumshoe.rollouts.commands:trajectories", "Show recorded trajectories."),
        "tiny": ("gumshoe.tiny.commands", "Build the tiny policy, a small model for tests and demos."),
    },
    "Train": {
        "train": ("gumshoe.training.commands.train:train", "Train an adapter with GRPO on rollouts of the agent."),
        "warm-start": (
            "gumshoe.training.commands.train:warm_start",
            "Train a first adapter on correct episodes (supervised).",
        ),
        "watch": ("gumshoe.training.commands.watch:watch", "Watch a training run: curves, episodes and time left."),
        "verify": ("gumshoe.training.commands.verify:verify", "Verify the proof of a run from its files."),
        "plan": ("gumshoe.training.commands.plan:plan", "Estimate the memory and time of a training run."),
        "adapter": ("gumshoe.training.commands.adapter", "Create, inspect and merge LoRA adapters."),
        "pipeline": ("gumshoe_pipelines.commands", "Compile, run and submit the pipelines."),
    },
    "Evaluate": {
        "evaluate": ("gumshoe.evaluation.commands:evaluate", "Evaluate policies and write a report of every episode."),
        "compare": ("gumshoe.evaluation.commands:compare", "Compare two evaluated policies, question by question."),
        "gate": ("gumshoe.evaluation.commands:gate", "Decide if a candidate is better than a baseline."),
        "judge": ("gumshoe.rewards.commands", "Score trajectories and calibrate judges."),
    },
    "Serve": {
        "serve": ("gumshoe.serving.commands:serve", "Serve an agent over HTTP and MCP, with a web page."),
        "serve-key": ("gumshoe.serving.commands:serve_key", "Create an API key for the agent server."),
    },
    "Cluster": {
        "doctor": ("gumshoe.cluster.doctor_commands:doctor", "Check a cluster and a store before the first run."),
        "deploy": ("gumshoe.cluster.commands:deploy", "Deploy a published adapter to a cluster."),
        "promote": ("gumshoe.cluster.promote_command:promote", "Promote a canary to all traffic."),
        "rollback": ("gumshoe.cluster.commands:rollback", "End a canary, or return to the previous adapter."),
        "deployments": (
            "gumshoe.cluster.commands:deployments",
            "List, show and remove deployments, and print their logs.",
        ),
        "adapter-loader": (
            "gumshoe.cluster.adapter_loader_command:app",
            "Load the newest adapter of a run into a vLLM server.",
        ),
        "model-fetch": (
            "gumshoe.cluster.model_fetch_command:app",
            "Fetch and verify models and adapters for vLLM.",
        ),
    },
    "Other": {
        "artifacts": ("gumshoe.artifacts.commands", "Publish, fetch, list, verify and delete artifacts."),
        "erase": (
            "gumshoe.erasure.erase_command",
            "Erase an inbox, a message or a document from indexes, files and a store.",
        ),
        "explain": ("gumshoe.commands:explain", "Explain an error code: its cause and its remedy."),
    },
}
"""Place and purpose of each command, by heading."""
COMMANDS = {name: found for commands in _GROUPS.values() for name, found in commands.items()}


class _LazyGroup(TyperGroup):
    """List commands without importing them, and import a command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module, _, app_name = COMMANDS[name][0].partition(":")
            command = typer.main.get_command(getattr(import_module(module), app_name or "app"))
            _prepare(command)
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        print_help(self, ctx)


def _prepare(command: Any) -> None:
    """Let a command and its subcommands print help as `gumshoe.help_pages` does, and refuse values that are mistakes.

    These are `inf`, `nan`, and the name of the next option, which an option without its value would take.
    """
    parse = command.parse_args

    def parse_checked(context: Any, arguments: list[str]) -> Any:
        _check_values(command, context, arguments)
        rest = parse(context, arguments)
        for each in command.params:
            value = context.params.get(each.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number", ctx=context, param=each)
        return rest

    command.parse_args = parse_checked
    command.format_help = lambda context, _: print_help(command, context)
    for each in getattr(command, "commands", {}).values():
        _prepare(each)


def _check_values(command: Any, context: Any, arguments: list[str]) -> None:
    """Check that no option of a command is followed by another one instead of its value.

    Raises:
        typer.BadParameter: one is.
    """
    options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts) if name[0] == "-"}
    names = {*options, *context.help_option_names}
    for name, following in pairwise(takewhile(lambda each: each != "--", arguments)):
        option = options.get(name)
        if option and not option.is_flag and following in names:
            message = f"it requires a value, and the next word is the option {following}"
            raise typer.BadParameter(message, ctx=context, param=option)


app = typer.Typer(
    name="gumshoe",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold mail or keys
)
for _group, _commands in _GROUPS.items():
    for _name, (_module, _help) in _commands.items():
        app.add_typer(typer.Typer(help=_help), name=_name, rich_help_panel=_group)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"gumshoe {version('gumshoe-agents')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001 - its callback uses it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    ca_bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the CA certificates to trust, in PEM (SSL_CERT_FILE)."),
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(metavar="URL", help="Proxy for all hosts that are not in NO_PROXY (HTTPS_PROXY).")
    ] = None,
) -> None:
    """Train search agents with reinforcement learning and put them into service.

    Reads environment variables from the file `.env` in this directory. Variables that are set already win.
    """
    from gumshoe.network import share_ca_bundle, share_proxy

    share_ca_bundle(ca_bundle)
    if proxy is not None:
        share_proxy(proxy)


def _read_dotenv() -> None:
    path = Path.cwd() / ".env"  # not in a parent such as /tmp, where others could write it
    try:
        if path.is_file():
            from gumshoe.trusted_files import check_trusted

            check_trusted(path, "the file .env")
            load_dotenv(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "cli.dotenv-unreadable", f"cannot read {path}: {error}; write it in UTF-8, one NAME=VALUE per line"
        ) from None


def _check_encoding(arguments: list[str]) -> None:
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:  # Python keeps such bytes as lone surrogates, which nothing else accepts
            raise UsageError(
                "cli.undecodable-argument",
                f"argument {number} is not valid UTF-8: {argument!r}; write it in UTF-8, or rename the file",
            ) from None


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    atexit.register(gc.freeze)  # a garbage collection of all of torch at exit takes a second
    arguments = sys.argv[1:] if argv is None else argv
    reset_printed_json()
    try:
        _read_dotenv()
        _check_encoding(arguments)
        with exit_on_signals():
            status = app(arguments, prog_name="gumshoe", standalone_mode=False)
        if status == _INTERRUPTED:
            err.print("[red]Interrupted.[/]")
    except GumshoeError as error:
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)
        status = _fail(error, arguments)
    except typer.TyperException as error:
        status = _print_usage_error(error, arguments)
    except typer.Abort:
        err.print("[red]Aborted.[/]")
        status = 1
    except Exception:
        sys.excepthook = print_traceback  # not that of typer, which shows values as they are
        raise
    sys.exit(status if isinstance(status, int) else 0)


def _print_usage_error(error: typer.TyperException, arguments: list[str]) -> int:
    """Print what is wrong with the arguments, or nothing if help was printed because there were none."""
    from typer.rich_utils import rich_format_error  # takes a third of the time that the start takes

    cast(Any, error).message = redact(error.message)
    rich_format_error(cast(Any, error))
    if message := error.format_message():
        err.print("\\[cli.usage]")
        return _fail(UsageError("cli.usage", message), arguments)
    return error.exit_code


def _fail(error: GumshoeError, arguments: list[str]) -> int:
    """Print an error as JSON if that was asked for and no result was printed, and return its exit status."""
    if "--json" in arguments and not has_printed_json():
        print_json({"error": {"code": error.code, "message": error.message, "exit_status": error.exit_status}})
    return error.exit_status


if __name__ == "__main__":
    main()
