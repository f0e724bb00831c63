"""Which servers load the layout that a recipe makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.contracts import codes, make_hub, subject_of

from overlay.consumers.layouts import H3, INDEX, why_not_loaded
from overlay.consumers.server import parse_server
from overlay.contract.checks.layout import check_layout
from overlay.contract.checks.look import Warmed
from overlay.contract.checks.server import check_server
from overlay.contract.subject import Subject
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

NATIVE = {"FL2VA/model_index.json"}


@pytest.mark.parametrize(
    ("server", "paths", "transformer", "loads"),
    [
        ("sglang", {INDEX}, H3, True),
        ("sglang", NATIVE, None, False),
        ("sglang", {INDEX, *NATIVE}, H3, True),
        ("vllm-omni", {INDEX}, H3, False),
        ("vllm-omni", {INDEX}, "WanTransformer3DModel", True),
        ("vllm-omni", {INDEX}, None, True),
        ("vllm-omni", NATIVE, None, True),
        ("vllm-omni", {"Ref2VA/model_index.json"}, None, True),
    ],
)
def test_what_a_server_loads(server: str, paths: set[str], transformer: str | None, *, loads: bool) -> None:
    """The layout of Diffusers, MiniMax's own, or what nothing speaks against."""
    assert (why_not_loaded(parse_server(server), paths, transformer) is None) == loads


def native(root: Path, recipe: str) -> Subject:
    """A release of MiniMax-H3 and an entry of it; the repos hold what a check reads."""
    hub, commit = root / "hub", "a" * 40
    for path, text in {
        "transformer/config.json": f'{{"_class_name": "{H3}"}}',
        "FL2VA/model_index.json": "{}",
        "FL2VA/transformer/config.json": "{}",
    }.items():
        file = hub / "acme/h3" / commit / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    registry = root / "registry.yaml"
    registry.write_text(
        "schema_version: 1\nmodels:\n  acme/model:\n"
        f"    source: {{repo: acme/h3, revision: {commit}}}\n    recipe: {recipe}\n"
    )
    resolution = resolve("acme/model", load_registry(registry, environ={}, cwd=root))
    memo = DigestMemo(None, write=False)
    return Subject(take_inventory(resolution, hub=hub, offline=True, memo=memo, allow_floating=True))


LORA = "name: lora, base: {path: transformer}, adapters: [{path: adapters}]"


@pytest.mark.parametrize(
    ("recipe", "server"),
    [
        (f"{{{LORA}}}", "sglang"),
        (f"{{{LORA}, output: {{layout: native, folder: FL2VA, siblings: {{path: FL2VA}}}}}}", "vllm-omni"),
        ("{name: compose, parts: [{path: FL2VA}]}", "vllm-omni"),
    ],
)
def test_what_a_recipe_makes_is_for_one_server(tmp_path: Path, recipe: str, server: str) -> None:
    """The other one is told not to load it, at the recipe; by its own check or beside what it looks up."""
    subject = native(tmp_path, recipe)
    other = {"sglang": "vllm-omni", "vllm-omni": "sglang"}[server]
    assert list(check_layout(subject, parse_server(server))) == []
    [finding] = check_layout(subject, parse_server(other))
    assert (finding.code, finding.severities) == ("layout-not-loaded", {"overlay": "error", "sglang": "note"})
    assert finding.place == subject.entry.recipe.place
    assert str(finding.fix).endswith(f"overlay env acme/model --for {server}")
    if other == "sglang":
        found = list(check_server(subject, parse_server(other), Warmed(), lambda pin: pytest.fail(str(pin))))
        assert codes(found) == ["layout-not-loaded"]


def test_vdn_h3_is_laid_out_for_sglang(tmp_path: Path) -> None:
    """Without a look at any file."""
    subject = subject_of(make_hub(tmp_path), tmp_path)
    assert codes(check_layout(subject, parse_server("vllm-omni"))) == ["layout-not-loaded"]
    assert list(check_layout(subject, parse_server("sglang"))) == []
