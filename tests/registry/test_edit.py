"""Edits of a registry file: the values meant, and no other byte."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.registries import A, B, C, D, registry_text

from overlay.errors import CannotWrite, CheckFailed, InvalidRegistry
from overlay.registry.edit import NewPin, add_entry, set_pins
from overlay.registry.replace import replace_file
from overlay.registry.strict_yaml import parse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

OLD, NEW = "1" * 64, "2" * 64
MODEL = "acme/model"
RECIPE = "    recipe: {name: mappings}\n"
LORA = {"name": "lora", "base": {}, "adapters": [{"path": "a.safetensors"}, {"repo": "x/y"}]}


def edited(text: str, model: str = MODEL, /, **pins: NewPin) -> str:
    return set_pins(text.encode(), "r.yaml", model, pins).decode()


def added(text: str, entry: dict[str, Any], model: str = MODEL) -> str:
    return add_entry(text.encode(), "r.yaml", model, entry).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"source: {{revision: {A}}}", f"source: {{revision: {C}}}"),
        (f'source: {{ "revision" : "{A}" }} # why', f'source: {{ "revision" : "{C}" }} # why'),
        (f"source:\n      revision:   '{A}'  # why", f"source:\n      revision:   '{C}'  # why"),
        ("source: {floating: nobody knows}  # why", f"source: {{revision: {C}}}  # why"),
        ('source: {floating: "nobody # knows"}', f"source: {{revision: {C}}}"),
        ("source:\n      floating: nobody\n        knows # why", f"source:\n      revision: {C} # why"),
        (
            "source:\n      floating: >-\n        nobody\n        knows\n\n      # why",
            f"source:\n      revision: {C}\n\n      # why",
        ),
        ("source:\n      ? floating\n      : nobody", f"source:\n      ? revision\n      : {C}"),
    ],
)
def test_revision_is_replaced_where_it_stands(before: str, after: str) -> None:
    """A revision, or the reason for having none, gives way to another revision; quotes and comments stay."""
    text = registry_text(f"  {MODEL}:\n    {before}\n    overlay: {{repo: a/b, revision: {B}}}\n", RECIPE)

    assert edited(text, source=NewPin(C)) == text.replace(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{{repo: a/b, revision: {A}, fingerprint: {OLD}}}", f"{{repo: a/b, revision: {C}, fingerprint: {NEW}}}"),
        (f"{{repo: a/b, revision: {A}}}", f"{{repo: a/b, revision: {C}}}"),
        (
            f"\n      fingerprint: '{OLD}' # four files\n      revision: {A}\n      repo: a/b",
            f"\n      fingerprint: '{NEW}' # four files\n      revision: {C}\n      repo: a/b",
        ),
    ],
)
def test_fingerprint_follows_the_overlay(before: str, after: str) -> None:
    """A fingerprint that stands there is replaced with the revision; none is added to a section that has none."""
    text = registry_text(f"  {MODEL}:\n    source: {{revision: {B}}}\n    overlay: {before}\n", RECIPE)

    assert edited(text, overlay=NewPin(C, NEW)) == text.replace(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{{repo: a/b, revision: {A}, fingerprint: {OLD}}}", f"{{repo: a/b, revision: {C}}}"),
        (f"{{fingerprint: {OLD}, repo: a/b, revision: {A}}}", f"{{repo: a/b, revision: {C}}}"),
        (
            f"\n      repo: a/b\n      fingerprint: {OLD}  # four files\n      revision: {A} # of 2026",
            f"\n      repo: a/b\n      revision: {C} # of 2026",
        ),
    ],
)
def test_unknown_fingerprint_is_taken_out(before: str, after: str) -> None:
    """Where the new fingerprint is not known, the old one goes, in block style with its line."""
    text = registry_text(f"  {MODEL}:\n    source: {{revision: {B}}}\n    overlay: {before}\n", RECIPE)

    assert edited(text, overlay=NewPin(C)) == text.replace(before, after)


def test_version_of_the_script_follows_the_overlay() -> None:
    """It is replaced where it stands, and added to a fingerprint where it is not the usual one; not in flow style."""
    text = registry_text(
        f"  {MODEL}:\n    source: {{revision: {B}}}\n    overlay:\n      repo: a/b\n      revision: {A}\n", RECIPE
    )
    four = text.replace(f"{A}\n", f"{A}\n      materializer_version: v4\n")
    known = text.replace(f"{A}\n", f"{A}\n      fingerprint: {OLD}\n")
    known_four = text.replace(f"{A}\n", f"{C}\n      fingerprint: {NEW}\n      materializer_version: v4\n")

    assert edited(text, overlay=NewPin(C, None, "v4")) == text.replace(A, C)
    assert edited(known, overlay=NewPin(C, NEW, "v4")) == known_four
    assert edited(four, overlay=NewPin(C, None, "v1")) == four.replace(A, C).replace("v4", "v1")
    assert edited(text, overlay=NewPin(C)) == text.replace(A, C)
    with pytest.raises(InvalidRegistry, match="flow style"):
        edited(registry_text(f"  {MODEL}: {{overlay: {{revision: {A}}}}}\n"), overlay=NewPin(A, NEW))


def test_fingerprint_is_added_only_to_the_same_commit() -> None:
    """Where that of another registry is wrong for a pin that stays; a pin that moves has not got it any more."""
    text = registry_text(f"  {MODEL}:\n    overlay:\n      repo: a/b\n      revision: {A}\n", RECIPE)

    assert edited(text, overlay=NewPin(A, NEW)) == text.replace(f"{A}\n", f"{A}\n      fingerprint: {NEW}\n")
    assert edited(text, overlay=NewPin(C, NEW)) == text.replace(A, C)


def test_missing_section_is_added_to_an_override() -> None:
    """A pin that only the registry below has goes to the end of the entry, below its comments and before the next."""
    text = registry_text(
        f"  {MODEL}:\n      source:\n        revision: {A}\n      # depth of six\n\n  # the next one\n  b/c: {{}}\n"
    )

    result = edited(text, source=NewPin(B), overlay=NewPin(C, NEW))

    section = f"      overlay:\n        revision: {C}\n        fingerprint: {NEW}\n"
    assert result == text.replace(A, B).replace("depth of six\n", f"depth of six\n{section}")


def test_missing_entry_is_added_as_an_override() -> None:
    """An entry that only the registry below has is added with nothing but its new pins."""
    text = registry_text(f"  b/c:\n    source: {{revision: {A}}}\n")

    assert edited(text, source=NewPin(B)) == f"{text}\n  {MODEL}:\n    source:\n      revision: {B}\n"


def test_missing_revision_is_added_to_a_block() -> None:
    """A section in block style without a revision gets one; in flow style it is refused, with the place."""
    block = registry_text(f"  {MODEL}:\n    overlay:\n      materializer_version: v2\n  b/c: {{}}\n")
    flow = registry_text(f"  {MODEL}:\n    overlay: {{materializer_version: v2}}\n")

    assert edited(block, overlay=NewPin(C, None, "v2")) == block.replace("v2\n", f"v2\n      revision: {C}\n")
    with pytest.raises(InvalidRegistry, match=r"r\.yaml:4:5: overlay is in flow style") as refused:
        edited(flow, overlay=NewPin(C, None, "v2"))
    assert refused.value.code == "cannot-edit"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("schema_version: 1\nmodels: {}\n", "schema_version: 1\nmodels:\n  acme/model:\n    source: {}\n"),
        ("models: { }  # none\nschema_version: 1", "models:  # none\n  acme/model:\n    source: {}\nschema_version: 1"),
        ("schema_version: 1\nmodels: {}", "schema_version: 1\nmodels:\n  acme/model:\n    source: {}\n"),
        (
            "schema_version: 1\r\nmodels: {}\r\n  # more\r\n",
            "schema_version: 1\r\nmodels:\r\n  # more\r\n  acme/model:\r\n    source: {}\r\n",
        ),
        (
            "\ufeffschema_version: 1\nmodels:\n    b/c: {}",
            "\ufeffschema_version: 1\nmodels:\n    b/c: {}\n\n    acme/model:\n      source: {}\n",
        ),
    ],
)
def test_entry_is_appended(before: str, after: str) -> None:
    """A new entry goes to the end of `models`, in the file's own indentation and line ends, also where none was."""
    assert added(before, {"source": {}}) == after


