"""What a registry file may say, and where each error points."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.registries import ENTRY, A, B, C, load_text, registry_text

from overlay.errors import InvalidRegistry, InvalidUsage
from overlay.registry import Need, Pin, Recipe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

VALID = registry_text(ENTRY)
TWO_NEEDS = f"""\
    needs:
      - {{repo: a/b, revision: {C}, components: [x]}}
      - {{repo: a/c, revision: {C}, components: [x]}}
"""


def refused(folder: Path, text: str) -> InvalidRegistry:
    with pytest.raises(InvalidRegistry) as caught:
        load_text(folder, text)
    return caught.value


def test_entry_with_everything(tmp_path: Path) -> None:
    """Every field of an entry comes through as written."""
    text = registry_text(
        f"""\
  acme/model:
    source:
      repo: acme/weights
      revision: {A}
    overlay:
      repo: acme/overlay
      revision: {B}
      fingerprint: {"f" * 64}
      materializer_version: v4
    needs:
      - repo: acme/text
        revision: {C}
        components: [text_encoder, tokenizer, processor]
      - repo: acme/more
        floating: nobody has pinned it
    recipe:
      name: vdn-h3
      stage: stage-dmd-step-250
"""
    )
    registry = load_text(tmp_path, text)
    entry = registry.entries["acme/model"]

    assert entry.source == Pin("acme/weights", A)
    assert entry.overlay == Pin("acme/overlay", B)
    assert (entry.overlay_fingerprint, entry.materializer_version) == ("f" * 64, "v4")
    assert entry.needs == (
        Need(Pin("acme/text", C), ("text_encoder", "tokenizer", "processor")),
        Need(Pin("acme/more", None, "nobody has pinned it")),
    )
    assert entry.recipe == Recipe("vdn-h3", {"stage": "stage-dmd-step-250"})
    assert [pin.repo for pin in entry.pins] == ["acme/weights", "acme/overlay", "acme/text", "acme/more"]
    assert (entry.place.line, entry.place.file, registry.path) == (
        3,
        str(tmp_path / "mine.yaml"),
        str(tmp_path / "mine.yaml"),
    )
    assert entry.server is None


def test_folded_reason_is_one_line(tmp_path: Path) -> None:
    """A reason over several lines is one sentence."""
    text = VALID.replace(f"revision: {A}", "floating: >\n        nobody has\n        pinned it")
    assert load_text(tmp_path, text).entries["acme/model"].source == Pin("acme/model", None, "nobody has pinned it")


def test_lora_entry(tmp_path: Path) -> None:
    """A lora needs no overlay; its places name their repo, the source's by default, and the root by default."""
    text = registry_text(
        f"""\
  acme/turbo:
    source: {{revision: {A}}}
    needs:
      - {{repo: acme/adapter, revision: {B}}}
    recipe:
      name: lora
      base: {{path: ./transformer/}}
      adapters:
        - {{repo: acme/adapter}}
        - {{path: adapters/style.safetensors}}
"""
    )
    entry = load_text(tmp_path, text).entries["acme/turbo"]

    assert entry.overlay is None
    assert entry.recipe.options == {
        "base": {"repo": "acme/turbo", "path": "transformer"},
        "adapters": [
            {"repo": "acme/adapter", "path": ""},
            {"repo": "acme/turbo", "path": "adapters/style.safetensors"},
        ],
    }


def test_commit_of_digits_stays_text(tmp_path: Path) -> None:
    """A commit that YAML would take for a number is a commit."""
    for digits in ("1" * 40, "1" * 38 + "e1"):
        entry = load_text(tmp_path, VALID.replace(A, digits)).entries["acme/model"]
        assert entry.source.revision == digits


