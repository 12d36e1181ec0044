"""What the tests of serving share: a small model, a server in a thread, and models that wait or round."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from openai import OpenAI
from torch import Tensor, nn

import fpmgm
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.tokenizing import train_bpe
from fpmgm.generation import generate, until_end
from fpmgm.serving.app import build, gated
from fpmgm.serving.engine import Engine
from fpmgm.serving.exact import RowByRow
from fpmgm.serving.limits import Limits, Pace
from fpmgm.serving.meter import Meter
from fpmgm.serving.models import Served, served
from fpmgm.serving.server import Server, address_of, bind
from tests.conftest import SMALL

PATIENCE = 60.0
"""Seconds that a test waits for what must happen; a loaded machine is no failure."""


def small_text_model(length: int = 32) -> Model:
    """A model with a tokenizer and weights that are nowhere 0. It writes nonsense."""
    tokenizer = train_bpe(iter(["the sea and the sky and the old oak\n" * 50]), 270)
    size = tokenizer.get_vocab_size() + 1
    config = replace(SMALL, vocab_size=size, mask_id=size - 1, length=length)
    denoiser = fpmgm.mdlm(config)
    rng = fpmgm.generator(1)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=rng))
        for module in denoiser.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(1)
    return Model(denoiser=denoiser.eval(), config=config, codec=TextCodec(tokenizer.to_str()))


class Held(RowByRow):
    """A denoiser that waits at a door before every step."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.denoiser)
        self.door = threading.Event()
        self.num_steps = 0

    def pre(self, z: Tensor, cond: Any, memory: Any = None) -> Tensor:
        assert self.door.wait(PATIENCE)
        self.num_steps += 1
        return super().pre(z, cond)


class Rounding(RowByRow):
    """A denoiser whose batches round otherwise than single sequences, as some machines do."""

    def fixed_point_blocks(self, h: Tensor, constant: Any, cond: Any) -> Tensor:
        return super().fixed_point_blocks(h, constant, cond) + 1e-3 * (len(h) - 1)


def as_served(model: Model, denoiser: RowByRow | None = None, name: str = "small") -> Served:
    """A model to serve, perhaps with another denoiser."""
    found = served(model, name, fingerprint="test")
    if denoiser is not None:
        found.__dict__["denoiser"] = denoiser
    return found


def alone(model: Model, prompts: list[str], **settings: Any) -> list[str]:
    """What a model writes after prompts up to an end, computed here, with the network that a server has."""
    found = generate(replace(model, denoiser=RowByRow(model.denoiser)), prompts=prompts, **settings)
    rows = zip(found.tokens, found.given, strict=True)
    return [model.speech.show(until_end(row, model.speech, given)[given:]) for row, given in rows]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that answers, and a client of it."""

    url: str
    engine: Engine
    server: Server
    client: OpenAI

    def complete(self, **request: Any) -> Any:
        """A completion by the official client; what OpenAI does not know goes in `fpmgm`."""
        extra = {"fpmgm": request.pop("fpmgm")} if "fpmgm" in request else None
        return self.client.completions.create(**{"model": "small", **request}, extra_body=extra)


@contextmanager
def running(
    found: Served, *, pace: Pace | None = None, limits: Limits | None = None, api_key: str = ""
) -> Iterator[Running]:
    """A real server in a thread, on a free port."""
    engine, limits = Engine(pace or Pace(), Meter()), limits or Limits()
    app = gated(build({found.name: found}, engine, limits), engine, api_key=api_key, limits=limits)
    server, listening = Server(app, engine), bind("127.0.0.1", 0)
    url = address_of(listening)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    client = OpenAI(base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, timeout=PATIENCE)
    try:
        with client:
            until(lambda: server.started)
            yield Running(url=url, engine=engine, server=server, client=client)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
