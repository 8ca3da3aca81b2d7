"""`sglang.Engine`: the same answers as over HTTP, in the caller's own program."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import sglang
from tests.e2e import processes, reference
from tests.e2e.processes import Server, call, events

PROMPT = "The quick brown fox"
GREEDY = {"temperature": 0, "max_new_tokens": 12}
SMALL = {"model_path": "demo", "dtype": "float32", "max_total_tokens": 4096}
SOON = 10.0  # seconds
GUARD = 120.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with sglang.Engine(**SMALL) as running:
        yield running


def over_http(server: Server, body: dict[str, Any]) -> Any:
    status, reply, _ = call(f"{server.url}/generate", body)
    assert status == 200, reply
    return reply


def compared(reply: Any) -> Any:
    """Without what differs from run to run; numbers in single precision, as JSON has them."""
    if isinstance(reply, list):
        return [compared(one) for one in reply]
    if isinstance(reply, dict):
        changing = ("id", "e2e_latency", "cached_tokens", "cached_tokens_details")
        return {
            name: "told" if name in changing else compared(value) for name, value in reply.items()
        }
    return round(reply, 3) if isinstance(reply, float) else reply


@pytest.mark.parametrize(
    "body",
    [
        {"text": PROMPT, "sampling_params": GREEDY},
        {"text": [PROMPT, "Once upon a time", PROMPT], "sampling_params": GREEDY},
        {"input_ids": [504, 3575, 282], "sampling_params": GREEDY},
        {"input_ids": [[504, 3575, 282]], "sampling_params": GREEDY},
        {"text": PROMPT, "sampling_params": {**GREEDY, "n": 2}},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 8, "sampling_seed": 7, "n": 2}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "max_new_tokens": 0}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "stop": [" the", "dog"]}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "stop": "dog", "no_stop_trim": True}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "stop_regex": "l[a-z]+y"}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "regex": "[0-9]{5}"}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "json_schema": '{"type": "boolean"}'}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "stop_token_ids": [30]}},
        {"text": "Say hi.", "sampling_params": {"temperature": 0, "max_new_tokens": 200}},
        {
            "text": [PROMPT, "Once"],
            "sampling_params": [GREEDY, {**GREEDY, "max_new_tokens": 3}],
            "return_logprob": [True, False],
        },
        {
            "text": PROMPT,
            "sampling_params": GREEDY,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [5, 9],
            "return_text_in_logprobs": True,
        },
    ],
)
def test_reply_is_that_of_http(engine: Any, server: Server, body: dict[str, Any]) -> None:
    want = over_http(server, body)
    fields = {("prompt" if name == "text" else name): value for name, value in body.items()}
    got = engine.generate(**fields)
    assert compared(got) == compared(want)


def test_events_are_those_of_http_and_end_as_the_whole(engine: Any, server: Server) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "stream": True, "return_logprob": True}
    want = [event for event in events(f"{server.url}/generate", body) if isinstance(event, dict)]
    got = list(engine.generate(PROMPT, GREEDY, stream=True, return_logprob=True))
    whole = engine.generate(PROMPT, GREEDY, return_logprob=True)
    assert compared(got[-1]) == compared(want[-1]) == compared(whole)
    assert all(whole["text"].startswith(event["text"]) for event in got)
    assert [event["meta_info"]["finish_reason"] for event in got[:-1]] == [None] * (len(got) - 1)
    assert got[0].keys() == want[0].keys()
    assert got[0]["meta_info"].keys() == want[0]["meta_info"].keys()


def test_measured_answers_have_the_keys_of_http(tmp_path: Path) -> None:
    with (
        processes.front_door(tmp_path, "--dtype", "float32", "--enable-metrics") as measured,
        sglang.Engine(**SMALL, enable_metrics=True) as own,
    ):
        for params in (GREEDY, {**GREEDY, "stop": " the"}, {**GREEDY, "max_new_tokens": 0}):
            want = over_http(measured, {"text": PROMPT, "sampling_params": params})["meta_info"]
            got = own.generate(PROMPT, params)["meta_info"]
            assert got.keys() == want.keys()
            for info in (got, want):
                passed = [
                    info[name]
                    for name in ("request_received_ts", "forward_entry_time",
                                 "prefill_finished_time", "response_sent_to_client_ts")
                ]  # fmt: skip
                assert passed == sorted(passed) and abs(passed[0] - time.time()) < GUARD
                assert 0 <= info["queue_time"] <= info["e2e_latency"]
        assert want.keys().isdisjoint({"first_token_latency", "decode_throughput"})
        whole = over_http(measured, {"text": PROMPT, "sampling_params": GREEDY})["meta_info"]
        assert 0 < whole["first_token_latency"] < whole["e2e_latency"]
        assert whole["decode_throughput"] > 0
        assert sum(whole["cached_tokens_details"].values()) == whole["cached_tokens"] > 0


def test_events_of_a_batch_carry_their_place(engine: Any) -> None:
    prompts = [PROMPT, "Once upon a time"]
    last: dict[int, Any] = {}
    for event in engine.generate(prompts, GREEDY, stream=True):
        last[event.pop("index")] = event
    whole = engine.generate(prompts, GREEDY)
    assert [compared(last[index]) for index in (0, 1)] == compared(whole)


def test_stream_that_is_left_ends_its_request(engine: Any) -> None:
    stream = engine.generate(PROMPT, {"max_new_tokens": 2000, "ignore_eos": True}, stream=True)
    assert next(stream)["text"]
    stream.close()
    deadline = time.monotonic() + SOON
    while engine.get_server_info()["internal_states"][0]["num_running_reqs"]:
        assert time.monotonic() < deadline, "the request goes on"


def test_mistake_is_an_error_in_the_words_of_http(engine: Any, server: Server) -> None:
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 100_000}}
    status, reply, _ = call(f"{server.url}/generate", body)
    assert status == 400
    with pytest.raises(ValueError, match="exceeds the model's maximum context length") as caught:
        engine.generate(PROMPT, {"max_new_tokens": 100_000})
    assert str(caught.value).split(":")[0] in reply["error"]["message"]
    with pytest.raises(ValueError, match="--is-embedding"):
        engine.encode(PROMPT)


def test_scores_are_those_of_the_reference(engine: Any) -> None:
    for answer in reference.load()[:6]:
        best, second = answer.output_ids[0], answer.runner_up_ids[0]
        query, item = answer.prompt_ids[:-1], answer.prompt_ids[-1:]
        logprobs = [answer.output_logprobs[0], answer.output_logprobs[0] - answer.gaps[0]]
        want = [math.exp(logprob) for logprob in logprobs]
        assert engine.score(query, [item], [best, second])[0] == pytest.approx(want, abs=1e-3)
        shares = engine.score(query, [item], [best, second], apply_softmax=True)[0]
        assert shares == pytest.approx([one / sum(want) for one in want], abs=1e-3)


def test_texts_are_scored_before_and_after_the_query(engine: Any) -> None:
    labels = [engine.tokenizer.encode(word, False)[0] for word in (" Paris", " London")]
    after = engine.score("The capital of", [" France is", " England is"], labels)
    assert after[0][0] > after[0][1] and after[1][0] < after[1][1]
    before = engine.score(" is", ["The capital of France", "The capital of England"], labels,
                          item_first=True)  # fmt: skip
    assert sum(before, []) == pytest.approx(sum(after, []), abs=1e-4)


async def test_inside_a_running_loop(engine: Any) -> None:
    prompts = [PROMPT, "Once upon a time"]
    calls = [engine.async_generate(prompt, GREEDY) for prompt in prompts]
    got = await asyncio.wait_for(asyncio.gather(*calls), GUARD)
    assert compared(got) == compared(engine.generate(prompts, GREEDY))  # blocks, as in a notebook
    stream = await engine.async_generate(PROMPT, GREEDY, stream=True)
    seen = [event async for event in stream]
    assert compared(seen[-1]) == compared(got[0])
    labels = [504, 3575]
    assert await engine.async_score("a", ["b"], labels) == engine.score("a", ["b"], labels)


async def test_cancelled_call_frees_its_id(engine: Any) -> None:
    long = {"max_new_tokens": 2000, "ignore_eos": True}
    task = asyncio.create_task(engine.async_generate(PROMPT, long, rid="mine"))
    while not engine.get_server_info()["internal_states"][0]["num_running_reqs"]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await asyncio.wait_for(engine.async_generate(PROMPT, GREEDY, rid="other"), GUARD)
    assert again["meta_info"]["id"] == "other"


def test_operations(engine: Any) -> None:
    engine.generate(PROMPT, GREEDY)
    assert engine.generate(PROMPT, GREEDY)["meta_info"]["cached_tokens"] > 0
    assert engine.flush_cache() == {"success": True, "message": "The cache is flushed."}
    assert engine.generate(PROMPT, GREEDY)["meta_info"]["cached_tokens"] == 0
    info = engine.get_server_info()
    assert (info["max_total_num_tokens"], info["dtype"]) == (4096, "float32")
    assert engine.get_model_info()["is_generation"] is True


def test_aborted_request_tells_what_it_has(engine: Any) -> None:
    long = {"max_new_tokens": 2000, "ignore_eos": True}
    stream = engine.generate(PROMPT, long, rid="long", stream=True)
    next(stream)
    engine.abort_request("long")
    reason = list(stream)[-1]["meta_info"]["finish_reason"]
    assert (reason["type"], reason["message"]) == ("abort", "Aborted by the caller")
    with pytest.raises(ValueError, match="rid must be the id of a request"):
        engine.abort_request()


def test_session_continues_what_was_said(engine: Any) -> None:
    session = engine.open_session(1000)
    first = engine.generate(PROMPT, GREEDY, rid="turn-1", session_params={"id": session})
    told = {"id": session, "rid": "turn-1"}
    second = engine.generate(input_ids=[504], sampling_params=GREEDY, session_params=told)
    history = engine.tokenizer.encode(PROMPT) + first["output_ids"] + [504]
    whole = engine.generate(input_ids=history, sampling_params=GREEDY)
    assert second["output_ids"] == whole["output_ids"]
    engine.close_session(session)
    with pytest.raises(ValueError, match="is not an open session"):
        engine.generate(PROMPT, GREEDY, session_params=told)


def test_paused_engine_answers_when_it_goes_on(engine: Any) -> None:
    engine.pause_generation("in_place")
    waiting = asyncio.run(_asked_while_paused(engine))
    assert compared(waiting) == compared(engine.generate(PROMPT, GREEDY))
    with pytest.raises(ValueError, match="mode must be one of"):
        engine.pause_generation("somehow")


async def _asked_while_paused(engine: Any) -> Any:
    task = asyncio.create_task(engine.async_generate(PROMPT, GREEDY))
    while not engine.get_server_info()["internal_states"][0]["num_waiting_reqs"]:
        await asyncio.sleep(0)
    assert not task.done()
    engine.continue_generation()
    return await asyncio.wait_for(task, GUARD)


# ------------------------------------------------------------------ embeddings


@pytest.fixture(scope="module")
def embedder() -> Iterator[Any]:
    with sglang.Engine(**SMALL, is_embedding=True) as running:
        yield running


def test_vectors_have_length_one_and_depend_on_the_prompt_alone(embedder: Any) -> None:
    fox, once, again = embedder.encode([PROMPT, "Once upon a time", PROMPT])
    assert math.hypot(*fox["embedding"]) == pytest.approx(1)
    assert fox["embedding"] == pytest.approx(again["embedding"], abs=1e-5)
    assert fox["embedding"] != pytest.approx(once["embedding"], abs=1e-2)
    ids = embedder.tokenizer.encode(PROMPT)
    assert fox["meta_info"]["prompt_tokens"] == len(ids)
    assert embedder.encode(input_ids=ids)["embedding"] == pytest.approx(fox["embedding"], abs=1e-5)
    short = embedder.encode(PROMPT, dimensions=8)["embedding"]
    assert (len(short), math.hypot(*short)) == (8, pytest.approx(1))


async def test_vectors_can_be_awaited(embedder: Any) -> None:
    got = await asyncio.wait_for(embedder.async_encode(PROMPT), GUARD)
    assert got["embedding"] == pytest.approx(embedder.encode(PROMPT)["embedding"], abs=1e-5)


def test_engine_that_embeds_generates_nothing(embedder: Any) -> None:
    with pytest.raises(ValueError, match="started with --is-embedding and generates no text"):
        embedder.generate(PROMPT, GREEDY)
    assert embedder.get_model_info()["is_generation"] is False


# ------------------------------------------------------------------ life and end


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_killed_scheduler_raises_and_the_engine_can_be_shut_down() -> None:
    engine = sglang.Engine(**SMALL)
    stream = engine.generate(PROMPT, {"max_new_tokens": 2000, "ignore_eos": True}, stream=True)
    next(stream)
    os.kill(engine.scheduler_pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="was killed by SIGKILL"):
        list(stream)
    assert time.monotonic() - start < SOON
    engine.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        engine.generate(PROMPT)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model_path": "no/such/model.gguf"}, ValueError, "does not exist"),
        ({"model_path": "demo", "page_size": 0}, ValueError, "--page-size"),
        ({"model_path": "demo", "pagesize": 1}, TypeError, "did you mean page_size"),
        ({"model_path": "demo", "nnodes": 2}, TypeError, "one worker uses one device"),
        ({}, TypeError, "needs model_path"),
    ],
)  # fmt: skip
def test_options_that_are_wrong_are_named(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sglang.Engine(**options)


SCRIPT = """
import sys
import sglang