def test_places_are_those_of_the_values_to_edit(tmp_path: Path) -> None:
    """A pin stands where its revision does, a recipe and an entry at their keys; equality does not look at that."""
    entry = load_text(tmp_path, VALID).entries["acme/model"]

    assert [str(pin.place).removeprefix(f"{tmp_path}/") for pin in entry.pins] == ["mine.yaml:5:7", "mine.yaml:8:7"]
    assert (entry.place.line, entry.recipe.place.line) == (3, 9)
    assert entry == load_text(tmp_path, VALID.replace("models:", "\nmodels:")).entries["acme/model"]


def test_consumers_are_both_unless_named(tmp_path: Path) -> None:
    """An entry holds for this program and for sglang, or for whom it names."""
    only = VALID.replace("    recipe:", "    consumers: [sglang]\n    recipe:")

    assert load_text(tmp_path, VALID).entries["acme/model"].consumers == ("overlay", "sglang")
    assert load_text(tmp_path, only).entries["acme/model"].consumers == ("sglang",)


# (what is replaced in VALID, by what, the code, line:column, part of the message, part of the hint)
CASES = {
    "unknown key": (
        "    overlay:",
        "    overlya:",
        "unknown-key",
        "6:5",
        "unknown key overlya",
        "did you mean overlay?",
    ),
    "unknown key below": ("repo: acme", "rpo: acme", "unknown-key", "7:7", "unknown key rpo", "did you mean repo?"),
    "unknown key at the top": (
        "models:",
        "model: {}\nmodels:",
        "unknown-key",
        "2:1",
        "key model",
        "did you mean models?",
    ),
    "unknown consumer": (
        "    recipe:",
        "    consumers: [sglang, vllm]\n    recipe:",
        "unknown-consumer",
        "9:5",
        "'vllm' is no consumer; expected some of overlay, sglang",
        "",
    ),
    "consumer twice": (
        "    recipe:",
        "    consumers: [sglang, sglang]\n    recipe:",
        "unknown-consumer",
        "9:5",
        "named twice",
        "",
    ),
    "no consumer": (
        "    recipe:",
        "    consumers: []\n    recipe:",
        "unknown-consumer",
        "9:5",
        "no consumer is named",
        "",
    ),
    "key of no resemblance": (
        "source:",
        "zzz:",
        "unknown-key",
        "4:5",
        "zzz",
        "known here: consumers, needs, overlay, recipe, serve, sou",
    ),
    "option of another recipe": ("mappings", "mappings\n      stage: x", "unknown-key", "11:7", "stage", "name"),
    "h29 branch": (A, "main", "not-a-commit", "5:7", "'main' is no commit", "huggingface.co/acme/model; or"),
    "h29 abbreviated": (B, B[:12], "not-a-commit", "8:7", "has 12 hex digits; a commit has 40", "co/acme/overlay"),
    "h29 upper case": (A, A.upper(), "not-a-commit", "5:7", "upper-case", f"write {A}"),
    "h29 too long": (A, A + "a", "not-a-commit", "5:7", "41 hex digits", "git ls-remote"),
    "h29 newline": (A, f'"{A}\\n"', "not-a-commit", "5:7", "no commit", ""),
    "h29 no revision": (
        f"source:\n      revision: {A}",
        "source: {}",
        "no-revision",
        "4:5",
        "acme/model: source has no revision",
        "floating",
    ),
    "h30 no source": (f"    source:\n      revision: {A}\n", "", "missing-key", "3:3", "source is missing", ""),
    "no overlay": (
        f"    overlay:\n      repo: acme/overlay\n      revision: {B}\n",
        "",
        "missing-key",
        "3:3",
        "overlay is missing; the recipe mappings needs one",
        "",
    ),
    "no recipe": ("    recipe:\n      name: mappings\n", "", "missing-key", "3:3", "recipe is missing", ""),
    "no overlay repo": ("      repo: acme/overlay\n", "", "missing-key", "6:5", "overlay has no repo", ""),
    "pinned and floating": (A, f"{A}\n      floating: why", "pinned-and-floating", "4:5", "both given", "remove one"),
    "floating without reason": (f"revision: {A}", "floating: true", "no-reason", "5:7", "reason", "<reason>"),
    "floating with an escape": (
        f"revision: {A}",
        'floating: "a\\e[0m"',
        "not-printable",
        "5:7",
        "control characters",
        "",
    ),
    "version with an escape": (
        f"revision: {B}",
        f'revision: {B}\n      materializer_version: "\\a"',
        "not-printable",
        "9:7",
        "control characters",
        "",
    ),
    "recipe unknown": ("mappings", "vdn-h4", "unknown-recipe", "10:7", "no recipe vdn-h4", "vdn-h3, lora"),
    "recipe without name": ("name: mappings", "stage: x", "unknown-recipe", "9:5", "the recipe has no name", "lora"),
    "recipe without option": ("mappings", "vdn-h3", "missing-key", "9:5", "stage is missing", ""),
    "h16 repo leads out": ("acme/overlay", "../overlay", "invalid-repo-id", "7:7", "'../overlay' is no repo id", ""),
    "h16 repo with dots": ("acme/overlay", "acme/a..b", "invalid-repo-id", "7:7", "org/name", ""),
    "h16 repo absolute": ("acme/overlay", "/etc/passwd", "invalid-repo-id", "7:7", "org/name", ""),
    "repo of one part": ("acme/overlay", "overlay", "invalid-repo-id", "7:7", "org/name", ""),
    "repo of three parts": ("acme/overlay", "a/b/c", "invalid-repo-id", "7:7", "org/name", ""),
    "repo too long": ("acme/overlay", "a/" + "b" * 95, "invalid-repo-id", "7:7", "97 characters", ""),
    "model is no repo": ("acme/model", "model", "invalid-repo-id", "3:3", "org/name", ""),
    "h16 stage leads out": ("mappings", "vdn-h3\n      stage: ../x", "unsafe-path", "11:7", "'..'", ""),
    "h16 stage is a path": ("mappings", "vdn-h3\n      stage: a/b", "unsafe-path", "11:7", "name of a folder", ""),
    "h16 adapter leads out": (
        "mappings",
        "lora\n      base: {}\n      adapters:\n        - path: a/../../b",
        "unsafe-path",
        "13:11",
        "leads out",
        "",
    ),
    "h16 adapter absolute": (
        "mappings",
        "lora\n      base: {path: /etc}\n      adapters: [{}]",
        "unsafe-path",
        "11:14",
        "is absolute",
        "",
    ),
    "no adapters": (
        "mappings",
        "lora\n      base: {}\n      adapters: []",
        "empty-list",
        "12:7",
        "adapters is empty",
        "",
    ),
    "adapter of an unpinned repo": (
        "mappings",
        "lora\n      base: {}\n      adapters: [{repo: acme/lora}]",
        "repo-without-revision",
        "9:5",
        "acme/lora, which is neither",
        "pin it under needs",
    ),
    "vdn-h3 without components": (
        "mappings",
        "vdn-h3\n      stage: x",
        "missing-component",
        "3:3",
        "text_encoder, tokenizer, processor",
        "components",
    ),
    "a component is misspelt": (
        "    recipe:\n      name: mappings",
        (
            f"    needs: [{{repo: acme/n, revision: {C}, components: [text_encodr, tokenizer, processor]}}]\n"
            "    recipe:\n      name: vdn-h3\n      stage: x"
        ),
        "missing-component",
        "9:5",
        "needs the components text_encoder",
        "text_encodr: did you mean text_encoder?",
    ),
    "fingerprint too short": (
        f"revision: {B}",
        f"revision: {B}\n      fingerprint: abc",
        "not-a-fingerprint",
        "9:7",
        "64",
        "",
    ),
    "text for a mapping": (f"source:\n      revision: {A}", f"source: {A}", "wrong-type", "4:5", "a mapping", ""),
    "mapping for a text": (B, "{a: b}", "wrong-type", "8:7", "revision: expected text", ""),
    "text for a list": ("    recipe:", "    needs: x\n    recipe:", "wrong-type", "9:5", "needs: expected a list", ""),
    "list for a mapping": (ENTRY, "  - a\n", "wrong-type", "2:1", "models: expected a mapping", ""),
    "need twice": (
        "    recipe:",
        f"    needs: [{{repo: acme/overlay, revision: {C}}}]\n    recipe:",
        "repo-twice",
        "3:3",
        "acme/overlay is named twice",
        "",
    ),
    "component twice": (
        "    recipe:",
        TWO_NEEDS + "    recipe:",
        "component-twice",
        "9:5",
        "component x is named twice",
        "",
    ),
    "need without revision": (
        "    recipe:",
        "    needs:\n      - repo: a/b\n    recipe:",
        "no-revision",
        "10:9",
        "needs has no revision",
        "floating",
    ),
    "newer schema": (
        "schema_version: 1",
        "schema_version: 2",
        "schema-version",
        "1:1",
        "'2'; this program reads 1",
        "newer",
    ),
    "no schema": ("schema_version: 1\n", "", "missing-key", "1:1", "schema_version is missing", ""),
}


