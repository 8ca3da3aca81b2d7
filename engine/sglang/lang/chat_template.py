"""How roles become text, for servers that are sent plain prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """Texts around the content of each role."""

    name: str
    role_prefix_and_suffix: Mapping[str, tuple[str, str]]
    default_system_prompt: str | None = None
    # Strings that end an answer, besides those a program gives.
    stop_str: tuple[str, ...] = ()
    image_token: str = "<image>"
    # Parts of model paths, in lower case, that this template belongs to. A tuple: all of them.
    matches: tuple[str | tuple[str, ...], ...] = field(default=())
    # The system's text stands inside the first user turn.
    system_in_first_turn: bool = False

    def get_prefix_and_suffix(self, role: str, hist_messages: Sequence[Message]) -> tuple[str, str]:
        """The texts around the content of the next turn, after the turns in `hist_messages`."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.system_in_first_turn and role == "user":
            follows_system = [m["role"] for m in hist_messages] == ["system"]
            return ("" if follows_system else prefix), suffix
        return prefix, suffix

    def get_prompt(self, messages: Sequence[Message]) -> str:
        """All turns as one text."""
        parts: list[str] = []
        seen: list[Message] = []
        for message in messages:
            content = message["content"]
            if message["role"] == "system" and not content:
                content = self.default_system_prompt or ""
            prefix, suffix = self.get_prefix_and_suffix(message["role"], seen)
            parts += [prefix, content, suffix]
            seen.append(message)
        return "".join(parts)

    def fits(self, model_path: str) -> bool:
        path = model_path.lower()
        groups = (words if isinstance(words, tuple) else (words,) for words in self.matches)
        return any(all(word in path for word in group) for group in groups)


def _chatml(name: str, system: str | None = None, **options: Any) -> ChatTemplate:
    turns = {
        role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant")
    }
    return ChatTemplate(name, turns, system, stop_str=("<|im_end|>",), **options)


def _llama_3(name: str, **options: Any) -> ChatTemplate:
    turns = {
        role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>")
        for role in ("system", "user", "assistant")
    }
    return ChatTemplate(name, turns, stop_str=("<|eot_id|>",), **options)


_QWEN_SYSTEM = "You are a helpful assistant."
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"

