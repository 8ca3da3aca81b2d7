"""A model with its weights: the class by architecture, the reader by format."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sglang.srt.arg_groups.model import LOAD_FORMAT_CHOICES
from sglang.srt.configs.gguf_file import GgufFile
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.linear import Linear
from sglang.srt.model_loader.gguf_weights import check_complete, iterate_gguf
from sglang.srt.model_loader.safetensors_weights import iterate_safetensors, safetensors_files
from sglang.srt.models.registry import ModelRegistry

logger = logging.getLogger(__name__)

# (done_bytes, total_bytes), of the files on disk.
ProgressCallback = Callable[[int, int], None]
NamedTensors = Iterable[tuple[str, torch.Tensor]]

_DUMMY_SEED = 1234
_DUMMY_SCALE = 0.02


def load_model(
    config: ModelConfig,
    load_format: str,
    dtype: torch.dtype,
    device: torch.device,
    progress: ProgressCallback | None = None,
) -> nn.Module:
    """Builds the model and fills it. Weights are cast to `dtype` while they are copied.

    Raises ValueError or FileNotFoundError, with what is missing, if the files do not suffice.
    """
    load_format = resolve_load_format(config, load_format)
    model_class, architecture = ModelRegistry.resolve_model_cls(config.architectures)
    started = time.monotonic()
    with _default_dtype(dtype), device:
        model: nn.Module = model_class(config)
    if load_format == "dummy":
        _fill_randomly(model)
    else:
        _read_weights(model, config, load_format, progress)
    for module in model.modules():
        if isinstance(module, Linear):
            module.finish_loading()
    model.eval()
    logger.info(
        "Loaded %s as %s in %.1f s (%s).",
        architecture,
        dtype,
        time.monotonic() - started,
        load_format,
    )
    return model


def resolve_load_format(config: ModelConfig, load_format: str) -> str:
    """Turns `auto` into a format; refuses one that the files do not have."""
    if load_format not in LOAD_FORMAT_CHOICES:
        raise ValueError(
            f"load_format must be one of {', '.join(LOAD_FORMAT_CHOICES)}, got {load_format!r}."
        )
    actual = "gguf" if config.is_gguf else "safetensors"
    if load_format == "auto":
        return actual
    if load_format not in ("dummy", actual):
        raise ValueError(
            f"load_format {load_format!r} does not fit {config.model_path}, which is {actual}."
        )
    return load_format


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, shared ones once, and of the copies that are made of them."""
    blocked = sum(each.blocked_bytes for each in model.modules() if isinstance(each, Linear))
    return blocked + sum(parameter.nbytes for parameter in model.parameters())


def _read_weights(
    model: nn.Module, config: ModelConfig, load_format: str, progress: ProgressCallback | None
) -> None:
    report = progress or (lambda done, total: None)
    if load_format == "gguf":
        file = GgufFile(config.model_path)
        check_complete(file, model.expected_weights())
        weights: NamedTensors = iterate_gguf(file, config)
        total_bytes = config.model_path.stat().st_size
    else:
        files = safetensors_files(config.model_path)
        weights = iterate_safetensors(files)
        total_bytes = sum(path.stat().st_size for path in files)
    total_values = sum(parameter.numel() for parameter in model.parameters())
    model.load_weights(_counted(weights, total_values, total_bytes, report))
    report(total_bytes, total_bytes)


def _counted(
    weights: NamedTensors, total_values: int, total_bytes: int, report: ProgressCallback
) -> Iterator[tuple[str, torch.Tensor]]:
    """Reports after each tensor; bytes on disk are shared out by the tensors' sizes."""
    done_values = 0
    for name, tensor in weights:
        yield name, tensor
        done_values = min(done_values + tensor.numel(), total_values)
        report(total_bytes * done_values // total_values, total_bytes)


def _fill_randomly(model: nn.Module) -> None:
    """The same numbers on every machine, for tests of everything but the answers' sense."""
    generator = torch.Generator().manual_seed(_DUMMY_SEED)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.fill_(1.0)
        else:
            noise = torch.randn(parameter.shape, generator=generator, device="cpu")
            parameter.data.copy_(noise * _DUMMY_SCALE)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
