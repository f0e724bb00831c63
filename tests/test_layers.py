"""The package order, and the size of modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import overlay

pytestmark = pytest.mark.no_torch

ROOT = Path(overlay.__file__).parent
# A package imports only from those above it.
ORDER = (
    "errors",
    "formats",
    "fingerprint",
    "registry",
    "hub",
    "consumers",
    "planning",
    "contract",
    "upkeep",
    "fusion",
    "cache",
    "store",
    "sandbox",
    "materialization",
    "demo",
    "cli",
)
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST = 400


def package_of(path: Path) -> str:
    """The first name below ``overlay``: a package, or a module of its own."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Names directly below ``overlay`` that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide where a name comes from"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("overlay.")}


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_imports_only_from_packages_above(path: Path) -> None:
    """A module imports its own package and those above it in the order, and nothing below."""
    package = package_of(path)
    if package in {"__init__", "__main__"}:
        return
    allowed = {*ORDER[: ORDER.index(package) + 1], "__version__"}

    assert set() == imported(path) - allowed


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_module_is_short(path: Path) -> None:
    """A module of more than 400 lines wants splitting."""
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=identifier)
def test_heavy_packages_are_imported_late(path: Path) -> None:
    """Only fusion imports torch at a module's top, and only hub the Hub client."""
    at_top = {"fusion": {"torch"}, "hub": {"huggingface_hub"}}.get(package_of(path), set())
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])

    assert set() == names & {"torch", "huggingface_hub", "diffusers", "transformers", "numpy"} - at_top


def test_torch_is_imported_in_one_place() -> None:
    """Whoever imports torch first sees its warning that NumPy is missing, so all take it from one place."""
    importing = {
        identifier(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names)
    }

    assert importing == {"fusion/quiet_torch.py"}
