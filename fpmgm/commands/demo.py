"""The command `demo`: a page in the browser that shows models at work."""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from fpmgm.demo.limits import Limits
from fpmgm.devices import OnDevice
from fpmgm.schema import require

GRACE = 2
"""Seconds that requests have when the page ends. An open page always has one."""


@dataclass(frozen=True, kw_only=True)
class DemoCommand(OnDevice):
    """Serve a page that shows models at work, step by step. Ctrl-C ends it."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Bundled models, model folders, or hub ids owner/name. Without one, all bundled models that write or draw."""
    host: str = "127.0.0.1"
    """The address to listen on. The default can be reached from this machine only; 0.0.0.0 is open to the network."""
    port: int = 7860
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.check_device()
        require("port", self.port, 1, 65535)


def run_demo(command: DemoCommand) -> None:
    """Load the models and serve the page until it is interrupted."""
    check_installed()
    check_free(command.host, command.port)
    from fastapi import FastAPI

    app = FastAPI(docs_url=None, redoc_url=None)
    names = add_page(app, command.models, command.limits, device=command.device, dtype=command.dtype)
    print(f"{', '.join(names)}: open {address(command.host, command.port)} in a browser; Ctrl-C ends it", flush=True)
    serve(app, command.host, command.port)


def add_page(
    app: object, models: Sequence[str], limits: Limits | None = None, *, device: str = "auto", dtype: str = "float32"
) -> tuple[str, ...]:
    """Add the page to a FastAPI application, behind the routes that it has; returns the names of the models."""
    quiet()
    from fpmgm.demo.offers import offered
    from fpmgm.demo.page import mount

    offers = offered(models, device=device, dtype=dtype)
    mount(app, offers, limits)
    return tuple(offers)


def check_installed() -> None:
    """A ValueError that says what to install if gradio is missing."""
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ValueError("the page needs gradio, which is not installed; run: pip install 'fpmgm[demo]'") from error


def check_free(host: str, port: int) -> None:
    """A ValueError if nothing can listen there, before anything is loaded."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}; "
                "give a free port with --port, and an address of this machine with --host"
            ) from error


def quiet() -> None:
    """Tell gradio to send nothing to anybody, pillow to open no huge picture, and the log to be silent of leavers."""
    from PIL import Image

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    Image.MAX_IMAGE_PIXELS = 1 << 23
    logging.getLogger("uvicorn.error").addFilter(is_no_leaver)


def is_no_leaver(record: logging.LogRecord) -> bool:
    """Whether a line of the log tells something else than that a visitor or the server left during a request."""
    kind = record.exc_info[0] if record.exc_info else None
    is_leaver = kind is not None and kind.__name__ in ("ClientDisconnect", "CancelledError")
    return not is_leaver and "graceful shutdown" not in record.getMessage()


def address(host: str, port: int) -> str:
    """Where a browser on this machine finds the page."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def serve(app: object, host: str, port: int) -> None:
    """Answer requests until it is interrupted."""
    import uvicorn

    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE)  # type: ignore[arg-type]
