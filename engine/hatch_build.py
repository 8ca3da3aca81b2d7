"""Build hook: compiles proto/*.proto into the descriptor set that the gRPC servicer loads."""

from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program, by `make proto`
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "engine/sglang/srt/entrypoints/wire.binpb"


def write_descriptor_set() -> None:
    """Writes `wire.binpb`: every message and service of proto/, with its imports."""
    from grpc_tools import protoc

    sources = sorted(str(path) for path in (ROOT / "proto").glob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    code = protoc.main(
        ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", "--include_imports",
         f"--descriptor_set_out={TARGET}", *sources]
    )  # fmt: skip
    if code != 0:
        raise RuntimeError(f"protoc ended with {code} on {sources}")


class DescriptorSetHook(BuildHookInterface):
    """Runs before the wheel (also the editable one) is assembled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if (ROOT / "proto").is_dir():
            write_descriptor_set()


if __name__ == "__main__":
    write_descriptor_set()
