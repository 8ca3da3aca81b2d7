"""The providers' APIs, up to their packages' client objects."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import sglang as sgl
from sglang.lang.backend.base_backend import import_sdk
from sglang.lang.backend.openai import TokenUsage

IMAGE = "data:image/png;base64,iVBORw=="


class Recorder:
    """A function that remembers its keyword arguments."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **kwargs: Any) -> Any:
        self.calls.append(kwargs)
        return self.replies.pop(0)


@sgl.function
def chat(s, picture=None):
    s += sgl.system("Be brief.")
    s += sgl.user("Hello" if picture is None else sgl.image(picture) + "Hello")
    s += sgl.assistant(sgl.gen("x", stop="\n"))


def run(backend: Any, program: Any = chat, **options: Any) -> Any:
    options = {"temperature": 0.5, "max_new_tokens": 9, **options}
    return program.run(backend=backend, **options)


def usage(prompt: int = 3, completion: int = 2) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=prompt, completion_tokens=completion)


def choice(text: str, reason: str | None = "stop", index: int = 0, logprobs: Any = None) -> Any:
    return SimpleNamespace(
        index=index,
        text=text,
        message=SimpleNamespace(content=text),
        delta=SimpleNamespace(content=text),
        finish_reason=reason,
        logprobs=logprobs,
    )


def completion(*choices: Any, used: Any = None) -> SimpleNamespace:
    return SimpleNamespace(choices=list(choices), usage=used)


def openai_client(*replies: Any) -> tuple[Any, Recorder]:
    create = Recorder(*replies)
    api = SimpleNamespace(create=create)
    return SimpleNamespace(chat=SimpleNamespace(completions=api), completions=api), create


# ------------------------------------------------------------------ OpenAI


def test_openai_chat_sends_messages() -> None:
    client, create = openai_client(completion(choice("Hi"), used=usage()))
    backend = sgl.OpenAI("gpt-9", client=client)
    state = run(backend)
    assert state["x"] == "Hi"
    assert state.get_meta_info("x") == {
        "finish_reason": "stop", "prompt_tokens": 3, "completion_tokens": 2,
    }  # fmt: skip
    assert create.calls == [
        {
            "model": "gpt-9",
            "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
            ],
            "max_completion_tokens": 9, "temperature": 0.5, "top_p": 1.0, "n": 1,
            "frequency_penalty": 0.0, "presence_penalty": 0.0, "stop": ["\n"],
        }
    ]  # fmt: skip
    assert (backend.token_usage.prompt_tokens, backend.token_usage.completion_tokens) == (3, 2)
    backend.token_usage.reset()
    assert backend.token_usage.prompt_tokens == 0


def test_tokens_of_many_threads_are_all_counted() -> None:
    total = TokenUsage()
    other = threading.Thread(target=lambda: total.add(usage()))

    class Slow:
        """Is read while another thread counts too."""

        completion_tokens = 1

        @property
        def prompt_tokens(self) -> int:
            other.start()
            other.join(0.2)
            return 10

    total.add(Slow())
    other.join()
    once = usage()
    assert total.prompt_tokens == 10 + once.prompt_tokens
    assert total.completion_tokens == 1 + once.completion_tokens
    assert total == TokenUsage(total.prompt_tokens, total.completion_tokens)


def test_openai_streams() -> None:
    chunks = [completion(choice("H", None)), completion(choice("i")), completion(used=usage())]
    client, create = openai_client(chunks)
    backend = sgl.OpenAI("gpt-9", client=client)
    state = run(backend, stream=True)
    assert "".join(state.text_iter("x")) == "Hi"
    assert create.calls[0]["stream_options"] == {"include_usage": True}
    assert backend.token_usage.completion_tokens == 2


