"""The gate: what every request passes first. It asks for the key, bounds the body, and counts answers."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fpmgm.serving.meter import Meter
from fpmgm.serving.refusals import RefusedError

ROUTES = ("/v1/completions", "/v1/models", "/health", "/metrics")
ONE_MODEL = "/v1/models/"
OPEN = ("/health",)
"""What can be asked for without a key."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """An ASGI application around another one."""

    app: ASGIApp
    meter: Meter
    api_key: str
    """Empty: none is needed."""
    most_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = route_of(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.meter.count_request(route, message["status"])
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if refusal is None:
            await self.app(scope, Bounded(receive, self.most_bytes), counted)
        else:
            await answer_of(refusal)(scope, receive, counted)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> RefusedError | None:
        if self.api_key and path not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_right = secrets.compare_digest(given.strip().encode("latin-1"), self.api_key.encode())
            if scheme.lower() != "bearer" or not is_right:
                message = "the API key is missing or wrong; send it as the header Authorization: Bearer KEY"
                return RefusedError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "")
        return too_large(self.most_bytes) if length.isdigit() and int(length) > self.most_bytes else None


class Bounded:
    """What reads a request's body, and refuses to read more than so many bytes."""

    def __init__(self, receive: Receive, most_bytes: int) -> None:
        self._receive, self._most, self._read = receive, most_bytes, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._most:
            raise HTTPException(413, too_large(self._most).message)
        return message


def too_large(most_bytes: int) -> RefusedError:
    """What to say of a body with too many bytes."""
    return RefusedError(413, f"the request has more than {most_bytes} bytes, the most that is allowed; send less")


def route_of(path: str) -> str:
    """The route of a path, as it is counted."""
    if path.startswith(ONE_MODEL):
        return "/v1/models/{id}"
    return path if path in ROUTES else "other"


def answer_of(refusal: RefusedError) -> JSONResponse:
    """The HTTP answer that a refusal is."""
    content: dict[str, Any] = refusal.body
    return JSONResponse(content, status_code=refusal.status, headers=refusal.headers)
