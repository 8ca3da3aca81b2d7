"""The gateway as an object, for programs that run one inside themselves."""

from typing import Any

from sglang_router.router_args import RouterArgs
from sglang_router.sglang_router_rs import PolicyType, option_schema
from sglang_router.sglang_router_rs import Router as CompiledRouter

POLICIES = {
    name: PolicyType(name)
    for option in option_schema()
    if option["name"] == "policy"
    for name in option["choices"]
}


def policy_from_str(name: str) -> PolicyType:
    """The policy that the command line calls `name`."""
    return PolicyType(name)


class Router:
    """A gateway. Options are the flags of `smg launch`, with underscores."""

    def __init__(self, **options: Any) -> None:
        if isinstance(policy := options.get("policy"), str):
            options["policy"] = policy_from_str(policy)
        self._router = CompiledRouter(**options)

    @classmethod
    def from_args(cls, args: RouterArgs) -> "Router":
        return cls(**args.to_options())

    def start(self) -> None:
        """Serves until `stop` is called or a signal handler raises; then drains and returns."""
        self._router.start()

    def stop(self) -> None:
        """Asks the gateway to drain and end. May be called from any thread and more than once."""
        self._router.stop()
