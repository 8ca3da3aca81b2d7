"""A name is taken once; lazy targets load when asked for; errors say what exists."""

import logging

import pytest

from sglang.extension.registry import Registry, UnknownNameError, source_of


def make() -> Registry[object]:
    registry: Registry[object] = Registry("shape")
    registry.register("circle", 1, source="a:b")
    return registry


def test_registered_item_is_found() -> None:
    assert make().get("circle") == 1


def test_unknown_name_tells_kind_name_neighbour_and_all_names() -> None:
    with pytest.raises(ValueError) as caught:
        make().get("circel")
    assert (
        str(caught.value) == "Unknown shape 'circel'; did you mean 'circle'? Registered: 'circle'."
    )


def test_unknown_name_without_neighbour() -> None:
    with pytest.raises(KeyError) as caught:
        make()["zzz"]
    assert str(caught.value) == "Unknown shape 'zzz'. Registered: 'circle'."


def test_default_is_for_those_who_ask_for_it() -> None:
    assert make().get("square", None) is None


def test_taken_name_raises_with_both_sources_and_keeps_the_first() -> None:
    registry = make()
    with pytest.raises(ValueError, match=r"'circle'.*a:b.*c:d"):
        registry.register("circle", 2, source="c:d")
    assert registry["circle"] == 1


def test_replacing_is_logged_with_both_sources(caplog: pytest.LogCaptureFixture) -> None:
    registry = make()
    with caplog.at_level(logging.WARNING):
        registry.register("circle", 2, source="c:d", replace=True)
    assert registry["circle"] == 2
    assert "a:b" in caplog.text and "c:d" in caplog.text


def test_reserved_name_cannot_be_taken_or_replaced() -> None:
    registry: Registry[object] = Registry("shape", reserved=frozenset(["auto", "none"]))
    registry.register_lazy("auto", "json:dumps")
    for name in ("auto", "none"):
        with pytest.raises(ValueError, match="reserved"):
            registry.register(name, 2, source="c:d", replace=True)


@pytest.mark.parametrize("name", ["", "  "])
def test_blank_name_raises(name: str) -> None:
    with pytest.raises(ValueError, match="blank"):
        make().register(name, 1, source="a:b")


def test_lazy_target_is_not_imported_for_its_name() -> None:
    registry: Registry[object] = Registry("shape")
    registry.register_lazy("broken", "no_such_module_anywhere:thing")
    assert "broken" in registry
    assert registry.names() == ["broken"]
    with pytest.raises(ModuleNotFoundError):
        registry.get("broken")


def test_lazy_target_resolves_to_the_attribute() -> None:
    import json

    registry: Registry[object] = Registry("shape")
    registry.register_lazy("dumps", "json:dumps")
    assert registry["dumps"] is json.dumps


def test_behaves_like_a_dict() -> None:
    registry = make()
    registry["square"] = test_behaves_like_a_dict
    assert list(registry) == ["circle", "square"]
    assert len(registry) == 2
    del registry["circle"]
    assert dict(registry) == {"square": test_behaves_like_a_dict}
    with pytest.raises(UnknownNameError):
        del registry["circle"]


def test_source_of_names_module_and_object() -> None:
    assert source_of(make) == f"{__name__}:make"
    assert source_of(3) == "builtins:int"
