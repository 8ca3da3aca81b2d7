"""A scheduler process of our own, and the event loop that talks to it."""

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from sglang.srt.entrypoints import engine
from sglang.srt.entrypoints.event_publisher import Publishing
from sglang.srt.entrypoints.offline.errors import EngineError, callers_errors
from sglang.srt.entrypoints.pulse import Pulse
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.entrypoints.service import EngineService
from sglang.srt.entrypoints.work_folder import work_folder
from sglang.srt.environ import envs
from sglang.srt.server_args import PortArgs, ServerArgs

LAST_WORDS_TIMEOUT = 0.5  # seconds for a dead scheduler's last message to arrive
Result = TypeVar("Result")

_running: "weakref.WeakSet[OfflineWorker]" = weakref.WeakSet()


class OfflineWorker:
    """Client and service belong to the worker's own thread; `wait` and `submit` get work there."""

    client: SchedulerClient
    service: EngineService

    def __init__(self, args: ServerArgs) -> None:
        """Returns when the model is loaded. EngineError says why it cannot be."""
        self._args = args
        self._end_lock = threading.Lock()
        # Held for moments only; the garbage collector may come back to us while it is.
        self._submit_lock = threading.RLock()
        self._has_ended = False
        self._process: engine.SchedulerProcess | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._owned = ExitStack()  # what goes when the scheduler has
        folder = self._owned.enter_context(work_folder())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="sglang-engine", daemon=True)
        self._thread.start()
        _running.add(self)
        ports = PortArgs.in_folder(str(folder))
        try:
            self.wait(self._bind(ports))
            self._process = engine._launch_subprocesses(args, ports)
            self.wait(self._until_ready(self._process))
        except BaseException:
            self.shut_down()
            raise

    @property
    def pid(self) -> int:
        """Of the scheduler process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def submit(self, work: Coroutine[Any, Any, Result]) -> "concurrent.futures.Future[Result]":
        """Starts the work in the worker's thread. Cancelling the future cancels the work."""
        with self._submit_lock:
            # What is in the loop before the end is ended with it.
            if not self._has_ended:
                return asyncio.run_coroutine_threadsafe(_translated(work), self._loop)
        work.close()
        raise EngineError("the engine was shut down; make a new one")

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Does the work in the worker's thread; for any other thread."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # on Ctrl-C: nobody waits for it any more
            raise

    def shut_down(self) -> None:
        """Ends what runs, and the process; nothing is left afterwards. Idempotent."""
        if threading.current_thread() is self._thread:  # the garbage collector came by here
            threading.Thread(target=self.shut_down, name="sglang-engine-end").start()
            return
        with self._end_lock:
            with self._submit_lock:
                if self._has_ended:
                    return
                self._has_ended = True
            if self._process is not None:
                self._call(self._ask_to_end())
                self._process.end()
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._owned.close()
            _running.discard(self)

    # -------------------------------------------------------------- in the worker's thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _bind(self, ports: PortArgs) -> None:
        self.client = SchedulerClient(ports, max_queued=self._args.most_waiting)
        self.service = EngineService(self._args, self.client)
        self._publishing = Publishing(self._args.kv_events, self.client.kv_events)

    async def _until_ready(self, process: engine.SchedulerProcess) -> None:
        suspect_after = envs.SGLANG_HEALTH_CHECK_TIMEOUT.get()
        pulse = Pulse(self.client, suspect_after, self._args.watchdog_timeout + suspect_after)
        receiving = asyncio.create_task(self.client.run())
        silent = asyncio.create_task(pulse.run())
        watching = asyncio.create_task(self._watch(process, receiving, silent))
        self._tasks = [watching, silent, receiving]
        await asyncio.shield(self.client.became_ready)

    async def _watch(
        self,
        process: engine.SchedulerProcess,
        receiving: "asyncio.Task[None]",
        silent: "asyncio.Task[str]",
    ) -> None:
        """Ends every wait once the scheduler is gone, or silent for too long."""
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        died = asyncio.create_task(dead.wait())
        loop.add_reader(process.sentinel, dead.set)
        try:
            waits: list[asyncio.Task[Any]] = [died, receiving, silent]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(process.sentinel)
            died.cancel()
        if receiving.done():
            self.client.fail(f"reading from the scheduler failed: {receiving.exception()!r}")
        elif dead.is_set():
            await self.client.wait_failed(LAST_WORDS_TIMEOUT)
            self.client.fail(process.describe_end())
        else:
            self.client.fail(silent.result())
            process.kill()

    async def _ask_to_end(self) -> None:
        if self._tasks:
            self._tasks[0].cancel()  # from now on the end is no failure
            await asyncio.gather(self._tasks[0], return_exceptions=True)
        if not self.client.became_ready.done() and self._process is not None:
            self._process.kill()  # nothing to lose yet, and it may not listen for minutes
        self.client.shut_down()

    async def _close(self) -> None:
        if not hasattr(self, "client"):
            return
        self.client.fail("the engine was shut down")
        if hasattr(self, "_publishing"):
            await self._publishing.end()
        own = asyncio.current_task()
        for task in self._tasks:
            task.cancel()
        others = [task for task in asyncio.all_tasks() if task is not own]
        _, waiting = await asyncio.wait(others, timeout=1.0) if others else ((), ())
        for task in waiting:
            task.cancel()
        self.service.observers.shut_down()
        self.client.close()


async def _translated(work: Coroutine[Any, Any, Result]) -> Result:
    with callers_errors():
        return await work


@atexit.register
def _end_all() -> None:
    for worker in list(_running):
        worker.shut_down()
