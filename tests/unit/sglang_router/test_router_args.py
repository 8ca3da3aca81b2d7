"""`RouterArgs`: made from the schema, filled by a parser, handed to the gateway."""

import argparse
import re
from pathlib import Path

import pytest

import sglang_router
from sglang_router import PolicyType, RouterArgs, option_schema
from sglang_router.router import POLICIES, policy_from_str


def parse(*argv: str, prefix: bool = False, exclude: bool = False) -> RouterArgs:
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=prefix, exclude_host_port=exclude)
    return RouterArgs.from_cli_args(parser.parse_args(argv), use_router_prefix=prefix)


def test_every_option_is_a_field_with_its_default() -> None:
    args = RouterArgs()
    assert [(option["name"], option["default"]) for option in option_schema()] == list(
        vars(args).items()
    )
    assert args.to_options() == {}


def test_flags_set_fields_of_their_type() -> None:
    args = parse(
        *("--port", "31000", "--cache-threshold", "0.5", "--disable-retries"),
        *("--worker-urls", "grpc://a:1", "grpc://b:2", "--policy", "random"),
    )
    assert args.to_options() == {
        "port": 31000,
        "cache_threshold": 0.5,
        "disable_retries": True,
        "worker_urls": ["grpc://a:1", "grpc://b:2"],
        "policy": "random",
    }


def test_with_the_prefix_flags_stand_beside_those_of_another_program() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    namespace = parser.parse_args(["--port", "1", "--router-policy", "round_robin"])
    args = RouterArgs.from_cli_args(namespace, use_router_prefix=True)
    assert args.to_options() == {"policy": "round_robin"}
    assert not hasattr(namespace, "router_port")


def test_an_alias_sets_the_same_field() -> None:
    assert parse("--spill-abs-threshold", "3").balance_abs_threshold == 3


def test_a_wrong_choice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--policy", "fastest")
    assert "cache_aware" in capsys.readouterr().err


def test_policies_are_those_of_the_command_line() -> None:
    [policy] = [option for option in option_schema() if option["name"] == "policy"]
    assert list(POLICIES) == policy["choices"]
    assert [str(kind) for kind in POLICIES.values()] == policy["choices"]
    assert policy_from_str("cache_aware") == PolicyType.CacheAware
    with pytest.raises(ValueError, match="unknown policy 'x'; choose one of random, round_robin"):
        policy_from_str("x")


def test_the_stub_lists_every_policy() -> None:
    attributes = {name for name, value in vars(PolicyType).items() if type(value) is PolicyType}
    stub = Path(sglang_router.__file__).with_name("sglang_router_rs.pyi").read_text()
    assert set(re.findall(r"^    (\w+): PolicyType$", stub, re.MULTILINE)) == attributes
    assert {str(getattr(PolicyType, name)) for name in attributes} == set(POLICIES)
    assert repr(PolicyType.CacheAware) == "PolicyType.CacheAware"
