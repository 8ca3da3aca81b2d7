"""What travels to our server and how its answers are read."""

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

import certifi
import httpx
import pytest

import sglang as sgl
from sglang.lang.backend.http_client import EndpointError, HttpClient
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint, tokens_of_choice

INFO = {"model_path": "models/SmolLM2-135M-Instruct", "served_model_name": "demo"}
KEY = "a-secret-key"


def reply(text: str = "answer", **meta: Any) -> dict[str, Any]:
    info = {"prompt_tokens": 4, "finish_reason": {"type": "stop", "matched": 2}, **meta}
    return {"text": text, "meta_info": info}


class Server:
    """`handle(path, body)` gives what is answered: JSON, or a whole response."""

    def __init__(self, handle: Callable[[str, Any], Any] = lambda path, body: reply()) -> None:
        self.handle = handle
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[httpx.Headers] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.headers.append(request.headers)
        if request.url.path == "/get_model_info":
            return httpx.Response(200, json=INFO)
        self.requests.append((request.method, request.url.path, body))
        answer = self.handle(request.url.path, body)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.requests]


def endpoint(server: Server, **options: Any) -> RuntimeEndpoint:
    return RuntimeEndpoint("http://server/", transport=httpx.MockTransport(server), **options)


def run(server: Server, *exprs: Any, stream: bool = False, **options: Any) -> Any:
    @sgl.function
    def program(s):
        for expr in exprs:
            s += expr

    return program.run(backend=endpoint(server), stream=stream, **options)


def test_the_model_s_path_chooses_the_template() -> None:
    backend = endpoint(Server())
    assert backend.get_chat_template().name == "chatml"
    assert backend.get_model_name() == INFO["model_path"]
    assert endpoint(Server(), chat_template_name="qwen").get_chat_template().name == "qwen"


def test_an_answer_is_asked_for_with_the_whole_text() -> None:
    server = Server()
    state = run(server, "Once ", sgl.gen("x", 5, stop="\n", regex="a+"), temperature=0)
    assert state["x"] == "answer"
    assert state.get_meta_info("x")["prompt_tokens"] == 4
    assert server.requests == [
        (
            "POST",
            "/generate",
            {
                "text": "Once ",
                "sampling_params": {
                    "skip_special_tokens": True, "spaces_between_special_tokens": True,
                    "max_new_tokens": 5, "min_new_tokens": 0, "n": 1,
                    "stop": ["\n", "<|im_end|>"], "stop_token_ids": None, "stop_regex": None,
                    "temperature": 0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                    "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": False,
                    "regex": "a+", "json_schema": None,
                },
            },
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "value", "name"),
    [
        ("max_tokens", 7, "max_new_tokens"),
        ("min_tokens", 3, "min_new_tokens"),
        ("n", 2, "n"),
        ("stop_token_ids", [4, 5], "stop_token_ids"),
        ("stop_regex", "a+", "stop_regex"),
        ("temperature", 0.25, "temperature"),
        ("top_p", 0.5, "top_p"),
        ("top_k", 9, "top_k"),
        ("min_p", 0.125, "min_p"),
        ("frequency_penalty", 0.75, "frequency_penalty"),
        ("presence_penalty", -0.5, "presence_penalty"),
        ("ignore_eos", True, "ignore_eos"),
        ("regex", "b*", "regex"),
        ("json_schema", "{}", "json_schema"),
    ],
)
def test_b137_each_sampling_argument_arrives_under_its_name(argument, value, name: str) -> None:
    plain, server = Server(), Server()
    run(plain, "x", sgl.gen("a")).sync()
    run(server, "x", sgl.gen("a", **{argument: value})).sync()
    before, after = (s.bodies[0]["sampling_params"] for s in (plain, server))
    assert {key: after[key] for key in after if after[key] != before[key]} == {name: value}


def test_b137_an_argument_that_does_not_exist_raises() -> None:
    with pytest.raises(TypeError, match="temprature"):
        sgl.gen("a", temprature=0.5)  # type: ignore[call-arg]


