"""The page's files. They hold no data and no secret, so whoever reaches the port may read them."""

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOLDER = "page"


def page_routes() -> Sequence[Route]:
    """`/` and `/assets/…`: each file of the folder, read once."""
    routes = []
    for file in sorted(files(__package__).joinpath(FOLDER).iterdir(), key=lambda file: file.name):
        suffix = file.name[file.name.rfind(".") :]
        if suffix in KINDS:
            path = "/" if file.name == "index.html" else f"/assets/{file.name}"
            routes.append(Route(path, _serving(file.read_bytes(), KINDS[suffix])))
    return routes


def _serving(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return serve
