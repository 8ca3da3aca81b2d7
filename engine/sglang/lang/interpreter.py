"""Runs programs: one, or a batch of the same program in parallel."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import cpu_count
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.executor import StreamExecutor
from sglang.lang.global_config import global_config
from sglang.lang.ir import SglArgument, SglFunction, SglSamplingParams
from sglang.lang.state import ProgramState, ProgramStateGroup
from sglang.lang.tracer import extract_prefix_by_tracing

__all__ = [
    "ProgramState",
    "ProgramStateGroup",
    "StreamExecutor",
    "cache_program",
    "run_program",
    "run_program_batch",
]

# Shorter texts are not worth a request of their own.
MIN_PREFIX_CHARS = 64
MIN_THREADS = 96
THREADS_PER_CPU = 16


def run_program(  # noqa: PLR0913
    program: SglFunction,
    backend: BaseBackend,
    func_args: Sequence[Any],
    func_kwargs: Mapping[str, Any],
    default_sampling_para: SglSamplingParams,
    stream: bool = False,
    sync: bool = False,
    use_thread: bool = True,
) -> ProgramState:
    """Runs a program; with `sync` until all it appended is done.

    With `stream` its function runs on a thread of its own and the state comes back at once; an
    error of the function then ends the state's iterators.
    """
    kwargs = {**program.bind_arguments, **func_kwargs}
    executor = StreamExecutor(
        backend,
        kwargs,
        default_sampling_para,
        stream=stream,
        num_api_spec_tokens=program.num_api_spec_tokens,
        use_thread=use_thread,
    )
    state = ProgramState(executor)
    if not stream:
        _run_function(program, state, func_args, kwargs)
        if sync:
            state.sync()
        return state

    def run() -> None:
        try:
            _run_function(program, state, func_args, kwargs)
        except Exception as error:  # noqa: BLE001 - kept for whoever reads
            executor.fail(error)

    if use_thread:
        threading.Thread(target=run, name="sgl-function", daemon=True).start()
    else:
        run()
    return state


def run_program_batch(
    program: SglFunction,
    backend: BaseBackend,
    batch_arguments: Sequence[Mapping[str, Any]],
    default_sampling_para: SglSamplingParams,
    num_threads: int | str = "auto",
    progress_bar: bool = False,
) -> Iterator[ProgramState]:
    """The states in the order of the arguments, each done when it is yielded.

    The first program whose function raises ends the batch: what has not begun does not begin.
    """
    num_threads = _num_threads(num_threads, len(batch_arguments))
    prefix = ""
    if len(batch_arguments) > 1 and global_config.enable_precache_with_tracing:
        prefix = _plant(program, backend, _common_arguments(batch_arguments))
    with ThreadPoolExecutor(num_threads, "sgl-batch") as pool:
        futures = [
            pool.submit(
                run_program, program, backend, (), arguments, default_sampling_para, sync=True
            )
            for arguments in batch_arguments
        ]
        try:
            for future in _shown(futures, progress_bar):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            if prefix:
                backend.uncache_prefix(prefix)


def cache_program(program: SglFunction, backend: BaseBackend) -> None:
    """Plants what every run of the program begins with in the server's cache."""
    _plant(program, backend, {})


def _run_function(
    program: SglFunction, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    try:
        state.ret_value = program.func(state, *args, **kwargs)
    except BaseException as error:
        state.stream_executor.fail(error)
        raise
    finally:
        state.stream_executor.end()


def _plant(program: SglFunction, backend: BaseBackend, arguments: Mapping[str, Any]) -> str:
    """The text that was planted; empty when it was too short."""
    prefix = extract_prefix_by_tracing(program, backend, arguments)
    if len(prefix) <= MIN_PREFIX_CHARS:
        return ""
    backend.cache_prefix(prefix)
    return prefix


def _common_arguments(batch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Texts and numbers that are the same for the whole batch; placeholders for the rest."""
    first, *others = batch
    common: dict[str, Any] = {name: SglArgument(name) for row in batch for name in row}
    for name, value in first.items():
        if isinstance(value, str | int | float | None) and all(
            name in other and other[name] == value for other in others
        ):
            common[name] = value
    return common


def _num_threads(given: int | str, batch_size: int) -> int:
    if given == "auto":
        given = max(MIN_THREADS, THREADS_PER_CPU * cpu_count())
    if not isinstance(given, int) or given < 1:
        raise ValueError(f'num_threads must be a number from 1, or "auto"; got {given!r}')
    return min(given, batch_size)


def _shown(
    futures: "Sequence[Future[ProgramState]]", progress_bar: bool
) -> "Iterator[Future[ProgramState]]":
    if not progress_bar:
        yield from futures
        return
    from tqdm import tqdm

    yield from tqdm(futures)
