"""Patterns whose matches have lengths within bounds.

A pattern in several parts has no short form of that, so what is written may match less: the room is
shared out among the parts. It never matches more.
"""

from sglang.srt.constrained.regex_rules import (
    Choice,
    Class,
    Node,
    Repeat,
    Sequence,
    anchored,
    string_tree,
)


def fitted_pattern(pattern: str, least: int, most: int | None) -> str | None:
    """For strings of `least` to `most` characters; None: no match is found that is so long."""
    node = _fitted(string_tree(pattern), least, most)
    return None if node is None else anchored(node)


def _fitted(node: Node, least: int, most: int | None) -> Node | None:
    shortest, longest = _lengths(node)
    if most is not None and shortest > most:
        return None
    if longest is not None and longest < least:
        return None
    fits_most = most is None or (longest is not None and longest <= most)
    if shortest >= least and fits_most:
        return node
    if isinstance(node, Choice):
        options = [_fitted(option, least, most) for option in node.options]
        kept = tuple(option for option in options if option is not None)
        return Choice(kept) if kept else None
    if isinstance(node, Repeat):
        return _fitted_repeat(node, least, most)
    if isinstance(node, Sequence):
        return _fitted_sequence(node, least, most)
    return None


def _fitted_repeat(node: Repeat, least: int, most: int | None) -> Node | None:
    shortest, longest = _lengths(node.part)
    if shortest and longest is not None:
        counts = [] if most is None else [most // longest]
        counts += [] if node.most is None else [node.most]
        low = max(node.least, -(-least // shortest))
        if not counts or low <= min(counts):
            return Repeat(node.part, low, min(counts, default=None))
    if node.least <= 1 and node.most != 0:
        return _fitted(node.part, least, most)
    return None


def _fitted_sequence(node: Sequence, least: int, most: int | None) -> Node | None:
    bounds = [_lengths(part) for part in node.parts]
    lows = [low for low, _ in bounds]
    room = None if most is None else most - sum(lows)
    highs: list[int | None] = [high for _, high in bounds]
    if room is not None:
        elastic = sorted(
            (i for i, (low, high) in enumerate(bounds) if high != low),
            key=lambda i: (bounds[i][1] is None, (bounds[i][1] or 0) - bounds[i][0]),
        )
        for position, i in enumerate(elastic):  # the least elastic first, so others get its rest
            share, (low, high) = room // (len(elastic) - position), bounds[i]
            given = share if high is None else min(share, high - low)
            highs[i] = low + given
            room -= given
    wanted = least - sum(lows)
    for i in reversed(range(len(lows))):
        high = highs[i]
        given = max(0, wanted if high is None else min(wanted, high - lows[i]))
        lows[i] += given
        wanted -= given
    if wanted > 0:
        return None
    parts = [_fitted(*each) for each in zip(node.parts, lows, highs, strict=True)]
    kept = tuple(part for part in parts if part is not None)
    return Sequence(kept) if len(kept) == len(parts) else None


def _lengths(node: Node) -> tuple[int, int | None]:
    """Of the shortest and the longest match; None: there is no longest."""
    if isinstance(node, Class):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = _lengths(node.part)
        if high == 0 or node.most == 0:
            return low * node.least, 0
        longest = None if high is None or node.most is None else high * node.most
        return low * node.least, longest
    if isinstance(node, Sequence | Choice):
        inner = [_lengths(part) for part in _inside(node)]
        lows, highs = [low for low, _ in inner], [high for _, high in inner]
        known = [high for high in highs if high is not None]
        if isinstance(node, Choice):
            return min(lows), max(known) if len(known) == len(highs) else None
        return sum(lows), sum(known) if len(known) == len(highs) else None
    return 0, 0


def _inside(node: Sequence | Choice) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else node.options
