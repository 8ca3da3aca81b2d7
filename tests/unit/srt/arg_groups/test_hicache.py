"""Options of the tiers below the KV pool."""

import pytest

from sglang.srt.arg_groups.absent import why_absent
from sglang.srt.server_args import ServerArgs


def checked(**options: object) -> ServerArgs:
    args = ServerArgs(model_path="dummy", **options)  # type: ignore[arg-type]
    args.check_server_args()
    return args


def test_defaults() -> None:
    args = checked()
    assert not args.enable_hierarchical_cache
    assert args.hicache_ratio is None
    assert args.hicache_size == 0
    assert args.hicache_write_policy == "write_through"
    assert args.hicache_mem_layout == "page_first"
    assert args.hicache_storage_prefetch_policy == "timeout"


def test_all_of_it_together() -> None:
    checked(
        enable_hierarchical_cache=True,
        hicache_size=1,
        hicache_write_policy="write_back",
        hicache_mem_layout="layer_first",
        hicache_storage_backend="file",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_storage_backend_extra_config='{"prefetch_threshold": 1}',
    )


@pytest.mark.parametrize(
    "options,text",
    [
        ({"enable_hierarchical_cache": True, "disable_radix_cache": True}, "exclude each other"),
        ({"hicache_storage_backend": "file"}, "needs --enable-hierarchical-cache"),
        ({"hicache_ratio": 0.0}, "--hicache-ratio must be > 0"),
        ({"hicache_size": -1}, "--hicache-size must be >= 0"),
        ({"hicache_write_policy": "x"}, "--hicache-write-policy must be one of write_through,"),
        ({"hicache_mem_layout": "page_head"}, "must be one of layer_first, page_first;"),
        (
            {"enable_hierarchical_cache": True, "hicache_storage_backend": "hf3fs"},
            "Unknown storage backend 'hf3fs'",
        ),
        (
            {"enable_hierarchical_cache": True, "hicache_storage_backend_extra_config": "{"},
            "must be a JSON object or @FILE",
        ),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        checked(**options)
    assert text in str(caught.value)


def test_the_copy_kernel_is_not_chosen() -> None:
    assert why_absent("--hicache-io-backend") is not None
    assert why_absent("--hicache-ratio") is None