if __name__ == "__main__":
    first = sglang.Engine(model_path="demo", dtype="float32", max_total_tokens=2048)
    second = sglang.Engine(model_path="demo", dtype="float32", max_total_tokens=2048)
    params = {"temperature": 0, "max_new_tokens": 6}
    answers = [engine.generate("The quick brown fox", params) for engine in (first, second)]
    assert answers[0]["output_ids"] == answers[1]["output_ids"]
    pid = first.scheduler_pid
    del first  # dropped, so it ends
    print(pid, second.scheduler_pid, flush=True)
    if "hang" in sys.argv:
        second.generate("a", {"max_new_tokens": 3000, "ignore_eos": True}, stream=False)
    # The second is never shut down.
"""


def test_program_that_shuts_nothing_down_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=GUARD
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(is_alive(int(pid)) for pid in done.stdout.split())


def test_interrupted_program_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, "program.py", "hang"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does, to all of its processes
        _, errors = program.communicate(timeout=SOON)
    finally:
        program.kill()
    assert "KeyboardInterrupt" in errors
    assert not any(is_alive(pid) for pid in pids)


def test_cache_events_are_published_from_a_program_too(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    config = json.dumps({"publisher": "zmq", "endpoint": endpoint})
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(endpoint)
    try:
        with sglang.Engine(**SMALL, page_size=4, kv_events_config=config) as engine:
            engine.generate(input_ids=[504, 3575, 282, 100, 101, 102], sampling_params=GREEDY)
            stored: list[Any] = []
            while not stored:  # the warm-up has left a cleared cache behind
                assert subscriber.poll(1000 * GUARD)
                _, _, payload = subscriber.recv_multipart()
                _, told, *_ = msgspec.msgpack.decode(payload)
                stored = [event for event in told if event[0] == "BlockStored"]
        assert stored[0][3] == [504, 3575, 282, 100]
    finally:
        subscriber.close(linger=0)
        context.term()
