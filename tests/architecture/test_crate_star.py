"""Leaf crates do not know each other; only the composing crates see several of them."""

import json
import subprocess

from tests.architecture.budgets import ROOT

LEAVES = {
    "smg-admission",
    "smg-api",
    "smg-config",
    "smg-tokenizer",
    "smg-kv-index",
    "smg-routing",
    "smg-engine-client",
}
ALLOWED_EDGES = {
    "sgl-model-gateway": LEAVES | {"smg-simulation", "smg-simulator"},
    "smg-simulation": {
        "smg-routing",
        "smg-kv-index",
    },  # it drives the product's own policies and indexes on a model of engines
    "smg-simulator": {
        "smg-engine-client"
    },  # the engine's double speaks the client's generated types
    "sglang-router": {"sgl-model-gateway"},
}
# Outside crates that one of ours has for itself.
ONLY_USER = {
    "tonic": {"smg-engine-client", "smg-simulator"},
    "prost": {"smg-engine-client", "smg-simulator"},
    "tokenizers": {"smg-tokenizer"},
    "minijinja": {"smg-tokenizer"},
    "clap": {"smg-config", "smg-simulator"},
    "pyo3": {"sglang-router"},
}


def dependencies() -> dict[str, set[str]]:
    done = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return {
        package["name"]: {d["name"] for d in package["dependencies"]}
        for package in json.loads(done.stdout)["packages"]
    }


def test_edges_between_our_crates_are_the_allowed_ones() -> None:
    found = dependencies()
    ours = set(found)
    wrong = {
        name: sorted((needs & ours) - ALLOWED_EDGES.get(name, set()) - {name})
        for name, needs in found.items()
    }
    assert {name: edges for name, edges in wrong.items() if edges} == {}


def test_outside_crates_have_their_one_user() -> None:
    found = dependencies()
    wrong = {
        crate: sorted(name for name, needs in found.items() if crate in needs and name not in users)
        for crate, users in ONLY_USER.items()
    }
    assert {crate: names for crate, names in wrong.items() if names} == {}


def test_the_allow_list_names_existing_crates() -> None:
    assert set(ALLOWED_EDGES) <= set(dependencies())
