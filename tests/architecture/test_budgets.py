"""No file, function or class outgrows its budget without a stated reason."""

from tests.architecture.budgets import (
    ALLOWED,
    python_breaches,
    python_files,
    rust_breaches,
    rust_files,
)


def breaches() -> list[str]:
    found = [breach for path in python_files() for breach in python_breaches(path)]
    return found + [breach for path in rust_files() for breach in rust_breaches(path)]


def test_everything_is_within_its_budget() -> None:
    assert [b for b in breaches() if b.split(": ")[0] not in ALLOWED] == []


def test_every_exception_is_still_needed() -> None:
    over = {b.split(": ")[0] for b in breaches()}
    assert [entry for entry in ALLOWED if entry not in over] == []


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason) > 20 for reason in ALLOWED.values())
