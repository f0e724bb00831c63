"""Entries that let an overlay's own Python run: the script, its limits, its wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.registries import A, B, C, load_text, registry_text

from overlay.errors import InvalidRegistry
from overlay.registry import Need, Pin, ScriptLimits, Wheel, load_registry
from overlay.registry.lock import LockedModel, recipe_json
from overlay.upkeep.new_entry import entry_fields, guess_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry import Entry

pytestmark = pytest.mark.no_torch

S, W = "5" * 64, "7" * 64
WHEEL = "some_helper-1.2.0-py3-none-any.whl"
HEAD = f"""\
  acme/model:
    source: {{revision: {A}}}
    overlay: {{repo: acme/overlay, revision: {B}}}
"""
WHOLE = f"""{HEAD}\
    needs:
      - repo: acme/text
        revision: {C}
        components: [text_encoder]
      - wheel: {WHEEL}
        sha256: {W}
      - {{wheel: other-1-py2.py3-none-any.whl, sha256: {W}, url: https://example.org/w/other-1-py2.py3-none-any.whl}}
    recipe:
      name: python
      script: {{sha256: {S}}}
      limits: {{time: 90m, memory: 64GiB, processes: 500, disk: 100 GB}}
"""


def entry_of(folder: Path, text: str) -> Entry:
    """The one entry of a registry."""
    return load_text(folder, registry_text(text)).entries["acme/model"]


def test_everything_comes_through(tmp_path: Path) -> None:
    """Repos stay needs; wheels enter the recipe by name and digest, limits do not."""
    entry = entry_of(tmp_path, WHOLE)

    assert entry.needs == (Need(Pin("acme/text", C), ("text_encoder",)),)
    other = "other-1-py2.py3-none-any.whl"
    assert entry.wheels == (Wheel(WHEEL, W), Wheel(other, W, f"https://example.org/w/{other}"))
    wheels = [f"{WHEEL}@sha256:{W}", f"{other}@sha256:{W}"]
    assert entry.recipe.options == {"script": S, "wheels": wheels}
    assert entry.recipe.limits == ScriptLimits(5400, 64 * 2**30, 500, 100 * 10**9)
    assert entry.is_buildable
    assert recipe_json(entry) == {"name": "python", "script": S, "wheels": wheels}


def test_the_widest_limits(tmp_path: Path) -> None:
    """Both ends are taken."""
    text = WHOLE.replace("time: 90m", "time: 7d").replace("processes: 500", "processes: 65536")
    text = text.replace("memory: 64GiB", "memory: 64MB").replace("disk: 100 GB", "disk: 8192TiB")
    assert entry_of(tmp_path, text).recipe.limits == ScriptLimits(7 * 86400, 64 * 10**6, 65_536, 2**53)


def test_an_entry_may_pin_no_script(tmp_path: Path) -> None:
    """As those that ship with the program: it resolves, and is not built."""
    entry = entry_of(tmp_path, f"{HEAD}    recipe: {{name: python}}\n")

    assert (entry.recipe.options, entry.recipe.limits, entry.wheels) == ({}, ScriptLimits(), ())
    assert not entry.is_buildable


@pytest.mark.parametrize(
    ("old", "new", "place", "code"),
    [
        (f"{{sha256: {S}}}", f"{{sha256: {S[:-1]}}}", "15:16", "not-a-sha256"),
        (f"{{sha256: {S}}}", f"{{sha256: {'A' * 64}}}", "15:16", "not-a-sha256"),
        (f"{{sha256: {S}}}", "{}", "15:7", "missing-key"),
        (f"{{sha256: {S}}}", S, "15:7", "wrong-type"),
        (f"{{sha256: {S}}}", f"{{sha256: {S}, path: x.py}}", "15:90", "unknown-key"),
        ("time: 90m", "time: soon", "16:16", "not-a-limit"),
        ("time: 90m", "time: 0", "16:16", "not-a-limit"),
        ("memory: 64GiB", "memory: 64 gallons", "16:27", "not-a-limit"),
        ("processes: 500", "processes: 0", "16:42", "not-a-limit"),
        ("processes: 500", "processes: 1.5", "16:42", "not-a-limit"),
        ("disk: 100 GB", "disk: -1", "16:58", "not-a-limit"),
        ("time: 90m", "time: 8d", "16:16", "not-a-limit"),
        ("time: 90m", f"time: {'9' * 5000}", "16:16", "not-a-limit"),
        ("processes: 500", "processes: 65537", "16:42", "not-a-limit"),
        ("processes: 500", f"processes: '{'9' * 5000}'", "16:42", "not-a-limit"),
        ("processes: 500", "processes: '\u0665'", "16:42", "not-a-limit"),
        ("memory: 64GiB", "memory: 1", "16:27", "not-a-limit"),
        ("memory: 64GiB", "memory: 63MB", "16:27", "not-a-limit"),
        ("disk: 100 GB", "disk: 99999999999GiB", "16:58", "not-a-limit"),
        ("disk: 100 GB", f"disk: {'9' * 5000}", "16:58", "not-a-limit"),
        ("disk: 100 GB", "room: 1", "16:58", "unknown-key"),
        (f"wheel: {WHEEL}", "wheel: some_helper-1.2.0-cp311-cp311-linux_x86_64.whl", "10:9", "not-a-wheel"),
        (f"wheel: {WHEEL}", "wheel: ../x-1-py3-none-any.whl", "10:9", "not-a-wheel"),
        ("https://example", "http://example", None, "not-a-url"),
        ("https://example.org", "https://me:secret@example.org", None, "not-a-url"),
        (f"        sha256: {W}\n", "", "10:9", "missing-key"),
        (f"        sha256: {W}\n", f"        sha256: {W}\n        revision: {C}\n", "12:9", "unknown-key"),
        (f"        sha256: {W}\n", f"        sha256: {W}\n        components: [a]\n", "12:9", "unknown-key"),
        ("other-1-py2", "Some-Helper-1-py2", None, "not-a-wheel"),
        ("other-1-py2.py3-none-any.whl, s", "Some_Helper-3-py3-none-any.whl, s", "6:5", "wheel-twice"),
        (f"python\n      script: {{sha256: {S}}}\n", "mappings\n", "15:7", "unknown-key"),
        ("components: [text_encoder]", "colour: red", "9:9", "unknown-key"),
        (f"revision: {C}\n", "revision: main\n", "8:9", "not-a-commit"),
    ],
)
def test_what_is_wrong_is_pointed_at(tmp_path: Path, old: str, new: str, place: str | None, code: str) -> None:
    """Line and column of the value that has to change, whichever kind of need it is in."""
    assert old in WHOLE
    with pytest.raises(InvalidRegistry) as caught:
        entry_of(tmp_path, WHOLE.replace(old, new, 1))
    [problem] = caught.value.data["problems"]

    assert problem["code"] == code
    if place is not None:
        assert f"{problem['line']}:{problem['column']}" == place
    if code == "not-a-commit":
        assert "acme/text" in problem["hint"]


def test_a_wheel_needs_a_script(tmp_path: Path) -> None:
    """A recipe that runs none would leave it lying."""
    text = f"{HEAD}    needs: [{{wheel: {WHEEL}, sha256: {W}}}]\n    recipe: {{name: mappings}}\n"
    with pytest.raises(InvalidRegistry) as caught:
        entry_of(tmp_path, text)
    assert caught.value.code == "wheel-without-script"


def test_layers(tmp_path: Path) -> None:
    """Needs, wheels among them, and recipe are replaced whole and said; what is not named stays."""
    model = "tencent/Hy-Nomas"
    text = f"  {model}:\n    recipe: {{name: python, script: {{sha256: {S}}}, limits: {{disk: 1GB}}}}\n"
    registry = load_text(tmp_path, registry_text(text))
    entry = registry.entries[model]

    assert (entry.recipe.options, entry.recipe.limits.disk) == ({"script": S}, 10**9)
    said = " ".join(registry.replaced[model])
    assert f"recipe python (script {S}) replaces python" in said
    assert "limits disk 1000000000 replaces none" in said
    text += f"    needs: [{{wheel: {WHEEL}, sha256: {W}}}]\n"
    entry = load_text(tmp_path, registry_text(text)).entries[model]
    assert entry.recipe.options == {"script": S, "wheels": [f"{WHEEL}@sha256:{W}"]}


@pytest.mark.parametrize(
    ("old", "new"), [(S, "6" * 64), (W, "8" * 64), (f"      - wheel: {WHEEL}\n        sha256: {W}\n", "")]
)
def test_a_lock_is_of_one_script_and_its_wheels(tmp_path: Path, old: str, new: str) -> None:
    """Another of them is another recipe; another limit is not."""
    entry = entry_of(tmp_path, WHOLE)
    repos = {pin.repo: {"revision": pin.revision, "files": {}} for pin in entry.pins}
    repos["acme/text"]["components"] = ("text_encoder",)
    locked = LockedModel.model_validate({"recipe": recipe_json(entry), "location": "x", "repos": repos})

    assert locked.differences(entry) == ()
    assert locked.differences(entry_of(tmp_path, WHOLE.replace("64GiB", "1GiB"))) == ()
    [difference] = locked.differences(entry_of(tmp_path, WHOLE.replace(old, new, 1)))
    assert difference.startswith("locked with the recipe python (script ")


def test_an_added_entry_keeps_script_and_wheels(tmp_path: Path) -> None:
    """Of a model that is known: written as a registry file has them, and read back the same."""
    known = entry_of(tmp_path, WHOLE)
    guess = guess_recipe(None, known, None, None)
    fields = entry_fields(A, None, known.needs, guess.recipe, known)

    assert fields["recipe"] == {"name": "python", "script": {"sha256": S}}
    assert fields["needs"][1:] == [
        {"wheel": WHEEL, "sha256": W},
        {"wheel": known.wheels[1].name, "sha256": W, "url": known.wheels[1].url},
    ]


def test_only_a_file_that_nobody_named_is_found(tmp_path: Path) -> None:
    """By its place above the working directory; neither by flag, nor by variable, nor the packaged one."""
    (tmp_path / "registry.yaml").write_text(registry_text(WHOLE))
    (tmp_path / "deep").mkdir()

    assert load_registry(environ={}, cwd=tmp_path / "deep").is_found
    assert not load_registry(tmp_path / "registry.yaml", environ={}, cwd=tmp_path).is_found
    variable = {"OVERLAY_REGISTRY": str(tmp_path / "registry.yaml")}
    assert not load_registry(environ=variable, cwd=tmp_path).is_found
    (tmp_path / "registry.yaml").unlink()
    assert not load_registry(environ={}, cwd=tmp_path).is_found