# The first that fits a model path is taken, so the special ones stand before the general.
_TEMPLATES = (
    ChatTemplate(
        "default",
        {"system": ("SYSTEM:", "\n"), "user": ("USER:", "\n"), "assistant": ("ASSISTANT:", "\n")},
    ),
    ChatTemplate(
        "claude",
        {"system": ("", ""), "user": ("\n\nHuman: ", ""), "assistant": ("\n\nAssistant:", "")},
    ),
    _chatml(
        "chatml-llava",
        "Answer the questions.",
        image_token="<image>\n",
        matches=(("llava", "34b"), "llava-next-video-34b", "llava-onevision-qwen2"),
    ),
    _chatml(
        "qwen2-vl",
        _QWEN_SYSTEM,
        image_token=_QWEN_IMAGE,
        matches=("qwen2-vl", "qwen2.5-vl", "qwen3-vl"),
    ),
    _chatml("minicpmv", None, image_token="(<image>./</image>)", matches=("minicpm-v", "minicpmv")),
    _chatml("minicpmo", None, image_token="(<image>./</image>)", matches=("minicpm-o", "minicpmo")),
    _chatml("internvl-2-5", None, image_token="<IMG_CONTEXT>", matches=("internvl",)),
    _chatml("interns1", None, image_token="<IMG_CONTEXT>", matches=("intern-s1", "interns1")),
    _chatml("qwen", _QWEN_SYSTEM, matches=(("qwen", "chat"), ("qwen", "instruct"))),
    _chatml("yi-1.5", None, matches=(("yi-1.5", "chat"),)),
    ChatTemplate(
        "yi-vl",
        {
            "system": ("", "\n\n"),
            "user": ("### Human:", "\n"),
            "assistant": ("### Assistant:", "\n"),
        },
        default_system_prompt=(
            "This is a chat between an inquisitive human and an AI assistant. Assume the role of "
            "the AI assistant. Read all the images carefully, and respond to the human's "
            "questions with informative, helpful, detailed and polite answers."
        ),
        stop_str=("### Human:",),
        image_token=" <image_placeholder>\n",
        matches=("yi-vl",),
    ),
    _chatml("chatml", None, matches=("chatml", "smollm", "dolphin")),
    ChatTemplate(
        "vicuna_v1.1",
        {"system": ("", " "), "user": ("USER:", " "), "assistant": ("ASSISTANT:", "</s>")},
        default_system_prompt=(
            "A chat between a curious user and an artificial intelligence assistant. The "
            "assistant gives helpful, detailed, and polite answers to the user's questions."
        ),
        stop_str=("USER:",),
        image_token=" <image>\n",
        matches=("vicuna", "llava-v1.5", "llava-next-video-7b"),
    ),
    ChatTemplate(
        "llama-2-chat",
        {
            "system": ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        system_in_first_turn=True,
        matches=(("llama-2", "chat"), ("codellama", "instruct")),
    ),
    ChatTemplate(
        "mistral",
        {
            "system": ("[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        stop_str=("</s>",),
        image_token="[IMG]",
        matches=("pixtral", ("mistral", "instruct"), ("mixtral", "instruct")),
    ),
    _llama_3(
        "llama-3-instruct-llava",
        image_token="<image>\n",
        matches=(("llava", "llama3"), ("llava", "llama-3")),
    ),
    ChatTemplate(
        "llama-4",
        {
            role: (f"<|header_start|>{role}<|header_end|>\n\n", "<|eot|>")
            for role in ("system", "user", "assistant")
        },
        stop_str=("<|eot|>",),
        image_token="<|image|>",
        matches=("llama-4", "llama4"),
    ),
    _llama_3(
        "llama-3-instruct",
        image_token="<|image|>",
        matches=(("llama-3", "instruct"), ("llama3", "instruct")),
    ),
    ChatTemplate(
        "janus-pro",
        {
            "system": ("", "\n\n"),
            "user": ("<|User|>: ", "\n\n"),
            "assistant": ("<|Assistant|>: ", "<｜end▁of▁sentence｜>"),
        },
        stop_str=("<｜end▁of▁sentence｜>",),
        image_token="<image_placeholder>\n",
        matches=("janus-pro",),
    ),
    ChatTemplate(
        "janus",
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "\n\n"),
            "assistant": ("Assistant: ", "<｜end▁of▁sentence｜>"),
        },
        stop_str=("<｜end▁of▁sentence｜>",),
        image_token="<image_placeholder>\n",
        matches=("janus",),
    ),
    ChatTemplate(
        "gemma-it",
        {
            "system": ("", "\n\n"),
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
        stop_str=("<end_of_turn>",),
        image_token="<start_of_image>",
        matches=(("gemma", "it"),),
    ),
    _chatml("dbrx-instruct", None, matches=(("dbrx", "instruct"),)),
    ChatTemplate(
        "c4ai-command-r",
        {
            "system": ("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            "user": ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            "assistant": ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        },
        stop_str=("<|END_OF_TURN_TOKEN|>",),
        matches=("c4ai-command-r",),
    ),
    ChatTemplate(
        "granite-3-instruct",
        {
            role: (f"<|start_of_role|>{role}<|end_of_role|>", "<|end_of_text|>\n")
            for role in ("system", "user", "assistant")
        },
        stop_str=("<|end_of_text|>",),
        matches=(("granite", "instruct"),),
    ),
    ChatTemplate(
        "deepseek-v3",
        {
            "system": ("", ""),
            "user": ("<｜User｜>", ""),
            "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        },
        stop_str=("<｜end▁of▁sentence｜>",),
        matches=("deepseek-v3", "deepseek-r1"),
    ),
    ChatTemplate(
        "glm-4v",
        {
            "system": ("<|system|>\n", ""),
            "user": ("<|user|>\n", ""),
            "assistant": ("<|assistant|>\n", ""),
        },
        stop_str=("<|user|>", "<|observation|>"),
        image_token="<|begin_of_image|><|image|><|end_of_image|>",
        matches=("glm-4v", "glm-4.1v", "glm-4.5v"),
    ),
)
_BY_NAME = {template.name: template for template in _TEMPLATES}


def get_chat_template(name: str) -> ChatTemplate:
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ValueError(
            f"unknown chat template {name!r}; allowed: {', '.join(sorted(_BY_NAME))}"
        ) from None


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The template of a model, by its path or name; `default` where none fits."""
    fitting = (template for template in _TEMPLATES if template.fits(model_path))
    return next(fitting, _BY_NAME["default"])