def test_whole_entry_in_block_style() -> None:
    """Every kind of field is written so that it reads as it was given, quoted where YAML would take it otherwise."""
    entry = {
        "source": {"floating": "nobody: knows #1"},
        "overlay": {"repo": "a/b", "revision": A, "fingerprint": OLD},
        "needs": [{"repo": "x/y", "revision": B, "components": ["text_encoder", "null"]}],
        "recipe": LORA,
    }

    text = added("schema_version: 1\nmodels: {}\n", entry)

    assert parse(text.encode(), "r.yaml").data["models"][MODEL] == entry
    assert '      floating: "nobody: knows #1"\n' in text
    assert '        components: [text_encoder, "null"]\n' in text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"schema_version: 1\nmodels: {{b/c: {{source: {{revision: {A}}}}}}}\n", "cannot-edit"),
        (registry_text(f"  {MODEL}: {{}}\n"), "cannot-edit"),
        (f"schema_version: 1\nx: &a {A}\nmodels: {{}}\n", "yaml-anchor"),
        ("schema_version: 1\nmodels: {}\n---\na: b\n", "several-documents"),
        ("models: [", "not-yaml"),
    ],
)
def test_refused(text: str, code: str) -> None:
    """What cannot be extended without rewriting it, and what is no registry, is refused."""
    with pytest.raises(InvalidRegistry) as refused:
        added(text, {"source": {"revision": A}})
    assert refused.value.code == code


