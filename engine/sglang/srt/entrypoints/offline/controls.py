"""The operations of an engine besides generating."""

from pathlib import Path
from typing import Any

from sglang.srt.entrypoints.control import run_operation
from sglang.srt.entrypoints.offline.worker import OfflineWorker


class EngineControls:
    """Each returns when the scheduler has done it. ValueError: it refused, and says why."""

    def __init__(self, worker: OfflineWorker) -> None:
        self._worker = worker

    @property
    def scheduler_pid(self) -> int:
        return self._worker.pid

    def flush_cache(self) -> dict[str, Any]:
        """Forgets every cached prefix, unless a request runs: whether it did is in `success`."""
        return self._operate("flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        """The options as resolved, the scheduler's sizes and its live counters."""
        return self._operate("server_info")

    def get_model_info(self) -> dict[str, Any]:
        """The model card."""
        return self._operate("model_info")

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Ends a request by its id, or all; their callers get what there is, with finish reason
        `abort`. An id that is unknown may have just ended, and is no error.
        """
        target = {"all": True} if abort_all else {"rid": rid}
        self._operate("abort", **target, message="Aborted by the caller")

    def pause_generation(self, mode: str = "abort") -> None:
        """No step begins until `continue_generation`. What runs ends (`abort`), goes back to the
        queue (`retract`) or stays where it is (`in_place`); new requests wait.
        """
        self._operate("pause_generation", mode=mode)

    def continue_generation(self, torch_empty_cache: bool = False) -> None:
        self._operate("continue_generation", torch_empty_cache=torch_empty_cache)

    def open_session(
        self,
        capacity_of_str_len: int = 0,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """The id for `session_params`. `capacity_of_str_len`: most tokens of a history, 0 for the
        model's; `timeout`: seconds without a request after which the session is closed.
        """
        options = {"capacity_of_str_len": capacity_of_str_len, "session_id": session_id,
                   "streaming": streaming, "timeout": timeout}  # fmt: skip
        return str(self._operate("open_session", **options)["session_id"])

    def close_session(self, session_id: str) -> None:
        self._operate("close_session", session_id=session_id)

    def load_lora_adapter(
        self, lora_name: str, lora_path: str, pinned: bool = False
    ) -> dict[str, Any]:
        """Prompts may name the adapter as `lora_path` from now on. `success`, `error_message` and
        `loaded_adapters`, path by name. A pinned one keeps its place on the device.
        """
        return self._operate(
            "load_lora_adapter", lora_name=lora_name, lora_path=lora_path, pinned=pinned
        )

    def unload_lora_adapter(self, lora_name: str) -> dict[str, Any]:
        """Returns when the last prompt that uses it has its answer. Reply as when loading."""
        return self._operate("unload_lora_adapter", lora_name=lora_name)

    def update_weights_from_disk(self, model_path: str) -> dict[str, Any]:
        """Of an adapter's folder: loads it, with the path as its name, in place of what was loaded
        from there before. Other weights are not replaced while the engine runs.
        """
        if not (Path(model_path).expanduser() / "adapter_config.json").is_file():
            raise ValueError(
                f"model_path must be the folder of an adapter, with adapter_config.json; got "
                f"{model_path!r}. To serve other weights, start another engine."
            )
        if model_path in self._operate("lora_adapters")["loaded_adapters"]:
            self.unload_lora_adapter(model_path)
        return self.load_lora_adapter(model_path, model_path)

    def _operate(self, name: str, **args: Any) -> dict[str, Any]:
        return self._worker.wait(run_operation(self._worker.service, name, args))
