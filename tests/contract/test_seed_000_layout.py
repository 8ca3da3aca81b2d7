"""Statements of the extension guide about files and commands, run as they are written there.

Paths are mapped: `python/` → `engine/`, `sgl-model-gateway/` → `gateway/server/`,
`test/` → `tests/`.
"""

import importlib.metadata
import re
import subprocess
import sys

from tests.architecture.budgets import ROOT


def shell(command: str, where: str = ".") -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT / where, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def test_the_three_binaries_are_built_from_one_file() -> None:
    text = shell(r"grep -A3 '\[\[bin\]\]' Cargo.toml", "gateway/server")
    for name in ("sgl-model-gateway", "smg", "amg"):
        assert f'name = "{name}"' in text
    assert text.count('path = "src/main.rs"') == 3


def test_the_wheel_says_where_its_module_is() -> None:
    text = shell("grep -A4 'tool.maturin' bindings/python/pyproject.toml")
    assert 'python-source = "src"' in text
    assert 'module-name = "sglang_router.sglang_router_rs"' in text


def test_the_wheel_has_its_scripts_and_the_crate_s_version() -> None:
    wheel = importlib.metadata.distribution("sglang-router")
    scripts = {e.name: e.value for e in wheel.entry_points if e.group == "console_scripts"}
    names = ("smg", "amg", "sglang-router")
    assert scripts == dict.fromkeys(names, "sglang_router.cli:main")
    crate = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert crate is not None
    assert wheel.version == crate[1]


def test_the_router_module_maps_names_onto_the_compiled_enum() -> None:
    from sglang_router import router, sglang_router_rs

    assert router.PolicyType is sglang_router_rs.PolicyType
    assert router.CompiledRouter is sglang_router_rs.Router
    assert router.policy_from_str("cache_aware") == sglang_router_rs.PolicyType.CacheAware


def test_registration_functions_are_found_by_the_documented_grep() -> None:
    found = r'grep -rn "^def register_\|^    def register(" engine/sglang/srt/ engine/sglang/cli/'
    text = shell(f"{found} | grep -v test")
    for name in (
        "register_radix_cache_backend", "register_attention_backend", "register_grammar_backend",
        "register_algorithm", "register_model_override", "register_model_override_predicate",
    ):  # fmt: skip
        assert f"def {name}(" in text
    for file in ("models/registry.py", "plugins/hook_registry.py", "speculative/spec_info.py"):
        assert re.search(rf"{file}:\d+:    def register\(", text)


def test_the_grammar_contract_file_runs_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "tests/registered/unit/constrained/test_base_grammar_backend.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_registered_files_are_run_by_the_suite_runner() -> None:
    done = subprocess.run(
        [sys.executable, "tests/registered/run_suite.py", "--suite", "base-a-test-cpu"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "test_base_grammar_backend.py" in done.stdout