def test_logprobs_are_asked_for_by_name() -> None:
    server = Server()
    run(
        server,
        "x",
        sgl.gen("a", top_logprobs_num=2),
        return_logprob=True, logprob_start_len=0, return_text_in_logprobs=True,
    ).sync()  # fmt: skip
    body = server.bodies[0]
    names = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
    assert [body[name] for name in names] == [True, 0, 2, True]


@pytest.mark.parametrize(
    "dtype, regex, stops",
    [
        (int, r"[-+]?[0-9]+[ \n]*", [" ", "\n"]),
        ("float", r"[-+]?[0-9]*\.?[0-9]+[ \n]*", [" ", "\n"]),
        (bool, "(True|False)", []),
        (str, r"\"[\w\d\s]*\"", []),
    ],
)
def test_a_type_becomes_a_regular_expression(dtype, regex: str, stops: list[str]) -> None:
    server = Server()
    run(server, "x", sgl.gen("a", dtype=dtype)).sync()
    params = server.bodies[0]["sampling_params"]
    assert params["regex"] == regex
    assert params["stop"] == ["<|im_end|>", *stops]


def test_an_unknown_type_is_refused() -> None:
    error = run(Server(), "x", sgl.gen("a", dtype=list)).error()
    assert "dtype must be one of int, float, bool, str" in str(error)


def test_no_request_carries_a_session_or_a_key_of_the_cache() -> None:
    server = Server()

    @sgl.function
    def program(s):
        s += "shared"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join()

    program.run(backend=endpoint(server)).sync()
    commit, *branches = server.bodies
    assert commit == {"text": "shared", "sampling_params": {"max_new_tokens": 0}}
    assert sorted(body["text"] for body in branches) == ["shared0", "shared1"]
    assert all(set(body) == {"text", "sampling_params"} for body in server.bodies)


def test_a_commit_that_fails_is_an_error() -> None:
    refusal = httpx.Response(503, json={"error": {"message": "no worker"}})

    @sgl.function
    def program(s):
        s += "shared"
        s.fork(2)

    with pytest.raises(EndpointError, match="503: no worker"):
        program.run(backend=endpoint(Server(lambda path, body: refusal)))


def test_several_answers_come_as_a_list() -> None:
    state = run(Server(lambda path, body: [reply("one"), reply("two")]), "x", sgl.gen("a", n=2))
    assert state["a"] == ["one", "two"]
    assert len(state.get_meta_info("a")) == 2
    assert state.text() == "xone"


def stream_of(*events: Any, done: bool = True) -> httpx.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    text = ": comment\n\n" + "".join(lines) + ("data: [DONE]\n\n" if done else "")
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def test_cumulative_events_become_pieces() -> None:
    server = Server(lambda path, body: stream_of(reply("He"), reply("Hello"), reply("Hello you")))
    state = run(server, "x", sgl.gen("a"), stream=True)
    assert "".join(state.text_iter("a")) == "Hello you"
    assert server.bodies[0]["stream"] is True


@pytest.mark.parametrize(
    "response, error",
    [
        (lambda: stream_of(reply("He"), done=False), "the stream broke off"),
        (lambda: stream_of(reply("He"), {"error": {"message": "worker died"}}), "worker died"),
        (
            lambda: stream_of(reply("He", finish_reason={"type": "abort", "message": "by admin"})),
            "aborted the request: by admin",
        ),
        (lambda: httpx.Response(400, json={"error": {"message": "bad"}}), "400: bad"),
    ],
)
def test_streams_that_fail_raise(response, error: str) -> None:
    state = run(Server(lambda path, body: response()), "x", sgl.gen("a"), stream=True)
    with pytest.raises(EndpointError, match=error):
        list(state.text_iter())