def test_result_that_would_mean_something_else_is_refused() -> None:
    """What comes out is parsed again: a value that would break the file never gets there."""
    with pytest.raises(InvalidRegistry, match="without changing more than is meant"):
        edited(registry_text(f"  {MODEL}:\n    source: {{revision: {A}}}\n"), source=NewPin("a, b: c"))


# Property: in any registry only the lines of the values meant differ.

_SPACE = st.sampled_from(["", " ", "  "])
_COMMENT = st.sampled_from(["", "  # why", f"  # {A}", "   # revision: x", "  # ü \N{GRINNING FACE}"])
_QUOTE = st.sampled_from(["", "'", '"'])
_ABOVE = st.sampled_from([[], [""], ["# said above"], ["", "      # deep", ""]])


@st.composite
def _pin(draw: st.DrawFn, name: str, revision: str, repo: str | None, fingerprint: str | None) -> list[str]:
    """The lines of a section, in some layout."""
    quote = draw(_QUOTE)
    pairs = [("revision", f"{quote}{revision}{quote}")]
    pairs += [("repo", repo)] if repo else []
    pairs += [("fingerprint", fingerprint)] if fingerprint else []
    pairs = draw(st.permutations(pairs))
    comment = draw(_COMMENT)
    if draw(st.booleans()):
        space = draw(_SPACE)
        inner = f",{space or ' '}".join(f"{key}: {value}" for key, value in pairs)
        return [f"{name}: {space}{{{space}{inner}{space}}}{comment}"]
    lines = [f"{name}:{comment}"]
    for key, value in pairs:
        lines += [*draw(_ABOVE), f"  {key}: {draw(_SPACE)}{value}{draw(_COMMENT)}"]
    return lines