def test_openai_extensions_are_sent_only_when_asked_for() -> None:
    client, create = openai_client(completion(choice("1")), completion(choice("{}")))

    @sgl.function
    def program(s, schema):
        s += sgl.assistant(sgl.gen("x", min_tokens=2, regex="a", json_schema=schema))

    backend = sgl.OpenAI("ours", client=client)
    run(backend, program, schema=None, top_k=4).sync()
    assert create.calls[0]["extra_body"] == {"top_k": 4, "min_tokens": 2, "regex": "a"}
    run(backend, program, schema='{"type": "object"}').sync()
    wanted = {"name": "answer", "schema": {"type": "object"}}
    assert create.calls[1]["response_format"] == {"type": "json_schema", "json_schema": wanted}


def test_openai_answers_turns_only_from_their_beginning() -> None:
    @sgl.function
    def program(s):
        s += sgl.assistant("I think " + sgl.gen("x"))

    client, create = openai_client()
    error = run(sgl.OpenAI("gpt-9", client=client), program).error()
    assert "sgl.gen must come right after sgl.assistant_begin()" in str(error)
    assert create.calls == []


def test_openai_completions_send_the_text() -> None:
    client, create = openai_client(completion(choice("one"), choice("two"), used=usage()))

    @sgl.function
    def program(s):
        s += "Once" + sgl.gen("x", n=2, return_logprob=True, top_logprobs_num=3)

    state = run(sgl.OpenAI("gpt-3.5-turbo-instruct", client=client), program)
    assert state["x"] == ["one", "two"]
    call = create.calls[0]
    assert (call["prompt"], call["max_tokens"], call["logprobs"]) == ("Once", 9, 3)
    assert "messages" not in call and "extra_body" not in call


@pytest.mark.parametrize(
    "dtype, said, answer", [(int, " 42 apples", "42"), ("float", "-1.5", "-1.5"), (str, "a", '"a"')]
)
def test_openai_types_are_read_from_the_answer(dtype, said: str, answer: str) -> None:
    client, create = openai_client(completion(choice(said)), completion(choice(said)))

    @sgl.function
    def program(s):
        s += "n=" + sgl.gen("x", dtype=dtype)

    backend = sgl.OpenAI("ours", is_chat_model=False, client=client)
    assert run(backend, program)["x"] == answer
    assert list(run(backend, program, stream=True).text_iter("x")) == [answer]
    assert create.calls[0]["prompt"] == ('n="' if dtype is str else "n=")
    assert create.calls[0]["stop"] == (['"'] if dtype is str else [" ", "\n"])


def test_openai_wrong_types_are_errors() -> None:
    @sgl.function
    def program(s, dtype):
        s += "n=" + sgl.gen("x", dtype=dtype)

    client, _ = openai_client(completion(choice("none")))
    backend = sgl.OpenAI("ours", is_chat_model=False, client=client)
    assert "answered 'none' where the program wants a int" in str(
        run(backend, program, dtype=int).error()
    )
    assert "int, float or str" in str(run(backend, program, dtype=bool).error())


def test_openai_select_scores_echoed_prompts() -> None:
    def echoed(index: int, *tokens: tuple[float | None, str]) -> Any:
        logprobs = SimpleNamespace(
            token_logprobs=[value for value, _ in tokens], tokens=[text for _, text in tokens]
        )
        return choice("", index=index, logprobs=logprobs)

    behind = completion(
        echoed(1, (None, "A:"), (-1.0, " yes"), (-7.0, "!")),
        echoed(0, (None, "A:"), (-5.0, " n"), (-5.0, "o"), (-7.0, "!")),
        used=usage(),
    )
    alone = completion(
        echoed(0, (None, " n"), (-1.0, "o"), (-7.0, "!")), echoed(1, (None, " yes"), (-7.0, "!"))
    )
    client, create = openai_client(behind, alone)

    @sgl.function
    def program(s):
        method = sgl.unconditional_likelihood_normalized
        s += "A: " + sgl.select("x", ["no", "yes"], choices_method=method)

    state = run(sgl.OpenAI("ours", is_chat_model=False, client=client), program)
    assert state["x"] == "yes"
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == [-5.0, -1.0]
    gains = state.get_meta_info("x")["normalized_unconditional_prompt_logprobs"]
    assert gains == [-4.5, -1.0]
    first, second = create.calls
    assert first == {
        "model": "ours", "prompt": ["A: no", "A: yes"], "max_tokens": 1, "temperature": 0,
        "echo": True, "logprobs": 1,
    }  # fmt: skip
    assert second["prompt"] == [" no", " yes"]