@pytest.mark.parametrize(("old", "new", "code", "place", "message", "hint"), CASES.values(), ids=CASES)
def test_error_points_at_its_place(
    tmp_path: Path, old: str, new: str, code: str, place: str, message: str, hint: str
) -> None:
    """Each mistake has its code, its line and column, and a hint where there is something to do."""
    assert old in VALID, "the case changes nothing"
    error = refused(tmp_path, VALID.replace(old, new, 1))

    assert [problem["code"] for problem in error.data["problems"]] == [code]
    assert error.code == code
    assert str(error).startswith(f"mine.yaml:{place}: ")
    assert message in str(error)
    assert hint in (error.hint or "")
    assert (error.exit_status, isinstance(error, InvalidUsage)) == (2, True)


def test_all_problems_of_a_file_come_together(tmp_path: Path) -> None:
    """Three mistakes are three lines of one error, each with its own hint."""
    text = VALID.replace(A, "main").replace("acme/overlay", "overlay").replace("    recipe:", "    recpe:")
    error = refused(tmp_path, text)

    found = re.findall(r"^mine\.yaml:(\d+:\d+): ", str(error), re.MULTILINE)
    assert found == ["5:7", "7:7", "9:5"]
    assert [problem["code"] for problem in error.data["problems"]] == ["not-a-commit", "invalid-repo-id", "unknown-key"]
    assert error.code == "invalid-registry"
    assert "did you mean recipe?" in str(error)


