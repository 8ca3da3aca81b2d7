"""The bounds of histograms' buckets, and the rules by which options choose them."""

import math
from collections.abc import Sequence

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_COUNTS = (1.0, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MAX_BUCKETS = 200
RULES = "`default`, `tse MIDDLE BASE COUNT` or `custom BOUND …`"


def seconds_buckets(values: Sequence[object] | None, flag: str) -> tuple[float, ...]:
    """The given bounds, or the usual ones. ValueError names `flag`."""
    return SECONDS if values is None else _ascending([_number(v, flag) for v in values], flag)


def token_buckets(rule: Sequence[object] | None, flag: str) -> tuple[float, ...]:
    """The bounds of a rule: `default`; `custom 10 50 100`; or `tse 1000 2 8`, which stands close
    around 1000 and doubles its distance on both sides, 8 bounds beside the middle one.
    """
    if rule is None:
        return TOKEN_COUNTS
    name, *rest = [str(part) for part in rule] or [""]
    numbers = [_number(part, flag) for part in rest] if name in ("tse", "custom") else []
    if name == "default" and not rest:
        return TOKEN_COUNTS
    if name == "custom" and numbers:
        return _ascending(numbers, flag)
    if name == "tse" and len(numbers) == 3:
        return _two_sided(numbers[0], numbers[1], numbers[2], flag)
    raise ValueError(f"{flag} must be {RULES}; got {' '.join(map(str, rule))!r}")


def _two_sided(middle: float, base: float, count: float, flag: str) -> tuple[float, ...]:
    if middle < 1 or base <= 1 or not 2 <= count <= MAX_BUCKETS:
        raise ValueError(
            f"{flag} tse MIDDLE BASE COUNT: MIDDLE must be >= 1, BASE > 1 and COUNT "
            f"2 … {MAX_BUCKETS}; got {middle:g} {base:g} {count:g}"
        )
    try:
        steps = [base**i for i in range(1, int(count) // 2 + 1)]
    except OverflowError:
        raise ValueError(f"{flag} tse: {base:g} ** {count / 2:g} is too large") from None
    below = [middle - step for step in reversed(steps) if step < middle]
    return _ascending([*below, middle, *(middle + step for step in steps)], flag)


def _ascending(bounds: list[float], flag: str) -> tuple[float, ...]:
    if not 1 <= len(bounds) <= MAX_BUCKETS:
        raise ValueError(f"{flag} must hold 1 … {MAX_BUCKETS} bounds, got {len(bounds)}")
    if bounds[0] <= 0 or any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        shown = ", ".join(f"{bound:g}" for bound in bounds)
        raise ValueError(f"{flag} must hold rising bounds above 0, got {shown}")
    return tuple(bounds)


def _number(value: object, flag: str) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{flag}: {value!r} is no number")
    return number
