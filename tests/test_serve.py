"""The endpoint: the official client against a real server, batches that change nothing, and what is refused."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
import pytest
import torch

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.generation import generate
from fpmgm.sampling import Step
from fpmgm.serving.asked import ask
from fpmgm.serving.engine import sample_rows
from fpmgm.serving.exact import RowByRow, is_exact
from fpmgm.serving.jobs import Job, Row
from fpmgm.serving.limits import Limits, Pace
from fpmgm.serving.models import Served
from fpmgm.serving.wire import CompletionRequest
from fpmgm.solvers import picard
from tests.served import Held, Rounding, Running, alone, as_served, running, small_text_model, until

BUDGET = {"budget": 24}


@pytest.fixture(scope="module")
def model() -> Model:
    return small_text_model()


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    with running(as_served(model)) as found:
        yield found


def job_of(found: Served, **request: Any) -> Job:
    asked = ask(CompletionRequest(model="small", **request), found, Limits())
    return Job(asked, lambda event: None)


def continued(model: Model, prompts: list[str], **settings: Any) -> list[str]:
    return alone(model, prompts, budget=24, **settings)


# The official client


def test_the_official_client_gets_the_texts_of_generate(model: Model, server: Running) -> None:
    found = server.complete(prompt=["the sea", "the old oak"], n=2, seed=3, fpmgm=BUDGET)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    wanted = generate(model, prompts=["the sea", "the old oak"], num_samples=2, seed=3, budget=24)
    assert [choice.text for choice in found.choices] == continued(
        model, ["the sea", "the old oak"], num_samples=2, seed=3
    )
    assert found.fpmgm["block_evals"] == wanted.block_evals
    assert found.fpmgm["steps"] == wanted.steps
    assert found.fpmgm["settings"]["seed"] == 3


def test_a_request_without_a_seed_can_be_repeated_with_the_seed_it_was_told(server: Running) -> None:
    first = server.complete(prompt="the sea", fpmgm=BUDGET)
    again = server.complete(prompt="the sea", seed=first.fpmgm["settings"]["seed"], fpmgm=BUDGET)
    assert again.choices[0].text == first.choices[0].text
    assert again.system_fingerprint == first.system_fingerprint
    other = server.complete(prompt="the sea", fpmgm=BUDGET)
    assert other.fpmgm["settings"]["seed"] != first.fpmgm["settings"]["seed"]


def test_usage_counts_what_was_given_and_what_was_written(model: Model, server: Running) -> None:
    found = server.complete(prompt="the sea", max_tokens=5, n=2, seed=0, fpmgm=BUDGET)
    given = len(model.speech.encode("the sea"))  # type: ignore[attr-defined]
    assert found.usage.prompt_tokens == given
    assert found.usage.completion_tokens == 10
    assert found.usage.total_tokens == given + 10
    assert {choice.finish_reason for choice in found.choices} == {"length"}


def test_a_suffix_stays_and_the_text_between_has_max_tokens(model: Model) -> None:
    job = job_of(as_served(model), prompt="the sea ", suffix=" the old oak", max_tokens=4, seed=2, fpmgm=BUDGET)
    row = Row(job, 0)
    [tokens] = sample_rows(row.kind, [row]).z.tolist()
    start, codec = job.asked.starts[0], job.asked.served.codec
    assert tokens[: start.first] == [codec.first, *codec.encode("the sea")]
    assert tokens[start.first + 4 :] == [*codec.encode(" the old oak"), codec.last]
    infilled = generate(model, infill=["the sea ____ the old oak"], seed=2, budget=24)
    assert tokens == infilled.tokens[0]


def test_a_stream_shows_every_step_and_ends_with_the_whole_text(server: Running) -> None:
    request = {"prompt": "the sea", "seed": 5, "max_tokens": 8, "fpmgm": BUDGET}
    whole = server.complete(**request)
    parts = list(server.complete(**request, stream=True, stream_options={"include_usage": True}))
    steps = [part.fpmgm for part in parts if "provisional" in (part.model_extra or {}).get("fpmgm", {})]
    assert [state["step"] for state in steps] == list(range(1, steps[0]["steps"] + 1))
    assert "·" in steps[0]["provisional"]
    assert steps[-1]["provisional"] == whole.choices[0].text
    texts = [choice.text for part in parts for choice in part.choices]
    assert "".join(texts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "length"
    assert (parts[-1].choices, parts[-1].usage) == ([], whole.usage)
    assert len({part.id for part in parts}) == 1


def test_a_text_is_cut_at_its_end_and_at_a_stop(model: Model) -> None:
    job = job_of(as_served(model), prompt="the ", seed=0, max_tokens=8, stop=["oak", "sky"])
    codec, start = job.asked.served.codec, job.asked.starts[0]
    written = codec.encode(" sea and")
    row = [*start.tokens[: start.first], *written, codec.last, *codec.encode(" old")]
    row += [codec.first] * (len(start.tokens) - len(row))
    assert job.asked.written(0, row) == ("sea and", len(written), "stop")
    row = [*start.tokens[: start.first], *codec.encode(" sea oak sky sea sea sea sea sea sea")]
    assert job.asked.written(0, row)[::2] == ("sea ", "stop")


def test_prompt_and_text_read_on_when_they_are_put_together(server: Running) -> None:
    plain, spaced = (server.complete(prompt=text, seed=1, fpmgm=BUDGET) for text in ("the sea", "the sea "))
    assert spaced.choices[0].text == plain.choices[0].text.removeprefix(" ")
    echoed = server.complete(prompt="the sea", seed=1, echo=True, fpmgm=BUDGET)
    assert echoed.choices[0].text == "the sea" + plain.choices[0].text


def test_the_models_are_told(model: Model, server: Running) -> None:
    [card] = server.client.models.list().data
    assert card == server.client.models.retrieve("small")
    assert (card.id, card.object) == ("small", "model")
    assert card.model_extra == {"fpmgm": {"length": 32, "blocks": "1/1/1", "parameters": card.fpmgm["parameters"]}}  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError, match="did you mean 'small'"):
        server.client.models.retrieve("smal")


# Batches


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tolerance": 0.3},
        {"transition": "confidence"},
        {"transition": "halton"},
        {"transition": "remdm-conf", "reuse": "full"},
        {"suffix": " the sea", "max_tokens": 4},
    ],
    ids=str,
)
def test_rows_of_several_requests_have_the_same_bits_in_one_run_as_alone(model: Model, fields: dict[str, Any]) -> None:
    own = {name: fields[name] for name in ("suffix", "max_tokens") if name in fields}
    options = {"budget": 24, **{name: value for name, value in fields.items() if name not in own}}
    prompts = ["the sea"] * 3 if own else ["the sea", "the sky and the", ""]
    found = as_served(model)
    jobs = [job_of(found, prompt=each, seed=7 * i, n=2 - i % 2, fpmgm=options, **own) for i, each in enumerate(prompts)]
    rows = [Row(job, number) for job in jobs for number in range(len(job.kinds))]
    assert [row.kind for row in rows] == [rows[0].kind] * 5
    together, steps = traced(rows)
    for place, row in enumerate(rows):
        [tokens], own_steps = traced([row])
        assert tokens == together[place]
        for (h, logits), (own_h, own_logits) in zip(steps, own_steps, strict=True):
            assert torch.equal(h[place], own_h[0])
            assert torch.equal(logits[place], own_logits[0])


def traced(rows: list[Row]) -> tuple[list[list[int]], list[tuple[torch.Tensor, list[torch.Tensor]]]]:
    """The tokens of a run, and of each step the hidden states and the logits of each row."""
    steps = []

    def keep(step: Step) -> None:
        steps.append((step.solution.h.clone(), list(step.logits.split(list(step.places.counts)))))

    return sample_rows(rows[0].kind, rows, on_step=keep).z.tolist(), steps


def test_requests_that_come_together_share_a_run_and_get_what_they_get_alone(model: Model) -> None:
    held = Held(model)
    asked = [("the sea", 24), ("the sky", 24), ("old oak", 24), ("and the", 12), ("", 24), ("sea sea sea", 24)]
    with running(as_served(model, held), pace=Pace(batch_size=4)) as found, ThreadPoolExecutor(8) as pool:
        first = pool.submit(found.complete, prompt="alone", seed=0, fpmgm={"budget": 12})
        until(lambda: found.engine.num_running == 1)
        rest = []
        for seed, (prompt, budget) in enumerate(asked):
            rest.append(pool.submit(found.complete, prompt=prompt, seed=seed, fpmgm={"budget": budget}))
            until(lambda: found.engine.num_waiting == len(rest))
        held.door.set()
        texts = [each.result().choices[0].text for each in rest]
        first.result()
        wanted = [alone(model, [prompt], seed=seed, budget=budget)[0] for seed, (prompt, budget) in enumerate(asked)]
        assert texts == wanted
        if is_exact(held, 32, 4, picard, has_tolerance=False):
            assert found.engine.meter.total("runs") == 4  # the first one; four together; that of another budget; one
        assert found.engine.meter.total("texts") == 7


def test_rows_run_alone_where_batches_round(model: Model) -> None:
    rounding = Rounding(model.denoiser)
    assert not is_exact(rounding, 32, 3, picard, has_tolerance=False)
    with running(as_served(model, rounding)) as found:
        texts = found.complete(prompt=["the sea", "oak"], n=2, seed=4, fpmgm=BUDGET).choices
        assert [each.text for each in texts] == continued(model, ["the sea", "oak"], num_samples=2, seed=4)
        assert found.engine.meter.total("runs") == 4


def test_a_trial_finds_residuals_that_differ_only_if_there_is_a_tolerance(model: Model) -> None:
    def leaking(f: Any, h: torch.Tensor, num_iters: int, **options: Any) -> Any:
        found = picard(f, h, num_iters, **options)
        found.residual.add_(1e-6 * len(h))
        return found

    denoiser = RowByRow(model.denoiser)
    exact = is_exact(denoiser, 32, 3, picard, has_tolerance=False)
    assert is_exact(denoiser, 32, 3, leaking, has_tolerance=False) == exact
    assert not is_exact(denoiser, 32, 3, leaking, has_tolerance=True)


# Refusals


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"model": "smal"}, 404, "unknown model 'smal'; did you mean 'small'?"),
        ({"prompt": "the sea " * 40}, 400, "so nothing could be written; shorten it"),
        ({"prompt": "x", "max_tokens": 99}, 400, "max_tokens is 99; it must be 1 to"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0; it must be 1 to"),
        ({"prompt": "x", "suffix": "the sea " * 40}, 400, "prompt and suffix have"),
        ({"prompt": [1, 2, 3]}, 400, "lists of token numbers are not supported"),
        ({"prompt": []}, 400, "give a text or a list of texts"),
        ({"prompt": "\ud800"}, 400, "half characters"),
        ({"n": 99}, 400, "n is 99; it must be 1 to 16"),
        ({"prompt": ["a"] * 6, "n": 3}, 400, "6 prompts and n 3 make 18 texts; 16 are allowed"),
        ({"logprobs": 1}, 400, "logprobs: fpmgm does not support this field"),
        ({"best_of": 2}, 400, "best_of: fpmgm does not support this field"),
        ({"stop": ["a"] * 5}, 400, "5 texts are given; at most 4 are allowed"),
        ({"temperature": -1}, 400, "temperature is -1"),
        ({"temperature": "hot"}, 400, "temperature: input should be a valid number"),
        ({"temperature": 1e999}, 400, "temperature: input should be a finite number"),
        ({"temperature": 0, "top_p": 0.5}, 400, "top_k and top_p would do nothing"),
        ({"seed": -1}, 400, "seed: input should be greater than or equal to 0"),
        ({"stream_options": {"include_usage": True}}, 400, "stream is not true, so they would do nothing"),
        ({"promt": "x"}, 400, "promt is not a field that fpmgm knows; did you mean prompt?"),
        ({"x\ud800": 1}, 400, "the name of a field has half characters"),
        ({"fpmgm": {"x\ud800": 1}}, 400, "half characters"),
        ({"model": "\ud800"}, 404, "unknown model '\\ud800'"),
        ({"suffix": "\ud800"}, 400, "half characters"),
        ({"x" * 9999: 1}, 400, "x is not a field that fpmgm knows"),
        ({"model": "small" * 999}, 404, "unknown model"),
        ({"fpmgm": {"bugdet": 9}}, 400, "fpmgm.bugdet is not a field that fpmgm knows; did you mean budget?"),
        ({"fpmgm": {"budget": 2}}, 400, "the smallest feasible budget is 3"),
        ({"fpmgm": {"budget": 5000}}, 400, "at most 1000 block evaluations are allowed"),
        ({"fpmgm": {"steps": 90}}, 400, "too small for 90 denoising steps"),
        ({"fpmgm": {"allocation": "most"}}, 400, "fpmgm.allocation: input should be 'auto', 'fixed'"),
        ({"fpmgm": {"reuse_masked": [0.5]}}, 400, "fpmgm.reuse_masked: list should have at least 2 items"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_message(
    server: Running, request_: dict[str, Any], status: int, message: str
) -> None:
    body = json.dumps({"model": "small", **request_}).encode()
    found, answer = posted(server, body)
    assert found == status
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_fields_that_ask_for_nothing_are_allowed(server: Running) -> None:
    neutral = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": None}
    found = server.complete(prompt="the", temperature=0, top_p=1, max_tokens=2, fpmgm=BUDGET, **neutral)
    assert found.choices[0].text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": "small",}', "the body is not JSON"),
        (b"[1]", "the body must be a JSON object"),
        (b"", "the body must be a JSON object"),
        (b"{}", "model is missing"),
        (b'{"model": 3}', "model: input should be a valid string"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[" * 100_000, "There was an error parsing the body"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(server: Running, body: bytes, message: str) -> None:
    status, answer = posted(server, body)
    assert (status, message in answer["error"]["message"]) == (400, True), answer


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Running) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sending:  # the body itself is never sent
        sending.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {(1 << 20) + 1}\r\n\r\n".encode())
        assert sending.recv(100).startswith(b"HTTP/1.1 413")
    parts = iter([b" " * (1 << 20), b" "])  # sent in pieces, without saying how much it will be
    status, answer = posted(server, parts)
    assert (status, "more than 1048576 bytes" in answer["error"]["message"]) == (413, True)


def posted(server: Running, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", **headers}
    return fetched(urllib.request.Request(f"{server.url}/v1/completions", data=body, headers=headers, method="POST"))


def fetched(request: Any) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_other_paths_and_methods_are_refused_in_openais_form(server: Running) -> None:
    assert fetched(f"{server.url}/v1/chat") == (404, refusal("GET /v1/chat: Not Found"))
    assert fetched(f"{server.url}/v1/completions") == (405, refusal("GET /v1/completions: Method Not Allowed"))


def refusal(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


# Health, metrics, key


def test_metrics_count_and_health_is_told(model: Model) -> None:
    with running(as_served(model)) as found:
        found.complete(prompt="the sea", max_tokens=3, n=2, seed=0, fpmgm=BUDGET)
        status, health = fetched(f"{found.url}/health")
        assert (status, health) == (200, {"status": "ok", "models": ["small"], "waiting": 0, "running": 0})
        _, text = fetched(f"{found.url}/metrics")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['fpmgm_http_requests_total{route="/v1/completions",status="200"}'] == "1"
    assert lines['fpmgm_completions_total{outcome="whole"}'] == "1"
    assert lines["fpmgm_texts_total"] == "2"
    assert lines["fpmgm_completion_tokens_total"] == "6"
    assert lines['fpmgm_answer_seconds_bucket{le="+Inf"}'] == lines["fpmgm_answer_seconds_count"] == "1"


def test_with_a_key_nothing_but_health_is_answered_without_it(model: Model) -> None:
    with running(as_served(model), api_key="secret") as found:
        assert found.client.models.list().data[0].id == "small"
        for key in ("wrong", "", "sécret"):
            status, answer = posted(found, b"{}", Authorization=f"Bearer {key}")
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert fetched(f"{found.url}/metrics")[0] == 401
        assert fetched(f"{found.url}/health")[0] == 200


# Queue, time-out, leaving, ending


def asking(pool: ThreadPoolExecutor, found: Running, prompt: str, **fields: Any) -> "Future[Any]":
    return pool.submit(found.complete, prompt=prompt, seed=1, fpmgm=BUDGET, **fields)


def test_a_full_queue_answers_429_and_says_when_to_come_back(model: Model) -> None:
    held = Held(model)
    with running(as_served(model, held), pace=Pace(queue=1)) as found, ThreadPoolExecutor(4) as pool:
        first = asking(pool, found, "the sea")
        until(lambda: found.engine.num_running == 1)
        second = asking(pool, found, "the sky")
        until(lambda: found.engine.num_waiting == 1)
        with pytest.raises(openai.RateLimitError, match="1 requests are waiting") as refused:
            found.complete(prompt="oak")
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        held.door.set()
        texts = [each.result().choices[0].text for each in (first, second)]
    assert texts == [continued(model, [prompt], seed=1)[0] for prompt in ("the sea", "the sky")]


def test_a_request_that_takes_too_long_gets_504_and_its_run_is_given_up(model: Model) -> None:
    held = Held(model)
    with running(as_served(model, held), pace=Pace(timeout=0.2)) as found:
        with pytest.raises(openai.InternalServerError, match="no answer within 0") as refused:
            found.complete(prompt="the sea", seed=1, fpmgm=BUDGET)
        assert refused.value.status_code == 504
        with pytest.raises(openai.APIError, match="no answer within 0"):
            list(found.complete(prompt="the sea", seed=1, fpmgm=BUDGET, stream=True))
        until(lambda: found.engine.num_waiting == found.engine.num_running == 0)
        held.door.set()
        until(lambda: found.engine.meter.total("cancelled_runs") == 1)
        assert held.num_steps == 1  # of four
        assert found.engine.meter.total("runs") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(model: Model, stream: bool) -> None:
    held = Held(model)
    body = json.dumps({"model": "small", "prompt": "the sea", "stream": stream, "fpmgm": BUDGET}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with running(as_served(model, held)) as found:
        port = int(found.url.rsplit(":", 1)[1])
        with (
            socket.create_connection(("127.0.0.1", port)) as leaving,
            socket.create_connection(("127.0.0.1", port)) as too,
        ):
            leaving.sendall(head.encode() + b"\r\n\r\n" + body)
            until(lambda: found.engine.num_running == 1)
            too.sendall(head.encode() + b"\r\n\r\n" + body)
            until(lambda: found.engine.num_waiting == 1)
        until(lambda: found.engine.num_running + found.engine.num_waiting == 0)
        held.door.set()
        until(lambda: found.engine.meter.total("cancelled_runs") == 1)
        assert found.complete(prompt="the sea", seed=1, fpmgm=BUDGET).choices[0].text
        until(lambda: 'fpmgm_completions_total{outcome="disconnected"} 2' in fetched(f"{found.url}/metrics")[1])


def test_a_server_that_ends_finishes_what_runs_and_refuses_what_waits(model: Model) -> None:
    held = Held(model)
    with running(as_served(model, held)) as found, ThreadPoolExecutor(2) as pool:
        runs = asking(pool, found, "the sea", n=2)
        until(lambda: found.engine.num_running == 1)
        waits = asking(pool, found, "the sky")
        until(lambda: found.engine.num_waiting == 1)
        found.server.should_exit = True
        with pytest.raises(openai.InternalServerError, match="the server is ending") as refused:
            waits.result()
        assert refused.value.status_code == 503
        held.door.set()
        texts = [choice.text for choice in runs.result().choices]
    assert texts == continued(model, ["the sea"], num_samples=2, seed=1)


def test_a_server_without_time_to_finish_gives_no_half_answer(model: Model) -> None:
    held = Held(model)
    with running(as_served(model, held), pace=Pace(grace=0.1)) as found, ThreadPoolExecutor(2) as pool:
        whole = asking(pool, found, "the sea")
        until(lambda: found.engine.num_running == 1)
        parts = pool.submit(lambda: list(found.complete(prompt="the sea", stream=True, fpmgm={"budget": 24})))
        until(lambda: found.engine.num_waiting == 1)
        found.server.should_exit = True
        for each in (whole, parts):
            with pytest.raises(openai.APIError, match="the server is ending"):
                each.result()
        held.door.set()


def test_what_goes_wrong_in_a_run_is_told_and_the_next_one_is_answered(
    model: Model, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found_served = as_served(model)
    with running(found_served) as found:
        broken = threading.Event()
        post = RowByRow.post

        def once(self: RowByRow, *given: Any) -> Any:
            if not broken.is_set():
                broken.set()
                raise FloatingPointError("logits are not finite")
            return post(self, *given)

        monkeypatch.setattr(RowByRow, "post", once)
        with pytest.raises(
            openai.InternalServerError, match="the run failed: FloatingPointError: logits are not finite"
        ):
            found.complete(prompt="the sea", fpmgm=BUDGET)
        assert found.complete(prompt="the sea", fpmgm=BUDGET).choices[0].finish_reason  # its text may be empty
    assert "FloatingPointError" in capfd.readouterr().err


# The command


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fpmgm: cannot listen on 127.0.0.1, port {port}: Address already in use")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "fashion"], "fashion is a model of images, and serve answers with text"),
        (["--models", "nowhere"], "no model at 'nowhere'"),
        (["--models"], "no models are given"),
        (["--host", "not an address"], "cannot listen on not an address"),
        (["--pace.queue", "0"], "pace.queue is 0; it must be 1 to"),
        (["--limits.budget", "0"], "limits.budget is 0; it must be 1 to"),
        (["--page", "--api-key", "x"], "page and an API key are both set, and a browser cannot send the key"),
        (["--port", "70000"], "port is 70000; it must be 0 to 65535"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_rows_of_andersons_solver_run_alone(model: Model) -> None:
    """Its batches were seen to round otherwise than single rows, where a trial saw nothing."""
    with running(as_served(model)) as found:
        texts = found.complete(
            prompt=["the sea", "oak", ""], seed=9, fpmgm={"budget": 24, "solver": "anderson"}
        ).choices
        assert found.engine.meter.total("runs") == 3
    wanted = alone(model, ["the sea", "oak", ""], seed=9, budget=24, solver="anderson", batch_size=1)
    assert [each.text for each in texts] == wanted