def test_incomplete_entries_come_together(tmp_path: Path) -> None:
    """Entries that are not complete are all reported, by their model."""
    text = registry_text("  a/one:\n    recipe: {name: python}\n", "  a/two: {}\n")
    error = refused(tmp_path, text)

    places = [(problem["line"], problem["message"]) for problem in error.data["problems"]]
    assert places == [
        (3, "a/one: source is missing"),
        (5, "a/two: source is missing"),
        (5, "a/two: recipe is missing"),
    ]


def test_misspelt_model_of_an_override_is_named(tmp_path: Path) -> None:
    """An override of a model that is not there is no new entry: it says which one was meant."""
    error = refused(tmp_path, registry_text(f"  OpenVDN/vdn-minmax-h3:\n    source: {{revision: {A}}}\n"))
    assert "recipe is missing" in str(error)
    assert error.hint is not None
    assert error.hint.startswith("did you mean OpenVDN/vdn-minimax-h3?")


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """A key with an escape sequence is shown escaped, a long value is cut."""
    error = refused(tmp_path, VALID.replace("source:", '"so\\e[31murce":').replace(A, "x" * 5000))
    assert "unknown key so\\x1b[31murce" in str(error)
    assert "\x1b" not in str(error) + (error.hint or "")
    assert len(refused(tmp_path, VALID.replace(A, "x" * 5000)).message) < 1100
