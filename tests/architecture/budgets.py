"""Size budgets of the tree, and the places that may exceed them, each with its reason."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_FILE_LINES = 500
RUST_FILE_LINES = 600
FUNCTION_LINES = 60
CLASS_METHODS = 20

# path (or path::name) → reason. An entry that is no longer needed fails the test.
ALLOWED: dict[str, str] = {}


def python_files() -> list[Path]:
    folders = ("engine", "bindings/python/src", "tests", "bench")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def rust_files() -> list[Path]:
    folders = ("gateway", "bindings/python/src")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.rs"))]


def python_breaches(path: Path) -> list[str]:
    """`path[::name]: what` for each budget that the file exceeds."""
    source = path.read_text()
    name = str(path.relative_to(ROOT))
    found = []
    if (lines := source.count("\n")) > PYTHON_FILE_LINES:
        found.append(f"{name}: {lines} lines, budget {PYTHON_FILE_LINES}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{name}::{node.name}: {length} lines, budget {FUNCTION_LINES}")
        elif isinstance(node, ast.ClassDef):
            methods = [
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            if len(methods) > CLASS_METHODS:
                found.append(f"{name}::{node.name}: {len(methods)} methods, budget {CLASS_METHODS}")
    return found


def rust_breaches(path: Path) -> list[str]:
    """Counts lines before the first test module; clippy checks the functions."""
    name = str(path.relative_to(ROOT))
    if "tests" in path.parts or path.name == "tests.rs":
        return []
    lines = path.read_text().split("#[cfg(test)]\nmod tests {", 1)[0].count("\n")
    return [f"{name}: {lines} lines, budget {RUST_FILE_LINES}"] if lines > RUST_FILE_LINES else []
