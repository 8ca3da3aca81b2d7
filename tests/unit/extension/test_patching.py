"""Hooks on real modules: every kind of target, every module that holds it, and what fails."""

import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang.extension.hooks import HookSource, HookType
from sglang.extension.patching import FailedTarget, HookTable, TargetError, find_target

CODE = """
GREETING = "hello"

def greet(name):
    return f"hello {name}"

class Base:
    def inherited(self):
        return "base"

class Greeter(Base):
    def __init__(self, name="you"):
        self.name = name
    def greet(self):
        return greet(self.name)
    @classmethod
    def make(cls, name):
        return cls(name)
    @staticmethod
    def shout(text):
        return text.upper()
    class Inner:
        def value(self):
            return 1
"""
Make = Callable[..., types.ModuleType]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes modules that can be imported during the test."""
    made: list[str] = []

    def module(name: str, code: str = CODE, **names: Any) -> types.ModuleType:
        new = types.ModuleType(name)
        sys.modules[name] = new
        made.append(name)
        exec(code, new.__dict__)
        vars(new).update(names)
        return new

    yield module
    for name in made:
        del sys.modules[name]


@pytest.fixture
def target(make: Make) -> types.ModuleType:
    return make("hooked_module")


def patch(*hooks: tuple[str, Any, HookType]) -> list[FailedTarget]:
    table = HookTable()
    for name, hook, kind in hooks:
        table.register(name, hook, kind)
    return table.apply()


def test_function(target: Any) -> None:
    assert patch(("hooked_module.greet", lambda result, *a: result + "!", HookType.AFTER)) == []
    assert target.greet("you") == "hello you!"
    assert target.Greeter().greet() == "hello you!"


def test_method_and_init(target: Any) -> None:
    def loud(inner: Any, self: Any, *args: Any) -> None:
        inner(self, *args)
        self.name = self.name.upper()

    assert patch(("hooked_module:Greeter.__init__", loud, HookType.AROUND)) == []
    assert target.Greeter("me").greet() == "hello ME"


def test_class_method_gets_its_class_and_stays_one(target: Any) -> None:
    def around(inner: Any, cls: type, name: str) -> Any:
        made = inner(cls, name + "2")
        made.made_by = cls
        return made

    patch(("hooked_module.Greeter.make", around, HookType.AROUND))
    subclass = type("Sub", (target.Greeter,), {})
    made = subclass.make("a")
    assert (made.name, made.made_by, type(made)) == ("a2", subclass, subclass)


def test_static_method_stays_one(target: Any) -> None:
    patch(("hooked_module.Greeter.shout", lambda text: ((text + "b",), {}), HookType.BEFORE))
    assert target.Greeter.shout("a") == target.Greeter().shout("a") == "AB"
    assert isinstance(vars(target.Greeter)["shout"], staticmethod)


def test_inherited_method_is_patched_where_it_was_named(target: Any) -> None:
    patch(("hooked_module.Greeter.inherited", lambda self: "own", HookType.REPLACE))
    assert (target.Greeter().inherited(), target.Base().inherited()) == ("own", "base")


def test_nested_class(target: Any) -> None:
    patch(("hooked_module.Greeter.Inner.value", lambda result, self: result + 1, HookType.AFTER))
    assert target.Greeter.Inner().value() == 2


def test_class_is_replaced_everywhere(target: Any, make: Make) -> None:
    other = make("other_module", "", Mine=target.Greeter, keep=target.greet)
    old = target.Greeter
    new = type("New", (old,), {"greet": lambda self: "new"})
    assert patch(("hooked_module.Greeter", new, HookType.REPLACE)) == []
    assert target.Greeter is new and other.Mine is new
    assert issubclass(target.Greeter, old) and isinstance(target.Greeter(), old)
    assert other.keep is target.greet


def test_function_is_replaced_where_it_was_imported(target: Any, make: Make) -> None:
    other = make("other_module", "", hi=target.greet)
    patch(("hooked_module.greet", lambda result, name: result + "!", HookType.AFTER))
    assert other.hi("x") == "hello x!"


def test_the_hook_s_own_package_keeps_the_original(target: Any, make: Make) -> None:
    code = "class Mine(Greeter):\n  def greet(self):\n    return Greeter.greet(self) + ' from me'"
    package = make("vendor", "")
    module = make("vendor.impl", "", Greeter=target.Greeter)
    exec(code, module.__dict__)
    package.Old = target.Greeter  # type: ignore[attr-defined]
    old = target.Greeter
    patch(("hooked_module.Greeter", module.Mine, HookType.REPLACE))
    assert module.Greeter is package.Old is old
    assert target.Greeter("x").greet() == "hello x from me"


def test_methods_are_hooked_on_the_class_that_replaces(target: Any) -> None:
    new = type("New", (target.Greeter,), {"greet": lambda self: "new"})
    old_greet = target.Greeter.greet
    failed = patch(
        ("hooked_module.Greeter.greet", lambda result, self: result + "!", HookType.AFTER),
        ("hooked_module.Greeter", new, HookType.REPLACE),
    )
    assert failed == []
    assert target.Greeter().greet() == "new!"
    assert new.__mro__[1].greet is old_greet  # type: ignore[attr-defined]


def test_outer_classes_are_replaced_before_inner_ones(target: Any) -> None:
    outer = type("Outer", (target.Greeter,), {"Inner": type("Other", (), {})})
    inner = type("Inner", (), {})
    patch(
        ("hooked_module.Greeter.Inner", inner, HookType.REPLACE),
        ("hooked_module.Greeter", outer, HookType.REPLACE),
    )
    assert target.Greeter.Inner is inner


def test_replaced_method_of_a_replaced_class_is_warned_of(
    target: Any, caplog: pytest.LogCaptureFixture
) -> None:
    new = type("New", (target.Greeter,), {})
    with caplog.at_level(logging.WARNING):
        patch(
            ("hooked_module.Greeter", new, HookType.REPLACE),
            ("hooked_module.Greeter.greet", lambda self: "method", HookType.REPLACE),
        )
    assert "will override" in caplog.text
    assert target.Greeter().greet() == "method"


def test_a_class_takes_no_other_hook(target: Any) -> None:
    (failed,) = patch(("hooked_module.Greeter", lambda: None, HookType.BEFORE))
    assert isinstance(failed.error, TypeError)
    assert "hooked_module.Greeter is a class; only REPLACE" in str(failed)


def test_a_wrong_hook_on_a_class_does_not_stop_the_right_one(target: Any) -> None:
    new = type("New", (target.Greeter,), {})
    (failed,) = patch(
        ("hooked_module.Greeter", lambda: None, HookType.AROUND),
        ("hooked_module.Greeter", new, HookType.REPLACE),
    )
    assert [hook.kind for hook in failed.hooks] == [HookType.AROUND]
    assert target.Greeter is new


def test_a_function_cannot_replace_a_class(target: Any) -> None:
    (failed,) = patch(("hooked_module.Greeter", lambda: None, HookType.REPLACE))
    assert isinstance(failed.error, TypeError)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module_here.f", "there is no module 'no_such_module_here'"),
        ("hooked_module.gret", "hooked_module has no 'gret'; did you mean 'greet'?"),
        ("hooked_module.Greeter.nothing.x", "Greeter has no 'nothing'"),
        ("hooked_module.GREETING", "neither a function nor a class"),
    ],
)
def test_a_failed_target_names_the_hook_and_its_source(target: Any, name: str, part: str) -> None:
    table = HookTable()
    table.register(name, test_function, HookType.AROUND, HookSource("plug", "dist"))
    table.register("hooked_module.greet", lambda *a: "fine", HookType.AFTER)
    (failed,) = table.apply()
    text = str(failed)
    assert part in text and f"hook target {name} (AROUND hook" in text
    assert "test_function of plugin 'plug' (distribution dist)" in text
    assert target.greet("x") == "fine"


def test_a_module_s_own_missing_import_is_told(make: Make, monkeypatch: Any, tmp_path: Any) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\ndef f(): pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    (failed,) = patch(("needs_more.f", lambda: None, HookType.BEFORE))
    assert isinstance(failed.error, ModuleNotFoundError)
    assert "not_installed_anywhere" in str(failed)


@pytest.mark.parametrize("name", ["", "nodots", "a..b", "a.b c", "a.", "a/b.c"])
def test_a_target_is_a_dotted_name(name: str) -> None:
    with pytest.raises(ValueError, match="A hook target is a dotted name"):
        HookTable().register(name, lambda: None, HookType.BEFORE)


def test_a_target_is_patched_once(target: Any, caplog: pytest.LogCaptureFixture) -> None:
    table = HookTable()
    table.register("hooked_module.greet", lambda result, name: result + "!", HookType.AFTER)
    table.apply()
    table.apply()
    assert target.greet("x") == "hello x!"
    with caplog.at_level(logging.WARNING):
        table.register("hooked_module:greet", lambda result, name: "late", HookType.AFTER)
    assert "hooked_module.greet is patched already" in caplog.text
    table.apply()
    assert target.greet("x") == "hello x!"


def test_reset_forgets(target: Any) -> None:
    table = HookTable()
    table.register("hooked_module.greet", lambda result, name: result + "!", HookType.AFTER)
    table.apply()
    table.reset()
    assert table.hooks() == []
    table.register("hooked_module.greet", lambda result, name: result + "?", HookType.AFTER)
    table.apply()
    assert target.greet("x") == "hello x!?"


def test_find_target_keeps_descriptors(target: Any) -> None:
    place = find_target("hooked_module.Greeter.make")
    assert place.holder is target.Greeter and isinstance(place.raw, classmethod)
    with pytest.raises(TargetError):
        find_target("hooked_module.none")
