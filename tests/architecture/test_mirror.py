"""Unit tests lie where their subject lies."""

from tests.architecture.budgets import ROOT

ENGINE = ROOT / "engine/sglang"
WHEEL = ROOT / "bindings/python/src"


def test_every_folder_of_unit_tests_mirrors_a_package() -> None:
    unit = ROOT / "tests/unit"
    folders = [path.relative_to(unit) for path in unit.rglob("*/") if any(path.glob("test_*.py"))]
    assert len(folders) > 15
    for folder in folders:
        packages = [root / folder / "__init__.py" for root in (ENGINE, WHEEL)]
        assert any(package.is_file() for package in packages), f"{folder} mirrors no package"


def test_every_package_of_the_engine_with_code_has_unit_tests() -> None:
    for package in (ENGINE / "srt").iterdir():
        if any(path.name != "__init__.py" for path in package.glob("*.py")):
            assert any((ROOT / "tests/unit/srt" / package.name).rglob("test_*.py")), package.name
