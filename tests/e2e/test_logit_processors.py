"""Custom logit processors over HTTP: by name anywhere, uploaded only where they are allowed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sglang.srt.sampling.custom_logit_processor import (
    CustomLogitProcessor,
    DisallowedTokensLogitsProcessor,
)
from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import Server, call

FORCED = 260


class Forces(CustomLogitProcessor):
    """Forces `token_id`, or breaks as the request says."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or []):
            if len(params["__req__"].output_ids) == params.get("raises_at"):
                raise RuntimeError("gave up")
            logits[row] = -float("inf")
            logits[row, params["token_id"]] = 0.0
        return logits


# The server does not have this module, so the class travels whole.
Forces.__module__ = "__main__"


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("processors")
    flags = ("--dtype", "float32", "--custom-logit-processor")
    with (
        processes.engine(folder, *flags) as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway


def ask(url: str, processor: str, params: dict[str, Any], **sampling: Any) -> tuple[int, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True, **sampling}
    body = {
        "text": "The sea is", "custom_logit_processor": processor,
        "sampling_params": {**sampling, "custom_params": params},
    }  # fmt: skip
    status, reply, _ = call(f"{url}/generate", body)
    return status, reply


def test_a_registered_one_is_used_by_name_on_any_server(pool: Pool) -> None:
    name = DisallowedTokensLogitsProcessor().to_str()
    _, free = ask(pool.url, name, {"token_ids": []})
    banned = free["output_ids"][:2]
    status, reply = ask(pool.url, name, {"token_ids": banned})
    assert status == 200, reply
    assert not set(banned) & set(reply["output_ids"])


def test_params_that_are_wrong_are_the_request_s_mistake(pool: Pool) -> None:
    status, reply = ask(pool.url, "disallowed_tokens", {"token_ids": [10**9]})
    assert status == 400, reply
    assert "custom_params.token_ids must be ids of the vocabulary" in reply["error"]["message"]


def test_an_uploaded_one_needs_the_flag(pool: Pool) -> None:
    status, reply = ask(pool.url, Forces.to_str(), {"token_id": FORCED})
    assert status == 400, reply
    assert "--enable-custom-logit-processor" in reply["error"]["message"]


def test_an_uploaded_one_is_run_where_it_is_allowed(allowing: Server) -> None:
    status, reply = ask(allowing.url, Forces.to_str(), {"token_id": FORCED})
    assert status == 200, reply
    assert reply["output_ids"] == [FORCED] * 6


def test_one_that_raises_costs_its_own_request_alone(allowing: Server) -> None:
    text = Forces.to_str()
    wishes: list[dict[str, Any]] = [{"token_id": 300 + i} for i in range(5)]
    wishes[2]["raises_at"] = 30
    with ThreadPoolExecutor(len(wishes)) as pool:
        given = pool.map(lambda w: ask(allowing.url, text, w, max_new_tokens=60), wishes)
        answers = list(given)
    for index, (status, reply) in enumerate(answers):
        if index == 2:
            assert status == 400, reply
            assert (
                "custom_logit_processor failed: RuntimeError: gave up"
                in (reply["error"]["message"])
            )
        else:
            assert (status, reply["output_ids"]) == (200, [300 + index] * 60)


def test_chat_and_completions_take_one_too(allowing: Server) -> None:
    own = {
        "custom_logit_processor": Forces.to_str(), "custom_params": {"token_id": FORCED},
        "max_tokens": 3,
    }  # fmt: skip
    own["model"] = call(f"{allowing.url}/v1/models")[1]["data"][0]["id"]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    status, told, _ = call(f"{allowing.url}/v1/chat/completions", {**chat, **own})
    assert status == 200, told
    status, completed, _ = call(f"{allowing.url}/v1/completions", {"prompt": "Hi", **own})
    assert status == 200, completed
    text = told["choices"][0]["message"]["content"]
    assert text
    assert completed["choices"][0]["text"] == text
