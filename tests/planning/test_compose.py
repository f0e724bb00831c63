"""Recipe ``compose``: what is taken where, and what is proven equal before it is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.hubs import add_repo, commit, shard
from support.models import write_registry

from overlay.errors import BrokenInput, InvalidRegistry
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.materialization.request import Options
from overlay.planning.outputs import AliasFile, CarriedFile
from overlay.planning.recipes import make_plan, stand_in_digest
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Planner

    from overlay.planning.plan import Plan

pytestmark = pytest.mark.no_torch

MODEL = "acme/both"
SHARED = {
    "text_encoder/model.safetensors": shard("t"),
    "tokenizer/tokenizer.json": "{}",
    "tokenizer/deep/merges.txt": "a b",
}
FILES = {
    "FL2VA/model_index.json": "fl2va",
    "Ref2VA/model_index.json": "ref2va",
    "FL2VA/transformer/model.safetensors": shard("f"),
    "Ref2VA/transformer/model.safetensors": shard("r"),
    **{f"{folder}/{path}": content for folder in ("FL2VA", "Ref2VA") for path, content in SHARED.items()},
}
OWN = ["{path: Ref2VA/model_index.json}", "{path: Ref2VA/transformer}"]


def same(component: str, **more: str) -> str:
    words = "".join(f", {key}: {value}" for key, value in more.items())
    return f"{{path: FL2VA/{component}, to: Ref2VA/{component}, same_as: {{path: Ref2VA/{component}{words}}}}}"


def compose_options(hub: Path, *parts: str, needs: str = "") -> Options:
    listed = "".join(f"\n        - {part}" for part in parts)
    registry = write_registry(
        hub,
        f"""\
  {MODEL}:
    source: {{repo: acme/h3, revision: {commit("a")}}}{needs}
    recipe:
      name: compose
      parts:{listed}
""",
    )
    return Options(registry=registry, hub=hub)


def taken(plan: Plan) -> dict[str, str]:
    """Input path of each output; every one is carried, or a second name of one that is."""
    carried = {output.path: output.input.path for output in plan.outputs if isinstance(output, CarriedFile)}
    return carried | {output.path: carried[output.of] for output in plan.outputs if not isinstance(output, CarriedFile)}


def test_a_partition_with_the_files_that_another_has_too(hub: Path, plan_of: Planner) -> None:
    """Its own transformer and index; everything shared is taken of the one that is downloaded anyway."""
    add_repo(hub, "acme/h3", commit("a"), FILES)
    plan = plan_of(MODEL, compose_options(hub, *OWN, same("text_encoder"), same("tokenizer")))
    own = ("Ref2VA/model_index.json", "Ref2VA/transformer/model.safetensors")
    assert taken(plan) == {
        **{path: path for path in own},
        **{f"Ref2VA/{path}": f"FL2VA/{path}" for path in SHARED},
    }
    assert not any(item.path.startswith(("Ref2VA/text", "Ref2VA/tok")) for item in plan.inputs())
    proven = [note for note in plan.notes if "by their digests" in note]
    assert proven == [
        "acme/h3/FL2VA/text_encoder: 1 file equal to acme/h3/Ref2VA/text_encoder by their digests",
        "acme/h3/FL2VA/tokenizer: 2 files equal to acme/h3/Ref2VA/tokenizer by their digests",
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"Ref2VA/tokenizer/tokenizer.json": "[]"}, "tokenizer/tokenizer.json"),
        ({"Ref2VA/tokenizer/tokenizer.json": "{ }"}, "tokenizer/tokenizer.json"),
        ({"Ref2VA/tokenizer/more.json": "{}"}, "more.json (only in"),
        ({"FL2VA/tokenizer/more.json": "{}"}, "more.json (only in"),
        ({"Ref2VA/text_encoder/model.safetensors": shard("u")}, "text_encoder/model.safetensors"),
    ],
)
def test_any_difference_is_an_error_that_names_it(
    hub: Path, plan_of: Planner, change: dict[str, Any], named: str
) -> None:
    """Content of equal size, size, a file that one of them lacks."""
    add_repo(hub, "acme/h3", commit("a"), FILES | change)
    with pytest.raises(BrokenInput) as caught:
        plan_of(MODEL, compose_options(hub, *OWN, same("text_encoder"), same("tokenizer")))
    assert caught.value.code == "parts-differ"
    assert named in caught.value.message


def test_what_was_not_read_proves_nothing(hub: Path) -> None:
    """A plan with made-up digests of a folder's files neither refuses nor claims them."""
    add_repo(hub, "acme/h3", commit("a"), FILES)
    options = compose_options(hub, same("tokenizer"))
    resolution = resolve(MODEL, load_registry(options.registry))
    inventory = take_inventory(resolution, hub=hub, offline=True, memo=DigestMemo(None), allow_floating=False)
    plan = make_plan(inventory, digest=stand_in_digest)
    assert not any("by their digests" in note for note in plan.notes)
    assert any("named as in" in note for note in plan.notes)


