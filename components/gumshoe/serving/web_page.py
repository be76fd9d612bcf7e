"""Serve the page to ask questions from, and the documentation of the API at `/docs`. Nothing comes from other hosts."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

_OWN, _SWAGGER_UI = files("gumshoe.serving") / "page", files("fastapi_offline") / "static"
_FILES = {
    "/": (_OWN / "page.html", "text/html"),
    "/page.js": (_OWN / "page.js", "text/javascript"),
    "/text.js": (_OWN / "text.js", "text/javascript"),
    "/page.css": (_OWN / "page.css", "text/css"),
    "/docs": (_OWN / "docs.html", "text/html"),
    "/docs/docs.js": (_OWN / "docs.js", "text/javascript"),
    "/docs/swagger-ui.js": (_SWAGGER_UI / "swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": (_SWAGGER_UI / "swagger-ui.css", "text/css"),
}
PAGE_PATHS = tuple(_FILES)
"""Paths of these files, which need no credentials."""
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def add_page(app: FastAPI) -> None:
    """Add the routes of the page's files."""
    for path, (file, kind) in _FILES.items():
        app.add_route(path, _serve_file(file.read_bytes(), kind), include_in_schema=False)
    app.add_route("/docs/", _redirect_to_docs, include_in_schema=False)


async def _redirect_to_docs(request: Request) -> Response:  # noqa: ARG001
    return RedirectResponse("../docs")  # relative, so that it also holds behind a proxy


def _serve_file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY, "X-Frame-Options": "DENY"}

    async def page(request: Request) -> Response:  # noqa: ARG001
        return Response(content, headers=headers, media_type=kind)

    return page
