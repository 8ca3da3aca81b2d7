"""Roles as text."""

from itertools import pairwise

import pytest

from sglang.lang.chat_template import get_chat_template, get_chat_template_by_model_path

NAMES = """
    default claude chatml chatml-llava qwen qwen2-vl vicuna_v1.1 llama-2-chat mistral
    llama-3-instruct llama-3-instruct-llava llama-4 minicpmv minicpmo janus janus-pro yi-1.5 yi-vl
    gemma-it dbrx-instruct c4ai-command-r internvl-2-5 interns1 granite-3-instruct deepseek-v3
    glm-4v
"""
TURNS = [
    {"role": "system", "content": "sys-0"},
    {"role": "user", "content": "user-1"},
    {"role": "assistant", "content": "model-2"},
    {"role": "user", "content": "user-3"},
]


@pytest.mark.parametrize("name", NAMES.split())
def test_every_documented_template_keeps_the_turns_apart(name: str) -> None:
    template = get_chat_template(name)
    assert template.name == name
    text = template.get_prompt(TURNS)
    places = [text.index(turn["content"]) for turn in TURNS]
    assert places == sorted(places)
    for turn, following in pairwise(TURNS):  # something stands between the model and the user
        if {turn["role"], following["role"]} == {"user", "assistant"}:
            assert turn["content"] + following["content"] not in text


@pytest.mark.parametrize(
    "path, name",
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-instruct"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen"),
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("google/gemma-2-2b-it", "gemma-it"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/Janus-Pro-7B", "janus-pro"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("ibm-granite/granite-3.0-8b-instruct", "granite-3-instruct"),
        ("openai-community/gpt2", "default"),
    ],
)
def test_the_template_follows_from_the_model_s_path(path: str, name: str) -> None:
    assert get_chat_template_by_model_path(path).name == name


def test_llama_2_puts_the_system_into_the_first_turn() -> None:
    text = get_chat_template("llama-2-chat").get_prompt(TURNS)
    assert (
        text
        == "[INST] <<SYS>>\nsys-0\n<</SYS>>\n\nuser-1 [/INST]model-2 </s><s>[INST] user-3 [/INST]"
    )
    assert get_chat_template("llama-2-chat").get_prompt(TURNS[1:2]) == "[INST] user-1 [/INST]"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown chat template 'nobody'; allowed: .*chatml"):
        get_chat_template("nobody")
