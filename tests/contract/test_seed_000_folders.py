"""The folders of the Python package exist and are described."""

import ast
import re

import pytest

from tests.architecture.budgets import ROOT

FOLDERS = ("benchmark", "cli", "kernels", "lang", "multimodal_gen", "srt", "test")


@pytest.mark.parametrize("folder", FOLDERS)
def test_s000_09_the_folder_is_a_package_with_code_and_is_described(folder: str) -> None:
    package = ROOT / "engine/sglang" / folder
    assert (package / "__init__.py").is_file()
    defined = [
        node
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert defined != []
    row = rf"^\| `{folder}/` \| \w.{{20,}} \|$"
    assert re.search(row, (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
