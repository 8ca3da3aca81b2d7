"""Options of the sampler and of deterministic mode."""

import pytest

from sglang.srt import server_args
from sglang.srt.sampling.sampler_backends import SAMPLER_BACKENDS, register_sampler_backend
from sglang.srt.server_args import ServerArgs


def checked(**options: object) -> ServerArgs:
    args = ServerArgs(model_path="dummy", **options)  # type: ignore[arg-type]
    args.check_server_args()
    return args


def test_deterministic_mode_brings_its_attention() -> None:
    assert checked(enable_deterministic_inference=True).attention_backend == "torch_invariant"
    assert checked().attention_backend == "torch_native"


@pytest.mark.parametrize(
    "options",
    [
        {"attention_backend": "torch_native"},
        {"prefill_attention_backend": "torch_native"},
        {"decode_attention_backend": "torch_native"},
    ],
)
def test_deterministic_mode_refuses_attention_that_varies(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"needs one attention backend.*of torch_invariant; got"):
        checked(enable_deterministic_inference=True, **options)


def test_deterministic_mode_is_for_cpus() -> None:
    with pytest.raises(ValueError, match="--enable-deterministic-inference needs --device cpu"):
        checked(enable_deterministic_inference=True, device="cuda", attention_backend="triton")


def test_plugins_announce_attention_that_does_not_vary() -> None:
    server_args.add_attention_backend_choices(["steady"])
    server_args.add_deterministic_attention_backend_choices(["steady"])
    try:
        args = checked(enable_deterministic_inference=True, attention_backend="steady")
        assert args.attention_backend == "steady"
    finally:
        server_args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.remove("steady")
        server_args.ATTENTION_BACKEND_CHOICES.remove("steady")


def test_unknown_sampler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--sampling-backend must be one of pytorch; got 'flash"):
        checked(sampling_backend="flashinfer")
    assert checked(sampling_backend="pytorch").sampling_backend == "pytorch"


def test_registered_sampler_becomes_a_choice() -> None:
    register_sampler_backend("mine", lambda context: context)  # type: ignore[arg-type,return-value]
    try:
        assert checked(sampling_backend="mine").sampling_backend == "mine"
        assert list(server_args.SAMPLING_BACKEND_CHOICES) == ["mine", "pytorch"]
    finally:
        del SAMPLER_BACKENDS["mine"]
