"""The `gumshoe` command. A package is loaded only when its command is used.

Exit status: 0 done, 1 failed, 2 bad usage, 3 the answer is no, 75 try again.
"""

import atexit
import gc
import sys
from importlib import import_module
from typing import Any

import typer
from dotenv import find_dotenv, load_dotenv
from typer._click import ClickException  # which typer brings with it, and raises for bad usage
from typer.core import TyperGroup
from typer.rich_utils import rich_abort_error, rich_format_error

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.terminal import err, has_printed_json, print_json, printable, reset_printed_json

COMMANDS = {
    "artifacts": ("gumshoe.artifacts.commands", "Publish, fetch, list, verify and prune artifacts."),
    "mail": ("gumshoe.mail.commands", "Index mail, search it and read it, one inbox at a time."),
    "documents": ("gumshoe.documents.commands", "Scrape documents, index them, search them by meaning and by words."),
    "scenarios": ("gumshoe.scenarios.commands", "Load, split and check questions with known answers."),
    "synthesize": ("gumshoe.synthesis.commands", "Invent data to try, test and train with."),
    "train": ("gumshoe.training.commands.train:train", "Train an adapter with GRPO on an agent's real episodes."),
    "warm-start": (
        "gumshoe.training.commands.train:warm_start",
        "Train an adapter on episodes that are right, to begin at.",
    ),
    "adapter": ("gumshoe.training.commands.adapter", "Make adapters, look at them, and merge them into base models."),
    "plan": ("gumshoe.training.commands.plan:plan", "How much memory training takes, what fits, and what to change."),
    "tiny": ("gumshoe.tiny.commands", "Make the tiny policy, which stands where a large one does."),
    "judge": ("gumshoe.rewards.commands", "Score trajectories, and measure a judge."),
    "rollout": ("gumshoe.rollouts.commands:rollout", "Run episodes of scenarios and write their trajectories."),
    "evaluate": ("gumshoe.evaluation.commands:evaluate", "Measure policies, and see every episode in a report."),
    "compare": ("gumshoe.evaluation.commands:compare", "Compare two evaluated policies, question by question."),
    "gate": ("gumshoe.evaluation.commands:gate", "Say whether a candidate is really better than a baseline."),
    "pipeline": ("gumshoe_pipelines.commands", "The whole path, as a graph: compile it, run it here, submit it."),
    "serve": ("gumshoe.serving.commands:serve", "Serve an agent over HTTP and MCP, with a page to try it."),
    "serve-key": ("gumshoe.serving.commands:serve_key", "Make a key for the agent server."),
    "doctor": ("gumshoe.cluster.doctor_commands:doctor", "Check a cluster and a store before the first run."),
    "deploy": ("gumshoe.cluster.commands:deploy", "Put a published adapter into service on a cluster."),
    "promote": ("gumshoe.cluster.commands:promote", "Let a canary take all episodes."),
    "rollback": ("gumshoe.cluster.commands:rollback", "End a canary, or go back to the adapter before."),
    "deployments": ("gumshoe.cluster.commands:deployments", "What runs on a cluster: list, show, logs, remove."),
    "adapter-loader": (
        "gumshoe.cluster.adapter_loader_command:app",
        "Have a vLLM server serve a run's newest adapter.",
    ),
    "ask": ("gumshoe.serving.commands:ask", "Ask an agent one question about a mailbox."),
    "explain": ("gumshoe.commands:explain", "Explain an error code: its cause and its remedy."),
    "trajectories": ("gumshoe.rollouts.commands:trajectories", "Look at what episodes left."),
}


class _LazyGroup(TyperGroup):
    """Lists commands by name and help alone, and imports one when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module, _, app_name = COMMANDS[name][0].partition(":")
            command = typer.main.get_command(getattr(import_module(module), app_name or "app"))
        return name, command, rest


app = typer.Typer(
    name="gumshoe",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold mail or keys
)
for _name, (_module, _help) in COMMANDS.items():
    app.add_typer(typer.Typer(help=_help), name=_name)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gumshoe {version('gumshoe-agents')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Train search agents with reinforcement learning and put them into service.

    A `.env` file in this directory or one above it is read; what is set already wins.
    """


def _read_dotenv() -> None:
    path = find_dotenv(usecwd=True)
    try:
        load_dotenv(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "cli.dotenv-unreadable", f"cannot read {path}: {error}; write it in UTF-8, one NAME=VALUE per line"
        ) from None


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    atexit.register(gc.freeze)  # to search all of torch for cycles as the process ends takes a second
    arguments = sys.argv[1:] if argv is None else argv
    reset_printed_json()
    try:
        _read_dotenv()
        status = app(arguments, standalone_mode=False)
    except GumshoeError as error:
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)
        status = _fail(error, arguments)
    except ClickException as error:
        status = _explain_usage(error, arguments)
    except typer.Abort:
        rich_abort_error()
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


def _explain_usage(error: ClickException, arguments: list[str]) -> int:
    """Print what is wrong with the arguments, or nothing if help was printed for want of any."""
    rich_format_error(error)
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
