"""The page of error codes says what the code has."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import overlay
from overlay import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.no_torch

ROOT = Path(overlay.__file__).parent
PAGE = Path(__file__).parent.parent / "docs/reference/errors.md"
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CLASSES = {name for name in errors.__all__ if name != "OverlayError"}
# Functions and classes that take a code by position, and the class that it ends up with.
HELPERS = {
    "_bad": "BrokenInput",
    "_RefusedError": "BrokenInput",
    "Problem": "InvalidRegistry",
    "report": "InvalidRegistry",
    "_refuse": "InvalidRegistry",
    "wrong": "InvalidRegistry",
}
# Codes in tables and variables, by package.
OF_PACKAGE = {"formats": "BrokenInput", "registry": "InvalidRegistry"}
# Not raised as one of the classes, or made of parts: what the command line itself ends with, states of a model.
OF_THE_COMMAND_LINE = {
    "usage": {"2"},
    "bug": {"70"},
    "interrupted": {"130"},
    "terminated": {"143"},
    "transient": {"5"},
    "out-of-memory": {"4", "5"},
    "model-absent": {"3"},
    "model-damaged": {"3"},
    "model-stale": {"3"},
    "model-unknown": {"3"},
}


def constants(node: ast.expr | None) -> Iterator[str]:
    """Texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def codes_of(path: Path) -> Iterator[tuple[str, str]]:
    """Every code in a module, with its class."""
    package = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CLASSES:
                for keyword in node.keywords:
                    if keyword.arg == "code":
                        yield from ((code, name) for code in constants(keyword.value))
            elif name in HELPERS:
                texts = [text for arg in node.args for text in constants(arg)]
                yield from ((text, HELPERS[name]) for text in texts if "-" in text and CODE.fullmatch(text))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and package in OF_PACKAGE:
            names = [getattr(target, "id", "") for target in node.targets[0].elts]
            if "code" in names and isinstance(node.value, ast.Tuple):
                yield from ((c, OF_PACKAGE[package]) for c in constants(node.value.elts[names.index("code")]))


def expected() -> dict[str, set[str]]:
    """The exit statuses of each code."""
    from overlay.formats import os_errors

    found = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for code, name in codes_of(path):
            found[code].add(str(getattr(errors, name).exit_status))
    for code, _ in os_errors._WRITING.values():
        found[code].add("4")
    for code in ("link-loop", "name-too-long"):
        found[code].add("1")
    found["write-failed"].add("4")
    return found | OF_THE_COMMAND_LINE


def test_the_page_has_every_code_with_its_status() -> None:
    """Neither a code without a line, nor a line without a code, nor another status."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {code: set(re.findall(r"\d+", status)) for code, status, _, _ in rows}

    assert listed == expected()
    assert [code for code, *_ in rows] == sorted(listed), "each once, in the order of the alphabet"


def test_the_page_names_the_classes() -> None:
    """The classes of a line are those that have its statuses."""
    for code, status, classes, _ in re.findall(
        r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    ):
        named = re.findall(r"`(\w+)`", classes)
        assert {str(getattr(errors, name).exit_status) for name in named} == set(
            re.findall(r"\d+", status)
        ) or code in OF_THE_COMMAND_LINE
