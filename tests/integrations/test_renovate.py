"""The Renovate manager: run as Renovate runs it, on registries of every layout that it is made for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.actions import BOT_EMAIL, PROJECT

from overlay.registry import load_registry

pytestmark = pytest.mark.no_torch

CONFIG = PROJECT / "integrations/renovate.json5"
PINS = [f"{digit:x}" * 40 for digit in range(10)]
LAYOUTS = f"""\
# repo: acme/commented
#   revision: {PINS[9]}
models:
  acme/plain:
    source:
      revision: {PINS[0]}
    overlay: # with a remark
      repo: acme/plain-overlay  # and another
      # and one on a line of its own: revision: {PINS[9]}

      revision: {PINS[1]}  # built into a server
      fingerprint: {"9" * 64}
    needs:
      - repo: acme/need
        revision: {PINS[2]}
        components: [vae]
      - repo: acme/floating
        floating: no commit is known
      - repo: "acme/quoted.need"
        revision: '{PINS[3]}'
  'acme/quoted':  # a key in quotes
    # and a remark below it: ##########################################################################################
    source:
      # revision: {PINS[9]}
      revision: "{PINS[4]}"
  acme/elsewhere:
    source:
      repo: acme/other-name
      revision: {PINS[5]}
  acme/nothing:
    source:
      floating: nobody knows
    overlay:
      repo: acme/nothing-overlay
      revision: {PINS[6]}
    recipe: {{name: mappings, revision: {PINS[9]}}}
"""
LAYOUT_PINS = [
    ("acme/need", PINS[2]),
    ("acme/nothing-overlay", PINS[6]),
    ("acme/other-name", PINS[5]),
    ("acme/plain", PINS[0]),
    ("acme/plain-overlay", PINS[1]),
    ("acme/quoted", PINS[4]),
    ("acme/quoted.need", PINS[3]),
]


def config() -> dict[str, Any]:
    """The file without its comments, which stand on lines of their own."""
    return json.loads(re.sub(r"^\s*//.*$", "", CONFIG.read_text(), flags=re.MULTILINE))


def manager() -> dict[str, Any]:
    """The one custom manager."""
    (only,) = config()["customManagers"]
    return only


def by_python(text: str) -> list[tuple[str, str]]:
    """What the manager finds, repo and commit, by Python's engine."""
    found = []
    for pattern in manager()["matchStrings"]:
        compiled = re.compile(pattern.replace("(?<", "(?P<"))
        found += [(match["depName"], match["currentDigest"]) for match in compiled.finditer(text)]
    return sorted(found)


def by_node(text: str) -> list[tuple[str, str]]:
    """The same by JavaScript's, which also reads the file as what it is: JSON5 is an expression of that language."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    program = """
        const [config, text] = require("fs").readFileSync(0, "utf8").split("\\0");
        const found = [];
        for (const pattern of eval(`(${config})`).customManagers[0].matchStrings)
            for (const match of text.matchAll(new RegExp(pattern, "g")))
                found.push([match.groups.depName, match.groups.currentDigest]);
        console.log(JSON.stringify(found));"""
    said = subprocess.run(
        [node, "-e", program], input=f"{CONFIG.read_text()}\0{text}", capture_output=True, text=True, check=True
    ).stdout
    return sorted((repo, digest) for repo, digest in json.loads(said))


ENGINES = pytest.mark.parametrize("engine", [by_python, by_node], ids=["python", "node"])


@ENGINES
def test_shipped_registry(engine: Any) -> None:
    """In the registry that ships with this program it finds every pin and nothing else."""
    path = PROJECT / "registry.yaml"
    entries = load_registry(path, environ={}).entries.values()
    pins = sorted((pin.repo, pin.revision) for entry in entries for pin in entry.pins if pin.revision)

    assert engine(path.read_text()) == pins
    assert len(pins) > 10


@ENGINES
def test_layouts(engine: Any) -> None:
    """Remarks, quotes and blank lines do not hide a pin, and what is commented out or not a pin is not found."""
    assert engine(LAYOUTS) == LAYOUT_PINS


def test_replacing_keeps_the_rest() -> None:
    """Renovate replaces the commit within the text that matched: it stands there once."""
    for pattern in manager()["matchStrings"]:
        for match in re.finditer(pattern.replace("(?<", "(?P<"), LAYOUTS):
            assert match[0].count(match["currentDigest"]) == 1


def test_syntax_of_re2() -> None:
    """Renovate's engine knows neither look-around nor back references."""
    for pattern in manager()["matchStrings"]:
        assert not re.search(r"\(\?(?:=|!|<=|<!|>)|\\[1-9k]", pattern)


def test_asks_the_hub() -> None:
    """The head of main of the repo on the Hub is what is proposed; nothing is merged without a person."""
    found = manager()

    assert found["customType"] == "regex"
    assert found["datasourceTemplate"] == "git-refs"
    assert found["currentValueTemplate"] == "main"
    assert found["packageNameTemplate"].replace("{{{depName}}}", "acme/base") == "https://huggingface.co/acme/base"
    assert [rule["automerge"] for rule in config()["packageRules"]] == [False]


@pytest.mark.parametrize(
    ("path", "is_registry"),
    [
        ("registry.yaml", True),
        ("deploy/registry.yml", True),
        ("old-registry.yaml", False),
        ("registry.lock", False),
    ],
)
def test_files(path: str, is_registry: bool) -> None:  # noqa: FBT001 - a column of the table
    """It reads registries, wherever they lie, and no other file."""
    (pattern,) = manager()["managerFilePatterns"]

    assert pattern[0] == pattern[-1] == "/"
    assert bool(re.search(pattern[1:-1], path)) == is_registry


def test_author_of_relock_is_ignored() -> None:
    """Renovate goes on updating branches with a commit of the relock script."""
    assert config()["gitIgnoredAuthors"] == [BOT_EMAIL]
    assert f"email='{BOT_EMAIL}'" in Path(PROJECT / "integrations/github/relock.sh").read_text()