@st.composite
def _registry(draw: st.DrawFn) -> tuple[list[str], int]:
    """Lines of a registry with entries of equal pins, and how many there are."""
    count = draw(st.integers(1, 3))
    step = draw(st.sampled_from([1, 2, 4]))
    lines = [*draw(_ABOVE), "schema_version: 1", "models:"]
    for number in range(count):
        lines += [*draw(_ABOVE), f"{' ' * step}org/m{number}:{draw(_COMMENT)}"]
        sections = [
            draw(_pin("source", A, None, None)),
            draw(_pin("overlay", B, f"org/o{number}", draw(st.sampled_from([None, OLD])))),
            [*draw(_ABOVE), f"recipe: {{name: mappings}}{draw(_COMMENT)}"],
        ]
        for section in draw(st.permutations(sections)):
            # What follows on a line after another has the entry's depth; blank lines stay blank.
            lines += [f"{' ' * 2 * step}{line}" if line else "" for line in section]
    return lines, count


@given(made=_registry(), data=st.data())
def test_only_the_lines_meant_differ(made: tuple[list[str], int], data: st.DataObject) -> None:
    """Whatever the layout, the revision of one entry changes in one line, the fingerprint at most in one more."""
    lines, count = made
    number = data.draw(st.integers(0, count - 1))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join(lines) + data.draw(st.sampled_from(["", end]))

    result = edited(text, f"org/m{number}", source=NewPin(C), overlay=NewPin(D, NEW))

    old, new = text.split(end), result.split(end)
    assert len(old) == len(new)
    changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
    assert 1 <= len(changed) <= 3
    for one, other in changed:
        assert other in {one.replace(A, C, 1), one.replace(B, D, 1), one.replace(B, D, 1).replace(OLD, NEW, 1),
                         one.replace(OLD, NEW, 1)}  # fmt: skip
    before, after = (parse(content.encode(), "r.yaml").data["models"] for content in (text, result))
    assert after[f"org/m{number}"]["source"]["revision"] == C
    assert after[f"org/m{number}"]["overlay"]["revision"] == D
    assert {k: v for k, v in before.items() if k != f"org/m{number}"} == {
        k: v for k, v in after.items() if k != f"org/m{number}"
    }


@given(made=_registry(), data=st.data())
def test_what_is_appended_leaves_the_rest(made: tuple[list[str], int], data: st.DataObject) -> None:
    """A new entry is lines that are put in; those that were there are there, in order."""
    text = "\n".join(made[0]) + data.draw(st.sampled_from(["", "\n", "\n\n# end\n", "\n  # end"]))

    result = added(text, {"source": {"revision": C}, "recipe": LORA})

    assert parse(result.encode(), "r.yaml").data["models"][MODEL]["recipe"] == LORA
    remaining = iter(result.splitlines())
    assert all(line in remaining for line in text.splitlines())


# Writing


def test_mode_and_link_stay(tmp_path: Path) -> None:
    """The file keeps its mode, and a link to it stays one."""
    real, link = tmp_path / "real.yaml", tmp_path / "registry.yaml"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)

    replace_file(link, b"old", b"new")

    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.yaml", "registry.yaml"]


def test_new_file(tmp_path: Path) -> None:
    """Where there is no file one is made, with the mode that anyone's new file has."""
    (tmp_path / "other").touch()

    replace_file(tmp_path / "new", None, b"new")

    assert (tmp_path / "new").read_bytes() == b"new"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("before", [b"older", None])
def test_changed_meanwhile(tmp_path: Path, before: bytes | None) -> None:
    """A file that somebody else changed or made in the meantime is left as it is."""
    path = tmp_path / "registry.yaml"
    path.write_bytes(b"theirs")

    with pytest.raises(CheckFailed, match="changed while this ran"):
        replace_file(path, before, b"new")

    assert path.read_bytes() == b"theirs"
    assert [path] == list(tmp_path.iterdir())


def test_refused_by_the_system(tmp_path: Path) -> None:
    """A folder that is not there is said as any refused write is."""
    with pytest.raises(CannotWrite) as refused:
        replace_file(tmp_path / "none" / "registry.yaml", None, b"new")
    assert refused.value.code == "no-such-folder"
    assert list(tmp_path.iterdir()) == []
