"""The known speculative algorithms; this version serves those that plugins register."""

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.speculative.spec_registry import CustomSpecAlgo, WorkerFactory

NEXTN = "NEXTN"  # another name of EAGLE


class SpeculativeAlgorithm(Enum):
    """What may stand behind `--speculative-algorithm`. Plugins' algorithms answer the same
    questions (`CustomSpecAlgo`) and equal no member.
    """

    DFLASH = auto()
    DSPARK = auto()
    EAGLE = auto()
    EAGLE3 = auto()
    FROZEN_KV_MTP = auto()
    STANDALONE = auto()
    NGRAM = auto()
    NONE = auto()

    @classmethod
    def from_string(cls, name: str | None) -> Union["SpeculativeAlgorithm", "CustomSpecAlgo"]:
        """The member or the registered algorithm, in any case; None is NONE."""
        from sglang.srt.speculative.spec_registry import get_algorithm

        if name is None:
            return cls.NONE
        upper = name.upper()
        if upper == NEXTN:
            return cls.EAGLE
        if upper in cls.__members__:
            return cls[upper]
        registered = get_algorithm(upper)
        if registered is None:
            raise ValueError(f"Unknown speculative algorithm name: {name}")
        return registered

    @classmethod
    def register(
        cls, name: str, **options: Any
    ) -> "Callable[[WorkerFactory], WorkerFactory]":  # the keywords of register_algorithm
        """`register_algorithm` under another name."""
        from sglang.srt.speculative.spec_registry import register_algorithm

        return register_algorithm(name, **options)

    def create_worker(self, server_args: Any) -> type[Any]:
        """Raises ValueError: the worker of a member is not part of this version."""
        raise ValueError(not_served(self.name))

    def is_none(self) -> bool:
        return self is SpeculativeAlgorithm.NONE

    def is_some(self) -> bool:
        return not self.is_none()

    def is_speculative(self) -> bool:
        return self.is_some()

    def is_eagle(self) -> bool:
        return self in (SpeculativeAlgorithm.EAGLE, SpeculativeAlgorithm.EAGLE3)

    def is_eagle3(self) -> bool:
        return self is SpeculativeAlgorithm.EAGLE3

    def is_standalone(self) -> bool:
        return self is SpeculativeAlgorithm.STANDALONE

    def is_ngram(self) -> bool:
        return self is SpeculativeAlgorithm.NGRAM

    def is_dflash(self) -> bool:
        return self is SpeculativeAlgorithm.DFLASH

    def is_dspark(self) -> bool:
        return self is SpeculativeAlgorithm.DSPARK

    def is_dflash_family(self) -> bool:
        return self.is_dflash() or self.is_dspark()

    def is_frozen_kv_mtp(self) -> bool:
        return self is SpeculativeAlgorithm.FROZEN_KV_MTP

    def supports_overlap(self) -> bool:
        """Whether a worker may run while the last step's results are still read."""
        return False


def not_served(name: str) -> str:
    return (
        f"the speculative algorithm {name} is not served by this version; a plugin can register "
        "one under its own name with register_algorithm of sglang.srt.speculative.spec_registry"
    )
