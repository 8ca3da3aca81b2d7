"""S000-141: the files that the extension guide points into exist, with what it names there."""

import pytest

from tests.architecture.budgets import ROOT

ENGINE = ROOT / "engine/sglang"
# file → what the guide says is defined there
NAMED = {
    "lang/ir.py": ["class SglFunction"],
    "lang/interpreter.py": ["def run_program"],
    "lang/executor.py": ["class StreamExecutor", "def fork("],  # beside interpreter.py, see below
    "lang/choices.py": [
        "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized",
    ],
    "lang/backend/runtime_endpoint.py": ["class RuntimeEndpoint", "def commit_lazy_operations("],
    "lang/README.md": ["deprecated"],
    "cli/serve_backends.py": ["class ServeBackendRegistry", "SERVE_BACKEND_API_VERSION = 1"],
    "srt/arg_groups/overrides.py": ["def register_model_override(", "MODEL_OVERRIDES"],
    "srt/constrained/base_grammar_backend.py": [
        "class BaseGrammarObject", "class BaseGrammarBackend", "def register_grammar_backend(",
    ],
    "srt/constrained/grammar_manager.py": [
        "class GrammarManager", "grammar_queue", "def process_req_with_grammar(",
        "def get_ready_grammar_requests(",
    ],
    "srt/entrypoints/engine.py": ["def _launch_subprocesses(", "load_plugins()"],
    "srt/layers/attention/attention_registry.py": [
        "ATTENTION_BACKENDS", "def register_attention_backend(",
    ],
    "srt/managers/scheduler.py": [
        "class Scheduler", "def run_scheduler_process(", "load_plugins()",
    ],
    "srt/mem_cache/registry.py": ["def register_radix_cache_backend(", "def create_tree_cache("],
    "srt/plugins/__init__.py": [
        "PLATFORM_PLUGINS_GROUP", "GENERAL_PLUGINS_GROUP", "_plugins_loaded",
    ],
    "srt/plugins/hook_registry.py": ["class HookRegistry", "HookType", "def plugin_hook("],
    "srt/speculative/spec_registry.py": ["def register_algorithm(", "class CustomSpecAlgo"],
}  # fmt: skip


@pytest.mark.parametrize("file", NAMED)
def test_the_file_has_what_the_guide_names(file: str) -> None:
    text = (ENGINE / file).read_text()
    missing = [name for name in NAMED[file] if name.lower() not in text.lower()]
    assert not missing


def test_the_executor_is_found_where_the_guide_looks_for_it() -> None:
    from sglang.lang.interpreter import StreamExecutor

    assert StreamExecutor.__module__ == "sglang.lang.executor"
