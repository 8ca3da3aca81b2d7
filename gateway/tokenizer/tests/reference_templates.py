"""Writes golden/templates.json: what the reference renderer (transformers) makes of many templates.

Run it after a change to the cases:

    python gateway/tokenizer/tests/reference_templates.py

Templates of model families are read from the folder of shared data beside the repository and are
named, not copied; the constructs are stored with their source. `tests/templates.rs` compares.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jinja2
from reference_constructs import CONSTRUCTS
from transformers.utils import chat_template_utils as reference

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "data" / "templates"
GOLDEN = Path(__file__).resolve().parent / "golden" / "templates.json"

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
CALL = {"id": "call_1", "type": "function"}
CALL["function"] = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}  # type: ignore
PROPERTIES = {"city": {"type": "string", "description": "A <b>city</b> & more"}}
FUNCTION = {"name": "weather", "description": 'Today\'s "weather" ☀'}
FUNCTION["parameters"] = {"type": "object", "properties": PROPERTIES}  # type: ignore
TOOLS = [{"type": "function", "function": FUNCTION}]

SYSTEM = {"role": "system", "content": " You are terse. "}
HELLO = {"role": "user", "content": "Hello,\n  world! "}
REPLY = {"role": "assistant", "content": " Hi  there.\n"}
MORE = {"role": "user", "content": "日本語 🦙 {{ not a template }} <|im_end|>"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call_1", "content": '{"sun": true}'}
THOUGHT = {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nSo.", "reasoning": "why"}

# name → fields of a rendering; every template is rendered with each
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [HELLO], "add_generation_prompt": True},
    "system": {"messages": [SYSTEM, HELLO, REPLY, MORE], "add_generation_prompt": True},
    "finished": {"messages": [HELLO, REPLY]},
    "wrong order": {"messages": [REPLY, HELLO], "add_generation_prompt": True},
    "two users": {"messages": [HELLO, MORE], "add_generation_prompt": True},
    "tools": {
        "messages": [SYSTEM, HELLO, CALLING, RESULT],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "null content": {"messages": [HELLO, {**CALLING, "content": None}, RESULT], "tools": TOOLS},
    "reasoning": {
        "messages": [HELLO, THOUGHT, MORE],
        "add_generation_prompt": True,
        "kwargs": {"enable_thinking": False},
    },
    "continue": {"messages": [HELLO, REPLY], "continue_final_message": True},
    "continue thought": {"messages": [HELLO, THOUGHT], "continue_final_message": True},
}


def render(source: str, conversation: dict[str, Any]) -> dict[str, str]:
    """`{"text": …}`, `{"raised": …}` for raise_exception, `{"failed": …}` for other errors."""
    kwargs = TOKENS | conversation.get("kwargs", {})
    messages = reference._normalize_chat_messages(conversation["messages"])
    try:
        rendered = reference.render_jinja_template(
            [messages],
            tools=conversation.get("tools"),
            chat_template=source,
            add_generation_prompt=conversation.get("add_generation_prompt", False),
            continue_final_message=conversation.get("continue_final_message", False),
            **kwargs,
        )[0]
        return {"text": rendered[0]}
    except jinja2.exceptions.TemplateError as error:
        # raise_exception raises the base class; the engine's own errors are subclasses
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": str(error)}
        return {"failed": f"{type(error).__name__}: {error}"}
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def main() -> int:
    if not SHARED.is_dir():
        print(f"needs {SHARED} with the templates of model families", file=sys.stderr)
        return 1
    families = {
        path.stem: {name: render(path.read_text(), c) for name, c in CONVERSATIONS.items()}
        for path in sorted(SHARED.glob("*.jinja"))
    }
    constructs = []
    for name, source, conversation in CONSTRUCTS:
        outcome = render(source, CONVERSATIONS[conversation])
        constructs.append({"name": name, "source": source, "conversation": conversation} | outcome)
    golden = {
        "tokens": TOKENS,
        "conversations": CONVERSATIONS,
        "families": families,
        "constructs": constructs,
    }
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
