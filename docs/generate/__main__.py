"""Generate the pages in docs/reference from the code.

Run `python -m docs.generate` in the root of the repository. `--check` only checks that the pages are up to date.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generate.chart_values import render_chart_values
from docs.generate.command_line import render_command_line
from docs.generate.environment_variables import render_environment_variables
from docs.generate.exit_codes import render_exit_codes
from docs.generate.files import render_files
from docs.generate.http_api import render_http_api, render_mcp
from docs.generate.metrics import render_metrics
from docs.generate.pipelines import render_pipelines
from docs.generate.python_client import render_python_client
from docs.generate.settings import SCHEMAS, format_schema, render_serve_settings, render_train_settings

from gumshoe.error_codes import render_page as render_error_codes

REFERENCE = Path(__file__).parents[1] / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": render_command_line,
    "train-settings.md": render_train_settings,
    "serve-settings.md": render_serve_settings,
    "pipelines.md": render_pipelines,
    "http-api.md": render_http_api,
    "mcp.md": render_mcp,
    "python-client.md": render_python_client,
    "chart-values.md": render_chart_values,
    "errors.md": render_error_codes,
    "exit-codes.md": render_exit_codes,
    "metrics.md": render_metrics,
    "files.md": render_files,
    "environment-variables.md": render_environment_variables,
}


def generate_files() -> dict[Path, str]:
    """Return the content of the generated files, by path."""
    pages = {REFERENCE / name: render() for name, render in PAGES.items()}
    schemas = {REFERENCE / "schemas" / f"{name}.schema.json": format_schema(name) for name in SCHEMAS}
    return {**pages, **schemas}


def find_outdated(files: dict[Path, str]) -> list[Path]:
    """Return the files whose content on disk is another, or that do not exist."""
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str] | None = None) -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description="Generate the reference pages.")
    parser.add_argument("--check", action="store_true", help="only check, and exit with 1 if a file is outdated")
    options = parser.parse_args(arguments)
    files = generate_files()
    outdated = find_outdated(files)
    if options.check and outdated:
        sys.exit(f"outdated: {', '.join(map(str, outdated))}; run make docs")
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")


if __name__ == "__main__":
    main()
