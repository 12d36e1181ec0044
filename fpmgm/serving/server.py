"""The server: a socket that is bound before anything is loaded, and an end that leaves nobody with half an answer."""

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.concurrency import run_in_threadpool

from fpmgm.serving.engine import Engine
from fpmgm.serving.gate import Gate

BACKLOG = 2048
SECONDS_TO_SEND = 10
"""After its grace, for answers that are on their way; then connections are closed."""


class Server(uvicorn.Server):
    """An HTTP server that ends its engine when it ends: what runs is finished, what waits is refused."""

    def __init__(self, app: Gate, engine: Engine) -> None:
        end = math.ceil(engine.pace.grace) + SECONDS_TO_SEND
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=end)
        super().__init__(config)
        self.engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        self.engine.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and end when those that run are answered or the grace is over."""
        ending = asyncio.ensure_future(run_in_threadpool(self.engine.stop, self.engine.pace.grace))
        await super().shutdown(sockets)
        await ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; told twice, give up what still runs."""
        if self.should_exit:
            self.engine.hurry()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the server, and are then over: the command ends as if all was well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; a ValueError if nothing can listen there. Port 0 is any free one."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was killed may be started again
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; "
            "give a free port with --port, and an address of this machine with --host"
        ) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Where clients on this machine find the server."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
