"""Pages that are made from declarations. `python -m tests.architecture.generated` writes them."""

import dataclasses
from pathlib import Path
from typing import Any

from tests.architecture.budgets import ROOT

NOTE = "This page is made from the declarations by `make fix`.\n"


def cell(value: Any) -> str:
    """One table cell; a bar inside would end it."""
    return str(value).replace("|", "\\|")


def default_cell(value: Any) -> str:
    if value in (None, "", [], {}) and value is not False:
        return ""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{cell(shown)}`"


def table(rows: list[tuple[str, str, str, str]]) -> str:
    head = "| flag | default | choices | what |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def engine_options() -> str:
    from sglang.srt.arg_groups.declaration import options_of
    from sglang.srt.server_args import ServerArgs

    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for option in options_of(ServerArgs):
        flags = ", ".join(f"`{flag}`" for flag in (option.flag, *option.aliases))
        choices = ", ".join(map(str, option.choices.source())) if option.choices else ""
        default = "" if option.default is dataclasses.MISSING else default_cell(option.default)
        groups.setdefault(option.group, []).append(
            (flags, default, cell(choices), cell(option.help))
        )
    parts = [f"## {group.capitalize()}\n\n{table(rows)}" for group, rows in groups.items()]
    intro = (
        "Flags of `sglang serve` and `python3 -m sglang.launch_server`. Each can also come from a "
        "variable `SGLANG_<NAME>` or a `--config` file (YAML, TOML, JSON); the flag wins, then the "
        "variable. A server with its own front door also takes the gateway's options for requests, "
        "metrics and logging.\n"
    )
    return "\n".join(["# Engine options\n", NOTE, intro, *parts])


def gateway_options() -> str:
    import sglang_router

    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for option in sglang_router.option_schema():
        flags = ", ".join(f"`{flag}`" for flag in (option["flag"], *option["aliases"]))
        choices = ", ".join(option["choices"] or [])
        row = (flags, default_cell(option["default"]), cell(choices), cell(option["help"]))
        groups.setdefault(option["group"], []).append(row)
    parts = [f"## {group}\n\n{table(rows)}" for group, rows in groups.items()]
    intro = (
        "Flags of `smg launch`. Each can also come from a variable `SMG_<FLAG>` or a `--config` "
        "file (YAML, TOML, JSON); the flag wins, then the variable.\n"
    )
    return "\n".join(["# Gateway options\n", NOTE, intro, *parts])


def engine_metrics() -> str:
    from sglang.srt.observability.latencies import HISTOGRAMS, documented_labels
    from sglang.srt.observability.series import COUNTER, COUNTERS, GAUGES, LABELS, PREFIX

    rows = []
    for series in (*GAUGES, *COUNTERS):
        name = PREFIX + series.name + ("_total" if series.kind == COUNTER else "")
        own = f"`{series.label}`" if series.label else ""
        rows.append((f"`{name}`", series.kind, own, cell(series.text)))
    for name, text in HISTOGRAMS.items():
        own = ", ".join(f"`{label}`" for label in documented_labels(name) if label not in LABELS)
        rows.append((f"`{PREFIX}{name}`", "histogram", own, cell(text)))
    head = "| series | kind | own label | what |\n|---|---|---|---|\n"
    intro = (
        "Every series of an engine. All of them have the labels "
        f"{', '.join(f'`{name}`' for name in LABELS)} and those of `--extra-metric-labels`. "
        "Histograms are there with `--enable-metrics` only. [Metrics](metrics.md) says where they "
        "are served.\n"
    )
    table_rows = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return "\n".join(["# Engine metrics\n", NOTE, intro, head + table_rows])


PAGES = {
    "docs/options-engine.md": engine_options,
    "docs/options-gateway.md": gateway_options,
    "docs/metrics-engine.md": engine_metrics,
}


def main() -> None:
    for name, make in PAGES.items():
        Path(ROOT / name).write_text(make())


if __name__ == "__main__":
    main()
