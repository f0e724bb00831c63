"""Small registry files for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry import Registry

A, B, C, D = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
VDN = "OpenVDN/vdn-minimax-h3"

ENTRY = f"""\
  acme/model:
    source:
      revision: {A}
    overlay:
      repo: acme/overlay
      revision: {B}
    recipe:
      name: mappings
"""


def registry_text(*entries: str) -> str:
    """A whole file with these entries."""
    return "schema_version: 1\nmodels:\n" + "".join(entries)


def load_text(folder: Path, text: str, **environ: str) -> Registry:
    """The registry in force with ``text`` named by flag."""
    path = folder / "mine.yaml"
    path.write_text(text)
    return load_registry(path, environ=environ, cwd=folder)