def test_openai_chat_models_cannot_select() -> None:
    @sgl.function
    def program(s):
        s += sgl.assistant(sgl.select("x", ["a", "b"]))

    client, _ = openai_client()
    assert "completion model" in str(run(sgl.OpenAI("gpt-9", client=client), program).error())


def test_openai_builds_the_package_s_client() -> None:
    backend = sgl.OpenAI("gpt-9", api_key="k", base_url="http://server/v1", timeout=5)
    assert str(backend.client.base_url) == "http://server/v1/"
    azure = sgl.OpenAI(
        "gpt-9", is_azure=True, api_key="k", azure_endpoint="http://a", api_version="1"
    )
    assert type(azure.client).__name__ == "AzureOpenAI"


def test_crusoe_is_openai_at_another_address() -> None:
    backend = sgl.Crusoe("org/model", api_key="k")
    assert str(backend.client.base_url) == "https://api.inference.crusoecloud.com/v1/"
    assert backend.is_chat_model
    assert str(sgl.Crusoe("m", "k", "http://b/v1").client.base_url) == "http://b/v1/"
    client, _ = openai_client(completion(choice("Hi")))
    assert run(sgl.Crusoe("m", client=client))["x"] == "Hi"
    with pytest.raises(ValueError, match="Crusoe needs api_key"):
        sgl.Crusoe("m")


# ------------------------------------------------------------------ Anthropic


class FakeStream:
    """The package's stream: a context manager with pieces and a final message."""

    def __init__(self, pieces: list[str], final: Any) -> None:
        self.text_stream = pieces
        self._final = final

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.text_stream = []

    def get_final_message(self) -> Any:
        return self._final


MESSAGE = SimpleNamespace(
    content=[SimpleNamespace(type="text", text="H"), SimpleNamespace(type="other")]
    + [SimpleNamespace(type="text", text="i")],
    stop_reason="end_turn",
    usage=SimpleNamespace(input_tokens=3, output_tokens=2),
)


def test_anthropic_takes_the_system_apart() -> None:
    create = Recorder(MESSAGE)
    client = SimpleNamespace(messages=SimpleNamespace(create=create))
    state = run(sgl.Anthropic("claude-x", client=client), top_k=5)
    assert state["x"] == "Hi"
    assert state.get_meta_info("x")["completion_tokens"] == 2
    assert create.calls == [
        {
            "model": "claude-x", "messages": [{"role": "user", "content": "Hello"}],
            "system": "Be brief.", "max_tokens": 9, "stop_sequences": ["\n"],
            "extra_body": {"temperature": 0.5, "top_k": 5},
        }
    ]  # fmt: skip


def test_anthropic_streams() -> None:
    stream = Recorder(FakeStream(["H", "i"], MESSAGE))
    client = SimpleNamespace(messages=SimpleNamespace(stream=stream))
    state = run(sgl.Anthropic("claude-x", client=client), stream=True)
    assert "".join(state.text_iter("x")) == "Hi"
    assert state.get_meta_info("x")["finish_reason"] == "end_turn"


def test_anthropic_takes_images() -> None:
    create = Recorder(MESSAGE, MESSAGE)
    client = SimpleNamespace(messages=SimpleNamespace(create=create))
    backend = sgl.Anthropic("claude-x", client=client)
    run(backend, picture=IMAGE).sync()
    run(backend, picture="https://host/a.png").sync()
    first, second = (call["messages"][0]["content"] for call in create.calls)
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert first == [{"type": "text", "text": "Hello"}, {"type": "image", "source": source}]
    assert second[1]["source"] == {"type": "url", "url": "https://host/a.png"}