def test_the_same_file_at_two_places(hub: Path, plan_of: Planner) -> None:
    """Both partitions whole: what they share is one input, and weights come to the cache once."""
    add_repo(hub, "acme/h3", commit("a"), FILES)
    plan = plan_of(MODEL, compose_options(hub, "{path: FL2VA}", *OWN, same("text_encoder")))
    found = taken(plan)
    twins = [path for path, source in found.items() if source == "FL2VA/text_encoder/model.safetensors"]
    assert sorted(twins) == ["FL2VA/text_encoder/model.safetensors", "Ref2VA/text_encoder/model.safetensors"]
    assert [output for output in plan.outputs if isinstance(output, AliasFile)] == [AliasFile(twins[1], twins[0])]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("{path: FL2VA/tokenizer, to: t}", {"t/tokenizer.json", "t/deep/merges.txt"}),
        ("{path: FL2VA/tokenizer, to: .}", {"tokenizer.json", "deep/merges.txt"}),
        ("{path: FL2VA/model_index.json, to: index.json}", {"index.json"}),
        ("{path: FL2VA/model_index.json, to: .}", {"model_index.json"}),
        ("{path: FL2VA/model_index.json}", {"FL2VA/model_index.json"}),
        ("{path: .}", set(FILES)),
        ("{}", set(FILES)),
        ("{to: all}", {f"all/{path}" for path in FILES}),
    ],
)
def test_folders_and_files_to_their_places(hub: Path, plan_of: Planner, part: str, expected: set[str]) -> None:
    """A folder by what is in it, a file by itself; hidden files stay out."""
    add_repo(hub, "acme/h3", commit("a"), FILES | {".gitattributes": "x", "FL2VA/tokenizer/.cache/x": "x"})
    assert taken(plan_of(MODEL, compose_options(hub, part))).keys() == expected


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        (["{path: FL2VA/token}"], "part-missing"),
        (["{path: none}"], "part-missing"),
        (["{path: FL2VA/tokenizer, same_as: {path: none}}"], "part-missing"),
        (["{path: FL2VA/tokenizer, to: x}", "{path: Ref2VA/tokenizer, to: x}"], "output-collision"),
        (["{path: FL2VA/tokenizer, to: x/tokenizer.json}", "{path: Ref2VA/tokenizer, to: x}"], "output-collision"),
        (["{path: FL2VA/tokenizer, to: X}", "{path: Ref2VA/tokenizer, to: x}"], "output-collision"),
        (["{path: FL2VA/tokenizer}", "{path: weights.bin}"], "pickle"),
        *(
            ([f"{{path: {path}, to: {to}}}"], "reserved-path")
            for path, to in (
                ("FL2VA/tokenizer", "licenses/acme__h3"),
                ("FL2VA/tokenizer", "licenses"),
                ("FL2VA/tokenizer", "Licenses/acme__h3"),
                ("FL2VA/model_index.json", "licenses/acme__h3/LICENSE"),
                ("FL2VA/model_index.json", "licenses"),
                ("FL2VA/text_encoder", "licenses/x"),
                ("FL2VA/model_index.json", "overlay_record.json"),
                ("FL2VA/tokenizer", "overlay_record.json"),
                ("FL2VA/model_index.json", "Overlay_Record.json"),
                ("FL2VA/model_index.json", ".sglang_overlay_materialized.json"),
            )
        ),
    ],
)
def test_what_cannot_be_composed(hub: Path, plan_of: Planner, parts: list[str], code: str) -> None:
    """Nothing there, two parts at one path, a file where a folder has to be, pickles, places of this program's own."""
    add_repo(hub, "acme/h3", commit("a"), FILES | {"weights.bin": b"\x80"})
    with pytest.raises(BrokenInput) as caught:
        plan_of(MODEL, compose_options(hub, *parts))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("{path: ../x}", "unsafe-path"),
        ("{path: x, to: /etc}", "unsafe-path"),
        ("{path: x, to: a/../../b}", "unsafe-path"),
        ("{path: x, same_as: {path: ../y}}", "unsafe-path"),
        ("{repo: acme/unknown, path: x}", "repo-without-revision"),
        ("{path: x, same_as: {repo: acme/unknown}}", "repo-without-revision"),
        ("{path: x, from: y}", "unknown-key"),
    ],
)
def test_what_the_registry_refuses(hub: Path, part: str, code: str) -> None:
    """Paths out of the tree, repos without a pin, keys that mean nothing."""
    with pytest.raises(InvalidRegistry) as caught:
        load_registry(compose_options(hub, part).registry)
    assert code in str(caught.value.data) + caught.value.code


def test_parts_of_several_repos(hub: Path, plan_of: Planner) -> None:
    """Equal content in another repo is told by digests, too."""
    add_repo(hub, "acme/h3", commit("a"), FILES)
    add_repo(hub, "acme/mirror", commit("b"), SHARED | {"LICENSE": "as is"})
    needs = f"\n    needs: [{{repo: acme/mirror, revision: {commit('b')}}}]"
    part = "{repo: acme/mirror, path: tokenizer, to: Ref2VA/tokenizer, same_as: {path: Ref2VA/tokenizer}}"
    plan = plan_of(MODEL, compose_options(hub, part, needs=needs))
    found = {output.path: output.input.repo for output in plan.outputs if isinstance(output, CarriedFile)}
    assert found == {
        "Ref2VA/tokenizer/tokenizer.json": "acme/mirror",
        "Ref2VA/tokenizer/deep/merges.txt": "acme/mirror",
        "licenses/acme__mirror/LICENSE": "acme/mirror",
    }