@pytest.mark.parametrize(
    "response, error, status",
    [
        (httpx.Response(400, json={"error": {"message": "top_p is 2"}}), "400: top_p is 2", 400),
        (httpx.Response(401, json={"error": "Unauthorized"}), "401: Unauthorized", 401),
        (httpx.Response(502, text="plain words"), "502: plain words", 502),
        (httpx.Response(500), "500: no reason given", 500),
        (reply("", finish_reason={"type": "abort", "message": "gone"}), "aborted .*: gone", None),
    ],
)
def test_the_server_s_own_words_reach_the_program(response, error: str, status) -> None:
    state = run(Server(lambda path, body: response), "x", sgl.gen("a"))
    with pytest.raises(EndpointError, match=error) as raised:
        _ = state["a"]
    assert raised.value.status == status
    assert state.error() is raised.value


@pytest.mark.parametrize(
    "failure, error",
    [
        (httpx.ReadTimeout("t"), "http://server/generate: the server was silent for 5 s"),
        (httpx.ConnectError("refused"), "http://server/generate: refused"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_does_not_answer_is_an_error(failure, error: str, stream: bool) -> None:
    def fail(path: str, body: Any) -> Any:
        raise failure

    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a")

    state = program.run(backend=endpoint(Server(fail), timeout=5), stream=stream)
    with pytest.raises(EndpointError, match=error):
        list(state.text_iter())


def test_another_kind_of_server_is_refused_at_once() -> None:
    def other(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="hello")

    with pytest.raises(EndpointError, match="no server of the native API"):
        RuntimeEndpoint("http://server", transport=httpx.MockTransport(other))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_server_on_this_machine_is_not_asked_through_a_proxy(monkeypatch, host: str) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nothing listens there

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(INFO).encode())

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.handle_request)
        thread.start()
        backend = RuntimeEndpoint(f"http://{host}:{listener.server_port}", timeout=20)
        thread.join()
    assert backend.model_info == INFO
    backend.shutdown()


@pytest.mark.parametrize("host", ["[::1]", "[::]", "127.0.1.1"])
def test_every_address_of_this_machine_is_asked_directly(host: str) -> None:
    assert HttpClient(f"http://{host}:1")._client.trust_env is False


@pytest.mark.parametrize("host", ["server", "10.0.0.1", "[2001:db8::1]"])
def test_others_are_asked_as_the_environment_says(host: str) -> None:
    assert HttpClient(f"http://{host}:1")._client.trust_env is True


def test_certificates_come_from_a_file_or_are_not_checked() -> None:
    for verify in (certifi.where(), False, True):
        assert endpoint(Server(), verify=verify).model_info == INFO
    with pytest.raises(FileNotFoundError):
        endpoint(Server(), verify="/no/such/file.pem")


def test_waits_are_bounded() -> None:
    bounds = endpoint(Server())._http._client.timeout
    assert (bounds.read, bounds.write, bounds.connect) == (600.0, 600.0, 10.0)


def test_the_key_is_in_the_header_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    refusal = httpx.Response(400, json={"error": {"message": "no"}})
    server = Server(lambda path, body: refusal)
    with caplog.at_level("DEBUG"):
        backend = endpoint(server, api_key=KEY)
        with pytest.raises(EndpointError) as raised:
            backend.flush_cache()
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY not in repr(backend) + str(raised.value) + caplog.text
    assert "authorization" not in endpoint(Server())._http._client.headers


def test_images_travel_with_every_request() -> None:
    server = Server(select_server)
    picture = sgl.image(b"GIF8")
    state = run(server, picture, sgl.gen("a"), sgl.select("b", ["yes", "no"]))
    state.sync()
    uri = "data:image/gif;base64,R0lGOA=="
    assert [body["image_data"] for body in server.bodies] == [[uri], [uri], [[uri], [uri]]]


def select_server(path: str, body: Any) -> Any:
    """Scores `yes` above `no`, as tokens of their own behind the prompt's last two."""
    if "input_ids" in body:
        return [reply("", input_token_logprobs=[[None, 1, None]]) for _ in body["input_ids"]]
    if not isinstance(body["text"], list):
        return reply()
    scored = []
    for text in body["text"]:
        choice = "yes" if text.endswith("yes") else "no"
        rows = [[None, 8, "it"], [-9.0, 9, "?"], [-1.0 if choice == "yes" else -2.0, 5, choice]]
        scored.append(reply("", input_token_logprobs=rows, output_token_logprobs=[]))
    return scored


@pytest.mark.parametrize(
    "method, calls",
    [
        (sgl.token_length_normalized, 2),
        (sgl.greedy_token_selection, 2),
        (sgl.unconditional_likelihood_normalized, 3),
    ],
)
def test_choices_are_scored_behind_the_planted_prompt(method, calls: int) -> None:
    server = Server(select_server)
    state = run(server, "Is it?", sgl.select("x", ["no", "yes"], choices_method=method))
    assert state["x"] == "yes"
    assert state.text() == "Is it?yes"
    meta = state.get_meta_info("x")
    assert meta["normalized_prompt_logprobs"] == [-2.0, -1.0]
    plant, score, *alone = server.bodies
    assert plant == {"text": "Is it?", "sampling_params": {"max_new_tokens": 0}}
    assert score == {
        "text": ["Is it?no", "Is it?yes"],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True, "return_text_in_logprobs": True, "logprob_start_len": 2,
    }  # fmt: skip
    assert len(server.bodies) == calls
    for body in alone:
        assert (body["input_ids"], body["logprob_start_len"]) == ([[5], [5]], 0)


def test_select_wants_no_temperature() -> None:
    state = run(Server(), "x", sgl.select("y", ["a"], temperature=0.5))
    assert "at most 1e-05, got 0.5" in str(state.error())


@pytest.mark.parametrize(
    "texts, choice, left",
    [
        (["A", ":", "yes"], "yes", ["yes"]),
        (["A:", " yes"], "yes", [" yes"]),  # the prompt's blank went into the choice's token
        ([":", "ye", "s"], "yes", ["ye", "s"]),
        (["A", ":", "\ufffd", "\ufffd"], "é", ["\ufffd", "\ufffd"]),  # half characters
    ],
)
def test_only_tokens_of_the_choice_count(texts, choice: str, left: list[str]) -> None:
    tokens = [[-1.0, 0, text] for text in texts]
    assert [token[2] for token in tokens_of_choice(tokens, choice, 2)] == left


def test_administration_has_its_paths() -> None:
    server = Server(lambda path, body: {"version": "1"} if path == "/server_info" else "ok")
    backend = endpoint(server)
    sgl.flush_cache(backend)
    assert sgl.get_server_info(backend) == {"version": "1"}
    backend.start_profile()
    backend.stop_profile()
    backend.shutdown()
    assert [(method, path) for method, path, _ in server.requests] == [
        ("POST", "/flush_cache"),
        ("GET", "/server_info"),
        ("GET", "/start_profile"),
        ("GET", "/stop_profile"),
    ]


OPTIONAL = {
    "/flush_cache": lambda backend: backend.flush_cache(),
    "/server_info": lambda backend: backend.get_server_info(),
    "/start_profile": lambda backend: backend.start_profile(),
    "/stop_profile": lambda backend: backend.stop_profile(),
    "/encode": lambda backend: backend.encode("text"),
}


@pytest.mark.parametrize("path", OPTIONAL)
def test_a_path_that_the_server_lacks_is_one_sentence(path: str) -> None:
    lacking = httpx.Response(404, json={"detail": "Not Found"})
    with pytest.raises(EndpointError) as raised:
        OPTIONAL[path](endpoint(Server(lambda asked, body: lacking)))
    assert str(raised.value) == (
        f"the server at http://server has no {path}; not every server of this API does"
    )
    assert raised.value.status == 404


def test_other_refusals_of_such_a_path_keep_their_words() -> None:
    busy = httpx.Response(409, json={"error": {"message": "already profiling"}})
    with pytest.raises(EndpointError, match="409: already profiling"):
        endpoint(Server(lambda path, body: busy)).start_profile()


def test_a_404_of_what_every_server_has_keeps_its_words() -> None:
    unknown = httpx.Response(404, json={"error": {"message": "no such model"}})
    state = run(Server(lambda path, body: unknown), "x", sgl.gen("a"))
    assert "/generate was answered 404: no such model" in str(state.error())
