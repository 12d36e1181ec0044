"""The application: OpenAI's routes over HTTP, answered by the engine."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fpmgm.names import choose
from fpmgm.serving.answers import DONE, Answer, as_events, as_json
from fpmgm.serving.asked import Asked, ask
from fpmgm.serving.engine import Engine
from fpmgm.serving.gate import Gate, answer_of
from fpmgm.serving.jobs import Event, Job, Progress, Whole
from fpmgm.serving.limits import Limits
from fpmgm.serving.models import Served
from fpmgm.serving.refusals import LONGEST_NAME, RefusedError, unreadable
from fpmgm.serving.wire import KNOWN, Completion, CompletionRequest, Health, ModelCard, ModelFacts, ModelList

CLIENT_LEFT = 499
"""The status that is counted when nobody is there to read the answer."""
EVENTS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream: nothing on the way may hold it back."""


class Waiting:
    """A job, and what the engine tells of it, as the event loop sees it."""

    def __init__(self, asked: Asked, timeout: float) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop, self._timeout = asyncio.get_running_loop(), timeout
        self.job = Job(asked, self._tell)

    def _tell(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self) -> Progress | Whole:
        """What comes next; a RefusedError if the engine refuses, or the time is over."""
        left = self.job.arrived + self._timeout - time.monotonic()
        try:
            event = await asyncio.wait_for(self._events.get(), left)
        except TimeoutError:
            message = f"there was no answer within {self._timeout:g} seconds; ask for less, or later"
            raise RefusedError(504, message, code="timeout") from None
        if isinstance(event, RefusedError):
            raise event
        return event

    async def whole(self) -> Whole:
        """The end of it."""
        while not isinstance(event := await self.next(), Whole):
            pass
        return event


@dataclass(frozen=True, kw_only=True)
class Api:
    """What the routes do."""

    models: Mapping[str, Served]
    engine: Engine
    limits: Limits

    async def completions(self, asked_for: CompletionRequest, request: Request) -> Response:
        """Write texts: after a prompt, or between a prompt and a suffix."""
        asked = await run_in_threadpool(self._asked, asked_for)
        waiting = Waiting(asked, self.engine.pace.timeout)
        self.engine.submit(waiting.job)
        answer = Answer(asked)
        if asked_for.stream:
            parts = self._parts(waiting, answer)
            freed = BackgroundTask(self.engine.drop, waiting.job)  # if the client left before the first part
            return StreamingResponse(parts, media_type="text/event-stream", headers=EVENTS, background=freed)
        return await self._at_once(waiting, answer, request)

    def _asked(self, asked_for: CompletionRequest) -> Asked:
        served = self._served(asked_for.model)
        try:
            return ask(asked_for, served, self.limits)
        except ValueError as error:
            raise RefusedError(400, str(error)) from error

    def _served(self, name: str) -> Served:
        if name not in self.models and len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}..."  # as much of it as a message repeats
        try:
            return choose("model", name, self.models)
        except ValueError as error:
            raise RefusedError(404, str(error), param="model", code="model_not_found") from error

    async def _at_once(self, waiting: Waiting, answer: Answer, request: Request) -> Response:
        """The whole answer, unless the client leaves before."""
        getting, leaving = asyncio.ensure_future(waiting.whole()), asyncio.ensure_future(_client_left(request))
        outcome = "disconnected"
        try:
            await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                return Response(status_code=CLIENT_LEFT)
            completion, usage = answer.whole(await getting)
            outcome = "whole"
            self._count(waiting.job, outcome, usage.prompt_tokens, usage.completion_tokens)
            return JSONResponse(as_json(completion))
        except RefusedError as refusal:
            outcome = _outcome_of(refusal)
            raise
        finally:
            getting.cancel()
            leaving.cancel()
            self.engine.drop(waiting.job)
            if outcome != "whole":
                self._count(waiting.job, outcome)

    async def _parts(self, waiting: Waiting, answer: Answer) -> AsyncIterator[str]:
        """The parts of a stream. What is refused on the way ends with an error and without [DONE]."""
        outcome = "disconnected"
        try:
            while isinstance(event := await waiting.next(), Progress):
                for line in as_events([answer.provisional(event)]):
                    yield line
            parts, usage = answer.last_parts(event)
            for line in (*as_events(parts), DONE):
                yield line
            outcome = "whole"
            self._count(waiting.job, outcome, usage.prompt_tokens, usage.completion_tokens)
        except RefusedError as refusal:
            outcome = _outcome_of(refusal)
            yield f"data: {json.dumps(refusal.body)}\n\n"
        finally:
            self.engine.drop(waiting.job)
            if outcome != "whole":
                self._count(waiting.job, outcome)

    def _count(self, job: Job, outcome: str, num_given: int = 0, num_written: int = 0) -> None:
        self.engine.meter.count_outcome(outcome, time.monotonic() - job.arrived, num_given, num_written)

    async def list_models(self) -> ModelList:
        """The models that can be asked."""
        return ModelList(data=[_card(served) for served in self.models.values()])

    async def one_model(self, name: str) -> ModelCard:
        """One model."""
        return _card(self._served(name))

    async def health(self) -> JSONResponse:
        """Whether the server takes requests; status 503 if it is ending."""
        engine = self.engine
        status = Health(
            status="ok" if engine.is_open else "closing",
            models=list(self.models),
            waiting=engine.num_waiting,
            running=engine.num_running,
        )
        return JSONResponse(status.model_dump(), status_code=200 if engine.is_open else 503)

    async def metrics(self) -> PlainTextResponse:
        """Counts for Prometheus."""
        text = self.engine.meter.text(waiting=self.engine.num_waiting, running=self.engine.num_running)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def build(models: Mapping[str, Served], engine: Engine, limits: Limits) -> FastAPI:
    """The application without its gate, so that more routes can be added."""
    api = Api(models=models, engine=engine, limits=limits)
    app = FastAPI(title="fpmgm", docs_url=None, redoc_url=None)
    add: Any = app.add_api_route
    add("/v1/completions", api.completions, methods=["POST"], response_model=Completion)
    add("/v1/models", api.list_models, methods=["GET"])
    add("/v1/models/{name:path}", api.one_model, methods=["GET"])
    add("/health", api.health, methods=["GET"], response_model=Health)
    add("/metrics", api.metrics, methods=["GET"], response_class=PlainTextResponse)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _other_error)
    app.add_exception_handler(Exception, _failed)
    return app


def gated(app: FastAPI, engine: Engine, *, api_key: str, limits: Limits) -> Gate:
    """The application behind its gate: what a server runs."""
    return Gate(app=app, meter=engine.meter, api_key=api_key, most_bytes=limits.body)


def _card(served: Served) -> ModelCard:
    cost = served.denoiser.cost
    facts = ModelFacts(length=served.length, blocks=str(cost), parameters=served.num_parameters)
    return ModelCard(id=served.name, created=served.created, fpmgm=facts)


def _outcome_of(refusal: RefusedError) -> str:
    return "timeout" if refusal.code == "timeout" else "refused"


async def _client_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return answer_of(error)


async def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer_of(unreadable(error.errors(), KNOWN))


async def _other_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = (
        f"{request.method} {request.url.path}: {error.detail}" if error.status_code in (404, 405) else error.detail
    )
    return answer_of(RefusedError(error.status_code, message, headers=error.headers))


async def _failed(request: Request, error: Exception) -> Response:
    return answer_of(RefusedError(500, f"unexpected {type(error).__name__}; the server's log has its traceback"))
