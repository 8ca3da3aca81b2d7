"""What `import sglang as sgl` offers, and what it costs."""

import subprocess
import sys

import pytest

import sglang as sgl

DOCUMENTED = """
    Anthropic Crusoe LiteLLM OpenAI Runtime RuntimeEndpoint ServerArgs VertexAI __version__
    assistant assistant_begin assistant_end flush_cache function gen gen_int gen_string
    get_server_info global_config greedy_token_selection image select separate_reasoning
    set_default_backend system system_begin system_end token_length_normalized
    unconditional_likelihood_normalized user user_begin user_end video
"""


@pytest.mark.parametrize("name", DOCUMENTED.split())
def test_documented_names_exist(name: str) -> None:
    assert getattr(sgl, name) is not None
    assert name in dir(sgl)


def test_unknown_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_like_this'"):
        _ = sgl.nothing_like_this


@pytest.mark.parametrize(
    "code",
    [
        "import sglang",
        "import sglang as sgl; sgl.function(lambda s: s); sgl.gen('x'); sgl.select('y', ['a'])",
    ],
)
def test_programs_can_be_written_without_heavy_imports(code: str) -> None:
    heavy = ("torch", "transformers", "httpx", "openai")
    code += f"; import sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
