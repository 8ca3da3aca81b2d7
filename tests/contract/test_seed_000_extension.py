"""Statements of the extension guide about hooks, speculative algorithms and model overrides."""

import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sglang.extension.hooks import HookSource
from sglang.srt import plugins
from sglang.srt.arg_groups import overrides
from sglang.srt.constrained.base_grammar_backend import register_grammar_backend
from sglang.srt.extension_points import (
    ATTENTION_BACKENDS,
    GRAMMAR_BACKENDS,
    RADIX_CACHE_BACKENDS,
)
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.mem_cache.registry import register_radix_cache_backend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.speculative import spec_info, spec_registry
from sglang.srt.speculative.spec_registry import CustomSpecAlgo, register_algorithm


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    spec_registry._REGISTRY.clear()
    HookRegistry.reset()
    yield
    spec_registry._REGISTRY.clear()
    HookRegistry.reset()


# ------------------------------------------------------------------ speculative algorithms


def test_signature_of_register_algorithm() -> None:
    parameters = inspect.signature(register_algorithm).parameters
    assert list(parameters) == ["name", "supports_overlap", "validate_server_args", "spec_class"]
    defaults = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert defaults == {
        "supports_overlap": False, "validate_server_args": None, "spec_class": CustomSpecAlgo,
    }  # fmt: skip


def test_the_three_guards_in_order() -> None:
    with pytest.raises(ValueError) as caught:
        register_algorithm("eagle", spec_class=object)
    assert str(caught.value) == (
        "'EAGLE' is a reserved speculative algorithm name; cannot be re-registered."
    )
    register_algorithm("x")(lambda args: object)
    with pytest.raises(ValueError) as caught:
        register_algorithm("X", spec_class=object)
    assert str(caught.value) == "Speculative algorithm 'X' already registered."
    with pytest.raises(TypeError, match="is_some"):
        register_algorithm("y", spec_class=object)


def test_reserved_names_are_the_enum_and_one_more_name() -> None:
    members = set(spec_info.SpeculativeAlgorithm.__members__)
    assert spec_registry._reserved_names() == members | {"NEXTN"}


def test_branches_on_a_plugin_s_algorithm_keep_working() -> None:
    algorithm = CustomSpecAlgo("MINE", lambda args: object)
    assert algorithm.is_some() and not algorithm.is_eagle() and not algorithm.is_frozen_kv_mtp()


# ------------------------------------------------------------------ model overrides


def test_the_two_forms_of_declaration_exist() -> None:
    assert isinstance(overrides.MODEL_OVERRIDES, dict)
    assert list(inspect.signature(overrides.register_model_override).parameters) == ["architecture"]


def test_everyone_runs_in_the_pinned_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_MODEL_OVERRIDE_FNS", {})
    monkeypatch.setattr(overrides, "_PREDICATE_OVERRIDE_FNS", [])
    monkeypatch.setitem(overrides.MODEL_OVERRIDES, "A", {"n": 0})

    def provider(n: int) -> Any:
        def declare(server_args: Any, hf_config: Any) -> dict[str, Any]:
            return {"n": n}

        declare.__qualname__ = f"vendor_{n}"
        return declare

    overrides.register_model_override_predicate(lambda name: True)(provider(3))
    overrides.register_model_override("A")(provider(1))
    overrides.register_model_override("A")(provider(2))
    found = overrides.collect_model_override_declarations("A", None, None)
    assert [values["n"] for _, values in found] == [0, 1, 2, 3]
    assert [source for source, _ in found][1:] == ["vendor_1", "vendor_2", "vendor_3"]


# ------------------------------------------------------------------ hooks and plugins


def test_kinds_of_hooks() -> None:
    assert [kind.value for kind in HookType] == ["before", "after", "around", "replace"]


def test_entry_point_groups() -> None:
    assert plugins.PLATFORM_PLUGINS_GROUP == "sglang.srt.platforms"
    assert plugins.GENERAL_PLUGINS_GROUP == "sglang.srt.plugins"


def test_a_second_replace_names_both_plugins_and_distributions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in (1, 2):
        source = HookSource(f"plugin-{number}", f"dist-{number}")
        HookRegistry.register("json.dumps", print, HookType.REPLACE, source=source)
    for part in ("plugin-1", "dist-1", "plugin-2", "dist-2"):
        assert part in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# ------------------------------------------------------------------ the five policies, by source


def test_a_taken_prefix_cache_name_raises() -> None:
    register_radix_cache_backend("contract", print)  # type: ignore[arg-type]
    try:
        with pytest.raises(ValueError, match="already registered"):
            register_radix_cache_backend("contract", repr)  # type: ignore[arg-type]
    finally:
        del RADIX_CACHE_BACKENDS["contract"]


@pytest.mark.parametrize(
    ("register", "registry"),
    [
        (lambda name, fn: register_attention_backend(name)(fn), ATTENTION_BACKENDS),
        (register_grammar_backend, GRAMMAR_BACKENDS),
    ],
    ids=["attention", "grammar"],
)
def test_attention_and_grammar_backends_overwrite(register: Any, registry: Any) -> None:
    try:
        register("contract", print)
        register("contract", repr)
        assert registry["contract"] is repr
    finally:
        del registry["contract"]


# ------------------------------------------------------------------ in a process of its own


def test_every_documented_target_can_be_hooked() -> None:
    """Registering is enough: all nine are found and wrapped where they are looked up."""
    code = """
import logging, operator
from sglang.srt.plugins.hook_registry import HookRegistry, HookType, plugin_hook
logging.basicConfig(level=logging.WARNING, format="%(message)s")
TARGETS = '''
sglang.srt.server_args.ServerArgs.add_cli_args
sglang.srt.server_args.ServerArgs.__post_init__
sglang.srt.server_args.ServerArgs.check_server_args
sglang.srt.managers.scheduler.Scheduler.__init__
sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run
sglang.srt.managers.scheduler.Scheduler.run_batch
sglang.srt.managers.scheduler.Scheduler.process_batch_result
sglang.srt.managers.tp_worker.TpModelWorker.__init__
sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation
'''.split()
for target in TARGETS:
    HookRegistry.register(target, lambda *args, **kwargs: None, HookType.BEFORE)
HookRegistry.apply_hooks()
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs
classes = {c.__name__: c for c in (Scheduler, TpModelWorker, ServerArgs)}
for target in TARGETS:
    owner, name = target.replace(":", ".").split(".")[-2:]
    assert hasattr(getattr(classes[owner], name), "__wrapped__"), target
print("wrapped", len(TARGETS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "wrapped 9\n"), done.stderr
    assert done.stderr == ""
