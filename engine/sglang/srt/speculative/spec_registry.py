"""Speculative algorithms of plugins, by name."""

from collections.abc import Callable
from typing import Any

from sglang.extension.registry import source_of
from sglang.srt.extension_points import SPECULATIVE_ALGORITHMS
from sglang.srt.speculative.spec_info import NEXTN, SpeculativeAlgorithm

# factory(server_args) → the class of the worker, see `spec_worker.SpecWorker`
WorkerFactory = Callable[[Any], type[Any]]
Validator = Callable[[Any], None]

_REGISTRY = SPECULATIVE_ALGORITHMS


class CustomSpecAlgo:
    """A plugin's algorithm. It answers every question that is put to the built-in ones: it is
    none of them, and it is an algorithm. A subclass may answer otherwise.
    """

    def __init__(
        self,
        name: str,
        factory: WorkerFactory,
        *,
        supports_overlap: bool = False,
        validate_server_args: Validator | None = None,
    ) -> None:
        """`validate_server_args(server_args)` runs when options are built, before they are sealed:
        it may set options and raises ValueError with a sentence for the operator.
        """
        self.name = name
        self.factory = factory
        self.validate_server_args = validate_server_args
        self._supports_overlap = supports_overlap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def create_worker(self, server_args: Any) -> type[Any]:
        """The class of the worker; ValueError if it cannot work with overlapped steps.

        Steps are overlapped only where the options say `disable_overlap_schedule = False`.
        """
        overlaps = not getattr(server_args, "disable_overlap_schedule", True)
        if overlaps and not self.supports_overlap():
            raise ValueError(
                f"Speculative algorithm {self.name!r} does not support overlap scheduling; "
                "turn it off (disable_overlap_schedule)."
            )
        return self.factory(server_args)

    def is_none(self) -> bool:
        return False

    def is_some(self) -> bool:
        return True

    def is_speculative(self) -> bool:
        return True

    def is_eagle(self) -> bool:
        return False

    def is_eagle3(self) -> bool:
        return False

    def is_standalone(self) -> bool:
        return False

    def is_ngram(self) -> bool:
        return False

    def is_dflash(self) -> bool:
        return False

    def is_dspark(self) -> bool:
        return False

    def is_dflash_family(self) -> bool:
        return False

    def is_frozen_kv_mtp(self) -> bool:
        return False

    def supports_overlap(self) -> bool:
        return self._supports_overlap


def register_algorithm(
    name: str,
    *,
    supports_overlap: bool = False,
    validate_server_args: Validator | None = None,
    spec_class: type[Any] = CustomSpecAlgo,
) -> Callable[[WorkerFactory], WorkerFactory]:
    """Decorator of a factory(server_args) that returns the class of a worker: makes it available
    as `--speculative-algorithm NAME`.

    The scheduler process builds the worker with the keywords `server_args`, `gpu_id` and
    `target_worker`, and from then on gives its batches to it; see `SpecWorker`. Names count in
    upper case. A reserved or taken one is a ValueError, a `spec_class` that leaves a question of
    `SpeculativeAlgorithm` unanswered a TypeError.
    """
    upper = name.upper()
    if upper in _reserved_names():
        raise ValueError(
            f"'{upper}' is a reserved speculative algorithm name; cannot be re-registered."
        )
    if upper in _REGISTRY:
        raise ValueError(f"Speculative algorithm '{upper}' already registered.")
    _assert_custom_spec_algo_conforms(spec_class)

    def decorator(factory: WorkerFactory) -> WorkerFactory:
        algorithm = spec_class(
            upper,
            factory,
            supports_overlap=supports_overlap,
            validate_server_args=validate_server_args,
        )
        _REGISTRY.register(upper, algorithm, source=source_of(factory))
        return factory

    return decorator


def get_algorithm(name: str) -> CustomSpecAlgo | None:
    """What a plugin registered under the name."""
    algorithm: CustomSpecAlgo | None = _REGISTRY.get(name.upper(), None)
    return algorithm


def registered_algorithms() -> list[str]:
    return _REGISTRY.names()


def _reserved_names() -> frozenset[str]:
    """Read from the enum each time, so a new member is reserved at once."""
    return frozenset(SpeculativeAlgorithm.__members__) | {NEXTN}


def _assert_custom_spec_algo_conforms(spec_class: type[Any]) -> None:
    questions = [
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if name.startswith(("is_", "supports_")) and callable(value)
    ]
    missing = [name for name in questions if not callable(getattr(spec_class, name, None))]
    if missing:
        raise TypeError(
            f"{source_of(spec_class)} lacks {', '.join(missing)}, which the engine asks every "
            "speculative algorithm; derive it from CustomSpecAlgo."
        )
