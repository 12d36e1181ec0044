"""The command `serve`: an endpoint in the form of OpenAI's completions."""

import os
from dataclasses import dataclass, field

from fpmgm.checkpoint import DEFAULT
from fpmgm.commands.demo import add_page
from fpmgm.commands.demo import check_installed as check_gradio
from fpmgm.devices import OnDevice
from fpmgm.schema import require
from fpmgm.serving.limits import Limits, Pace

KEY = "FPMGM_API_KEY"


@dataclass(frozen=True, kw_only=True)
class ServeCommand(OnDevice):
    """Answer requests in the form of OpenAI's completions, until Ctrl-C or SIGTERM."""

    models: tuple[str, ...] = (DEFAULT,)
    """Models that write text: bundled ones, model folders, or hub ids owner/name. Requests name one of them."""
    host: str = "127.0.0.1"
    """The address to listen on. The default can be reached from this machine only; 0.0.0.0 is open to the network."""
    port: int = 8000
    """The port to listen on; 0 is any free one."""
    api_key: str = ""
    """The key that requests must send as `Authorization: Bearer KEY`. If it is empty, the environment variable
    FPMGM_API_KEY is read; if that is empty too, no key is needed."""
    page: bool = False
    """Serve the page of `fpmgm demo` too, at the address itself. It needs the extra `demo`."""
    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.check_device()
        require("port", self.port, 0, 65535)
        if self.page and self.key:
            raise ValueError("page and an API key are both set, and a browser cannot send the key; leave one out")

    @property
    def key(self) -> str:
        return self.api_key or os.environ.get(KEY, "")


def run_serve(command: ServeCommand) -> None:
    """Load the models and answer requests until the server is told to end."""
    check_installed()
    if command.page:
        check_gradio()
    from fpmgm.serving.app import build, gated
    from fpmgm.serving.engine import Engine
    from fpmgm.serving.meter import Meter
    from fpmgm.serving.models import load_served
    from fpmgm.serving.server import Server, address_of, bind

    with bind(command.host, command.port) as listening:
        models = load_served(command.models, device=command.device, dtype=command.dtype)
        engine = Engine(command.pace, Meter())
        routes = build(models, engine, command.limits)
        if command.page:
            add_page(routes, command.models, device=command.device, dtype=command.dtype)
        app = gated(routes, engine, api_key=command.key, limits=command.limits)
        needs = ", with the API key" if command.key else ""
        print(f"{', '.join(models)}: {address_of(listening)}/v1{needs}; Ctrl-C ends it", flush=True)
        Server(app, engine).run(sockets=[listening])


def check_installed() -> None:
    """A ValueError that says what to install if fastapi or uvicorn is missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"serve needs {error.name}, which is not installed; run: pip install 'fpmgm[serve]'"
        ) from error
