"""Model classes are found by the names that configurations use."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang.srt.environ import envs
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.registry import ModelRegistry, _ModelRegistry, import_model_classes

MODEL = "class {name}:\n    pass\nEntryClass = {name}\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable, empty package named `added_models`."""
    folder = tmp_path / "added_models"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    import_model_classes.cache_clear()
    yield folder
    import_model_classes.cache_clear()
    for name in [name for name in sys.modules if name.startswith("added_models")]:
        del sys.modules[name]


def test_first_supported_architecture_wins() -> None:
    cls, name = ModelRegistry.resolve_model_cls(["Unknown", "LlamaForCausalLM"])
    assert (cls, name) == (LlamaForCausalLM, "LlamaForCausalLM")


def test_unsupported_architectures_are_listed_with_the_supported() -> None:
    with pytest.raises(ValueError, match=r"\['Unknown'\].*LlamaForCausalLM.*Mistral"):
        ModelRegistry.resolve_model_cls("Unknown")


def test_classes_of_a_package_are_added(package: Path) -> None:
    (package / "new.py").write_text(MODEL.format(name="NewForCausalLM"))
    registry = _ModelRegistry()
    registry.register("added_models")
    assert registry.resolve_model_cls("NewForCausalLM")[0].__name__ == "NewForCausalLM"


def test_taken_name_needs_overwrite(package: Path) -> None:
    (package / "llama.py").write_text(MODEL.format(name="LlamaForCausalLM"))
    registry = _ModelRegistry()
    registry.get_supported_archs()
    with pytest.raises(ValueError, match="already registered"):
        registry.register("added_models")
    registry.register("added_models", overwrite=True)
    assert registry.resolve_model_cls("LlamaForCausalLM")[0] is not LlamaForCausalLM


def test_external_package_replaces_built_in_models(package: Path) -> None:
    (package / "llama.py").write_text(MODEL.format(name="LlamaForCausalLM"))
    with envs.SGLANG_EXTERNAL_MODEL_PACKAGE.override("added_models"):
        cls, _ = _ModelRegistry().resolve_model_cls("LlamaForCausalLM")
    assert cls.__module__ == "added_models.llama"


def test_module_that_fails_to_import_is_left_out_or_raises(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (package / "broken.py").write_text("import not_there_at_all\n")
    assert import_model_classes("added_models") == {}
    assert "Ignore import error when loading added_models.broken" in caplog.text
    with pytest.raises(ImportError):
        import_model_classes("added_models", strict=True)


def test_disabled_module_is_not_imported(package: Path) -> None:
    (package / "broken.py").write_text("raise RuntimeError\n")
    with envs.SGLANG_DISABLED_MODEL_ARCHS.override("broken"):  # type: ignore[arg-type]
        assert import_model_classes("added_models") == {}


def test_one_name_twice_in_a_package_is_refused(package: Path) -> None:
    for module in ("one", "two"):
        (package / f"{module}.py").write_text(MODEL.format(name="Twin"))
    with pytest.raises(AssertionError, match="Duplicated model implementation for Twin"):
        import_model_classes("added_models")
