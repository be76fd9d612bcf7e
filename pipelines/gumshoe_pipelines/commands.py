"""`gumshoe pipeline`: compile, run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gumshoe.terminal import err, out, plain

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The whole path, as a graph: compile it, run it here, submit it."
)

Name = Annotated[str, typer.Argument(metavar="PIPELINE", help="train-agent")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", "-p", metavar="NAME=VALUE", help="A parameter, in YAML, such as seed=2; repeatable."),
]
ParameterFile = Annotated[Path | None, typer.Option("--params", metavar="FILE", help="Parameters by name, in YAML.")]


@app.command("compile")
def compile_(
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the YAML goes.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="All of them unless named.")
    ] = None,
) -> None:
    """Compile pipelines to what Kubeflow takes."""
    from gumshoe.artifacts.storage import explained, writable_directory
    from gumshoe_pipelines.graphs import PIPELINES, compiled

    place = writable_directory(str(directory))
    for name in names or PIPELINES:
        path = place / f"{name}.yaml"
        with explained(path):
            path.write_text(compiled(name).text, encoding="utf-8")
        out.print(escape(plain(path)), soft_wrap=True)


@app.command()
def run(
    name: Name,
    parameters: Parameters = None,
    params: ParameterFile = None,
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="What the run leaves goes here.")] = Path(
        "outputs/pipeline"
    ),
    caching: Annotated[bool, typer.Option("--cache/--no-cache", help="Take what was made before.")] = True,
) -> None:
    """Run a pipeline on this machine, step after step, as Kubeflow would.

    Where they are not set, artifacts go to DIR/store, and the run has an id of its own. With the id of a run that
    stopped, it takes up where that stopped.
    """
    from gumshoe.artifacts.manifest import code_hash
    from gumshoe_pipelines.graphs import compiled, read_values
    from gumshoe_pipelines.here import run_here

    graph = compiled(name)
    place = directory.absolute()
    given = read_values(parameters or [], params)
    own = {"store": str(place / "store"), "run": f"local-{datetime.now(UTC):%Y%m%d-%H%M%S}", "code": code_hash()}
    arguments = graph.checked({**{key: value for key, value in own.items() if key in graph.parameters}, **given})
    err.print(f"Run {escape(plain(arguments.get('run', name)))}, with all that it leaves in {escape(plain(place))}")
    run_here(graph, arguments, place, caching=caching)