def test_anthropic_needs_a_user() -> None:
    @sgl.function
    def program(s):
        s += sgl.assistant(sgl.gen("x"))

    client = SimpleNamespace(messages=SimpleNamespace())
    assert "turn of the user" in str(run(sgl.Anthropic("c", client=client), program).error())


# ------------------------------------------------------------------ LiteLLM


def test_litellm_sends_messages_and_its_own_options() -> None:
    call = Recorder(completion(choice("Hi"), used=usage()))
    backend = sgl.LiteLLM("some/model", client=SimpleNamespace(completion=call), api_base="b")
    assert run(backend)["x"] == "Hi"
    assert call.calls == [
        {
            "model": "some/model", "max_tokens": 9, "temperature": 0.5, "stop": ["\n"],
            "api_base": "b",
            "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
            ],
        }
    ]  # fmt: skip


def test_litellm_streams() -> None:
    call = Recorder([completion(choice("H", None)), completion(choice("i"))])
    backend = sgl.LiteLLM("some/model", client=SimpleNamespace(completion=call))
    assert "".join(run(backend, stream=True).text_iter("x")) == "Hi"
    assert call.calls[0]["stream"] is True


# ------------------------------------------------------------------ Vertex AI


def gemini(text: str) -> SimpleNamespace:
    counts = SimpleNamespace(prompt_token_count=3, candidates_token_count=2)
    return SimpleNamespace(text=text, usage_metadata=counts)


def test_vertexai_sends_contents_and_a_configuration() -> None:
    generate = Recorder(gemini("Hi"), gemini("Hi"))
    client = SimpleNamespace(models=SimpleNamespace(generate_content=generate))
    backend = sgl.VertexAI("gemini-x", safety_settings=[{"category": "c"}], client=client)
    assert run(backend)["x"] == "Hi"
    assert generate.calls == [
        {
            "model": "gemini-x",
            "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
            "config": {
                "max_output_tokens": 9, "temperature": 0.5, "stop_sequences": ["\n"],
                "system_instruction": "Be brief.", "safety_settings": [{"category": "c"}],
            },
        }
    ]  # fmt: skip
    run(backend, picture=IMAGE).sync()
    parts = generate.calls[1]["contents"][0]["parts"]
    assert parts[1] == {"inline_data": {"mime_type": "image/png", "data": b"\x89PNG"}}


def test_vertexai_streams() -> None:
    generate = Recorder([gemini("H"), gemini("i")])
    client = SimpleNamespace(models=SimpleNamespace(generate_content_stream=generate))
    state = run(sgl.VertexAI("gemini-x", client=client), stream=True)
    assert "".join(state.text_iter("x")) == "Hi"
    assert state.get_meta_info("x") == {"prompt_tokens": 3, "completion_tokens": 2}


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", ["Anthropic", "LiteLLM", "VertexAI", "OpenAI"])
def test_what_a_provider_does_not_have_is_refused(name: str) -> None:
    backend = getattr(sgl, name)("model", client=SimpleNamespace())
    error = run(backend, logprob_start_len=3).error()
    assert f"{name} has no logprob_start_len=3; allowed: max_new_tokens" in str(error)


@pytest.mark.parametrize(
    "name, module, package",
    [
        ("OpenAI", "openai", "openai"),
        ("Anthropic", "anthropic", "anthropic"),
        ("LiteLLM", "litellm", "litellm"),
        ("VertexAI", "google.genai", "google-genai"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, name: str, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with pytest.raises(ImportError, match=f"the {name} backend needs .* pip install {package}"):
        getattr(sgl, name)("model")


def test_the_package_s_module_is_imported_by_its_name() -> None:
    assert import_sdk("json", "json", "Any").dumps(1) == "1"


@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "LiteLLM", "VertexAI"])
def test_backends_name_their_model(name: str) -> None:
    assert getattr(sgl, name)("model", client=SimpleNamespace()).get_model_name() == "model"
