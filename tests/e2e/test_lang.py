"""The frontend language against `python -m sglang.launch_server --model-path demo`."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import sglang as sgl
from sglang.lang.backend.http_client import EndpointError
from tests.e2e.processes import ROOT, Server, call

PREFIX = "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
BRANCH = "Now, I expand tip {0} into a detailed paragraph:\nTip {0}:"
DETAILS = "Here are these tips with detailed explanation:\n"
TIP_TOKENS, SUMMARY_TOKENS = 12, 8


@pytest.fixture(scope="module")
def backend(server: Server) -> sgl.RuntimeEndpoint:
    return sgl.RuntimeEndpoint(server.url)


@sgl.function
def tips(s, fork_size, max_tokens):
    s += PREFIX
    # Generate detailed tips
    forks = s.fork(fork_size)
    for i in range(fork_size):
        forks[i] += f"Now, I expand tip {i + 1} into a detailed paragraph:\nTip {i + 1}:"
        forks[i] += sgl.gen("detailed_tip", max_tokens, stop=["\n\n"])
    forks.join()

    # Concatenate tips and summarize
    s += "Here are these tips with detailed explanation:\n"
    for i in range(fork_size):
        s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"

    s += "\nIn summary," + sgl.gen("summary", max_tokens=SUMMARY_TOKENS)
    s["told"] = [fork.get_meta_info("detailed_tip") for fork in forks]


def generate(server: Server, text: str, **params):
    body = {"text": text, "sampling_params": {"temperature": 0, **params}}
    status, reply, _ = call(f"{server.url}/generate", body)
    assert status == 200, reply
    return reply


def num_tokens_in_common(server: Server, first: str, second: str) -> int:
    asked = {"prompt": [first, second]}
    status, reply, _ = call(f"{server.url}/tokenize", asked)
    assert status == 200, reply
    return len(os.path.commonprefix(reply["tokens"]))


def tips_by_plain_http(server: Server) -> tuple[list[str], str]:
    """The same program without the language: commit, branch in parallel, join, go on."""
    generate(server, PREFIX, max_new_tokens=0)

    def branch(number: int) -> str:
        text = PREFIX + BRANCH.format(number)
        return generate(server, text, max_new_tokens=TIP_TOKENS, stop=["\n\n"])["text"]

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(branch, (1, 2)))
    text = PREFIX + DETAILS
    for number, answer in enumerate(answers, 1):
        text += f"Tip {number}:" + answer + "\n"
    text += "\nIn summary,"
    return answers, text + generate(server, text, max_new_tokens=SUMMARY_TOKENS)["text"]


def test_branches_compute_only_their_own_part(server: Server, backend) -> None:
    sgl.flush_cache(backend)
    state = tips.run(2, TIP_TOKENS, temperature=0, backend=backend)
    assert state.error() is None
    shared = min(
        num_tokens_in_common(server, PREFIX, PREFIX + BRANCH.format(number)) for number in (1, 2)
    )
    assert shared > 15
    for told in state["told"]:
        assert told["cached_tokens"] >= shared
        assert told["prompt_tokens"] > told["cached_tokens"]


def test_eight_branches_save_seven_eighths_of_a_long_prompt(server: Server, backend) -> None:
    shared_text = " ".join(f"Rule {number} is to be kind." for number in range(250)) + "\n"

    @sgl.function
    def program(s):
        s += shared_text
        forks = s.fork(8)
        forks += lambda i: f"Now apply rule {i}:" + sgl.gen("x", 1)
        forks.join()
        s["told"] = [fork.get_meta_info("x") for fork in forks]

    sgl.flush_cache(backend)
    state = program.run(temperature=0, backend=backend)
    shared = num_tokens_in_common(server, shared_text, shared_text + "Now apply")
    assert shared >= 2000
    hits = sum(told["cached_tokens"] for told in state["told"])
    total = sum(told["prompt_tokens"] for told in state["told"])
    assert hits / total >= 8 * shared / total > 0.98


def test_plain_http_gives_the_same_program(server: Server, backend) -> None:
    state = tips.run(2, TIP_TOKENS, temperature=0, backend=backend)
    answers, text = tips_by_plain_http(server)
    assert state["detailed_tip"] == answers
    assert state.text() == text


def test_the_guide_s_two_programs_say_the_same(server: Server) -> None:
    page = (ROOT / "engine/sglang/lang/README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    said = [
        subprocess.run(
            [sys.executable, "-c", code.replace("localhost:30000", f"127.0.0.1:{server.port}")],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for code in blocks
    ]  # fmt: skip
    assert len(said) == 2
    assert said[0] == said[1]
    assert "In summary," in said[0]


def test_a_prefix_that_was_evicted_is_computed_again(server: Server, backend) -> None:
    @sgl.function
    def program(s):
        s += PREFIX
        forks = s.fork(2)
        sgl.flush_cache(backend)
        forks += lambda i: BRANCH.format(i + 1) + sgl.gen("x", TIP_TOKENS, stop=["\n\n"])
        forks.join()

    state = program.run(temperature=0, backend=backend)
    assert state["x"] == tips_by_plain_http(server)[0]


PROMPT, CHOICES = "Question: what is 2 + 2?\nTo answer this I need a", [" calculator", " horse"]


def mean_logprobs(server: Server) -> list[float]:
    """Of each choice's tokens, from the whole text's logprobs."""
    means = []
    for choice in CHOICES:
        shared = num_tokens_in_common(server, PROMPT, PROMPT + choice)
        body = {
            "text": PROMPT + choice, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 0},
        }  # fmt: skip
        rows = call(f"{server.url}/generate", body)[1]["meta_info"]["input_token_logprobs"]
        values = [row[0] for row in rows[shared:]]
        means.append(sum(values) / len(values))
    return means


@pytest.mark.parametrize("method", ["token_length_normalized", "greedy_token_selection",
                                    "unconditional_likelihood_normalized"])  # fmt: skip
def test_select_scores_the_choices(server: Server, backend, method: str) -> None:
    @sgl.function
    def program(s):
        s += PROMPT + sgl.select("tool", CHOICES, choices_method=getattr(sgl, method))
        if s["tool"] == CHOICES[0]:
            s += ", the"

    state = program.run(backend=backend)
    assert state["tool"] == CHOICES[0]
    assert state.text() == PROMPT + CHOICES[0] + ", the"
    told = state.get_meta_info("tool")["normalized_prompt_logprobs"]
    assert told == pytest.approx(mean_logprobs(server), abs=0.01)


def test_b136_choices_need_no_temperature_anywhere(server: Server, backend) -> None:
    shared = ["Paris", "Paris is", "Paris is the capital of France"]  # different lengths, one start

    @sgl.function
    def program(s):
        s += "The capital of France is" + sgl.gen("free", max_tokens=4)
        s += " In short: " + sgl.gen("short", choices=shared)

    state = program.run(backend=backend)
    scores = state.get_meta_info("short")["normalized_prompt_logprobs"]
    assert state["free"]
    assert len(scores) == len(shared)
    assert state["short"] == shared[scores.index(max(scores))]


@sgl.function
def chat(s, question):
    s += sgl.system("You answer in one short sentence, and you never say more than was asked for.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=10))


QUESTIONS = ["What is the colour of grass?", "What is the colour of the sky?", "How are you?"]


def test_a_stream_is_the_whole_answer_in_pieces(backend) -> None:
    whole = chat.run(QUESTIONS[0], temperature=0, backend=backend)
    streamed = chat.run(QUESTIONS[0], temperature=0, backend=backend, stream=True)
    pieces = list(streamed.text_iter("answer"))
    assert len(pieces) > 3
    assert "".join(pieces) == whole["answer"]
    assert "".join(streamed.text_iter()) == whole.text()


async def test_a_stream_can_be_read_by_asyncio(backend) -> None:
    state = chat.run(QUESTIONS[0], temperature=0, backend=backend, stream=True)
    pairs = [pair async for pair in state.text_async_iter("answer", return_meta_data=True)]
    assert "".join(piece for piece, _ in pairs) == state["answer"]
    assert pairs[-1][1]["completion_tokens"] <= 10


def test_a_batch_shares_its_beginning(backend) -> None:
    sgl.flush_cache(backend)
    states = chat.run_batch(QUESTIONS, temperature=0, backend=backend)
    alone = [chat.run(question, temperature=0, backend=backend) for question in QUESTIONS]
    assert [state["answer"] for state in states] == [state["answer"] for state in alone]
    for state in states:
        told = state.get_meta_info("answer")
        assert told["cached_tokens"] >= 15  # the system's turn, planted before the first run


def test_several_answers_come_back(backend) -> None:
    @sgl.function
    def program(s):
        s += "One, two," + sgl.gen("x", 3, n=2, temperature=1.0)

    state = program.run(backend=backend)
    assert len(state["x"]) == 2
    assert [told["completion_tokens"] for told in state.get_meta_info("x")] == [3, 3]


def test_the_server_s_refusal_reaches_the_program(backend) -> None:
    @sgl.function
    def program(s):
        s += "Hi" + sgl.gen("x", top_p=7.0)

    state = program.run(backend=backend)
    state.sync()
    with pytest.raises(EndpointError, match=r"400: sampling_params\.top_p must be .* got 7"):
        _ = state["x"]
    assert state.text() == "Hi"


def test_an_answer_that_the_server_aborts_is_an_error(server: Server, backend) -> None:
    @sgl.function
    def program(s):
        s += "Count: one," + sgl.gen("x", 4000, ignore_eos=True)

    state = program.run(backend=backend, stream=True)
    pieces = state.text_iter("x")
    next(pieces)
    assert call(f"{server.url}/abort_request", {"abort_all": True})[0] == 200
    with pytest.raises(EndpointError, match="abort"):
        list(pieces)
    assert isinstance(state.error(), EndpointError)


def openai(server: Server, is_chat_model: bool) -> sgl.OpenAI:
    return sgl.OpenAI("demo", is_chat_model, base_url=f"{server.url}/v1", api_key="none")


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_openai_s_api_answers_streamed_and_whole(server: Server, is_chat_model: bool) -> None:
    other = openai(server, is_chat_model)
    whole = chat.run(QUESTIONS[0], temperature=0, backend=other)
    assert whole.error() is None
    streamed = chat.run(QUESTIONS[0], temperature=0, backend=other, stream=True)
    assert "".join(streamed.text_iter("answer")) == whole["answer"]
    told = whole.get_meta_info("answer")
    assert other.token_usage.completion_tokens == 2 * told["completion_tokens"] > 0


def test_openai_s_api_scores_choices_as_the_native_one(server: Server) -> None:
    @sgl.function
    def program(s):
        s += PROMPT + sgl.select("tool", CHOICES)

    state = program.run(backend=openai(server, is_chat_model=False))
    assert state["tool"] == CHOICES[0]
    told = state.get_meta_info("tool")["normalized_prompt_logprobs"]
    assert told == pytest.approx(mean_logprobs(server), abs=0.01)


async def test_a_runtime_serves_and_leaves_nothing_behind() -> None:
    params = {"max_new_tokens": 4, "temperature": 0}
    with sgl.Runtime(model_path="demo", dtype="float32", api_key="key") as runtime:
        family = psutil.Process(runtime.pid).children(recursive=True)
        reply = json.loads(runtime.generate("The sea is", params))
        pieces = [piece async for piece in runtime.async_generate("The sea is", params)]
        assert "".join(pieces) == reply["text"] != ""
        assert chat.run("Hi", backend=runtime)["answer"]
        runtime.cache_prefix("The sea is wide")
        assert runtime.get_server_info()["version"] == sgl.__version__
        assert Path(runtime.endpoint.get_model_name()).exists()
        key = {"authorization": "Bearer key"}
        told = call(f"{runtime.url}/tokenize", {"prompt": "The sea"}, headers=key)[1]
        assert runtime.get_tokenizer().encode("The sea") == told["tokens"]
        for ask in (runtime.start_profile, runtime.stop_profile):
            with pytest.raises(EndpointError, match=f"the server at {runtime.url} has no /"):
                ask()
        with pytest.raises(EndpointError, match="start one with --is-embedding"):
            runtime.encode("x")
        with pytest.raises(EndpointError, match="401"):
            sgl.RuntimeEndpoint(runtime.url, api_key="other")
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
