"""The linear branch: 16 tensors for each block of the base, of its sizes, under names that nothing else has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import codes, edit_json, make_hub, next_source, subject_of
from support.lora import pair, peft_config, write_adapter, zeros
from support.lora_contracts import base_folder, lora_folder, lora_subject, write_base
from support.tensors import write_tensors

from overlay.contract.checks.branch import check_branch
from overlay.errors import NotHere
from overlay.formats.header import read_header
from overlay.formats.vdn import linear_branch_shapes
from overlay.hub import FolderRepo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.tensors import Tensor

    from overlay.contract.finding import Finding

pytestmark = pytest.mark.no_torch

BRANCH = "stage-dmd-step-250/linear_branch"
CONFIG = "h3-base/transformer/config.json"
ATTN = "transformer_blocks.0.attn"
TO_OUT = f"{ATTN}.to_out_linear.weight"

Tensors = dict[str, "Tensor"]


def _found(root: Path, edit: Callable[[Tensors], object] | None = None, **base_config: Any) -> list[Finding]:
    """What is found of the made branch with other tensors, and another config of the base."""
    hub = next_source(make_hub(root), "another branch")
    if edit is not None:
        path = hub.source_folder / BRANCH / "model.safetensors"
        header = read_header(path)
        tensors: Tensors = {name: (info.dtype, info.shape, bytes(info.nbytes)) for name, info in header.tensors.items()}
        edit(tensors)
        write_tensors(path, tensors)
    edit_json(hub.source_folder / CONFIG, lambda config: config.update(base_config))
    return list(check_branch(subject_of(hub, root)))


def test_release_layout_is_clean(tmp_path: Path) -> None:
    """What is published gives no finding."""
    assert list(check_branch(subject_of(make_hub(tmp_path, blocks=2), tmp_path))) == []


def test_release_has_16_tensors_a_block_of_the_published_size() -> None:
    """50 blocks of them in bf16, and a header, are the published file of 4,279,428,112 bytes."""
    shapes = linear_branch_shapes(5376, 56, 128)
    elements = 0
    for shape in shapes.values():
        product = 1
        for size in shape:
            product *= size
        elements += product

    assert len(shapes) == 16
    assert 0 < 4_279_428_112 - 50 * 2 * elements < 200_000


def _add(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: zeros(*shape)})


def _rename(old: str, new: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


KEYS = {
    # By name: the edit, the code, and what the message says.
    "unknown-name": (
        _add(f"{ATTN}.linear_attention.gamma.weight", 1),
        "branch-keys-unknown",
        [f"has 1 tensor that no runtime knows ({ATTN}.linear_attention.gamma.weight); expected 16", "there are 17"],
    ),
    "unknown-block": (
        _add("transformer_blocks.1.attn.to_out_linear.weight", 1),
        "branch-keys-unknown",
        ["that no runtime knows (transformer_blocks.1.attn.to_out_linear.weight)", "the base's 1 block"],
    ),
    "block-with-a-leading-zero": (
        _rename(TO_OUT, TO_OUT.replace(".0.", ".00.")),
        "branch-keys-unknown",
        ["no runtime knows (transformer_blocks.00.attn.to_out_linear.weight)", f"and no {TO_OUT}"],
    ),
    "missing": (
        lambda tensors: tensors.pop(TO_OUT),
        "branch-keys-unknown",
        [f"has no {TO_OUT}; expected 16 tensors for each of the base's 1 block, and there are 15"],
    ),
    "renamed": (
        _rename(TO_OUT, f"{ATTN}.to_out_lin.weight"),
        "branch-keys-unknown",
        [f"has 1 tensor that no runtime knows ({ATTN}.to_out_lin.weight) and no {TO_OUT}"],
    ),
    "of-the-base": (
        _add(f"{ATTN}.to_q.weight", 1),
        "branch-keys-collide",
        [f"1 tensor by a name that the base, or what is made for it, has too: {ATTN}.to_q.weight"],
    ),
    "of-the-rope": (_add("rope.inv_freq", 1), "branch-keys-collide", ["has too: rope.inv_freq"]),
    "shape": (
        _add(f"{ATTN}.softmax_gate.up.bias", 5),
        "branch-broken",
        [f"{ATTN}.softmax_gate.up.bias has shape [5]; by the base's config.json expected [4]"],
    ),
}


@pytest.mark.parametrize(("edit", "code", "says"), KEYS.values(), ids=KEYS)
def test_branch_that_runtimes_do_not_load_is_one_finding(
    tmp_path: Path, edit: Callable[[Tensors], object], code: str, says: list[str]
) -> None:
    """Unknown and missing keys are one cause, mostly a renamed one; a key that collides is not unknown as well."""
    [finding] = _found(tmp_path, edit)

    assert finding.code == code
    assert [text for text in says if text not in finding.message] == []
    assert f"{BRANCH}/model.safetensors: " in finding.message
    assert (finding.place.line, finding.place.column) == (4, 14)
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    assert finding.fix == "overlay bump OpenVDN/vdn-minimax-h3"


def test_all_keys_are_in_the_data(tmp_path: Path) -> None:
    """The message names the first few, the data all of them."""
    [finding] = _found(tmp_path, lambda tensors: tensors.clear() or tensors.update(x=zeros(1)))

    assert finding.data["unknown"] == ["x"]
    assert finding.data["missing"] == sorted(f"{ATTN}.{name}" for name in linear_branch_shapes(1, 1, 1))
    assert (finding.data["num_unknown"], finding.data["num_missing"]) == (1, 16)


def test_all_shapes_of_another_width_are_one_finding(tmp_path: Path) -> None:
    """The base's config says the sizes."""
    [finding] = _found(tmp_path, hidden_size=193)

    assert finding.code == "branch-broken"
    assert "so it is for 5 tensors, also for" in finding.message
    assert finding.data["count"] == len(finding.data["tensors"]) == 5


@pytest.mark.parametrize("size", [None, "192", 0, -192, True])
def test_config_without_sizes_tells_no_shapes(tmp_path: Path, size: object) -> None:
    """Nothing is held against a config that does not tell; the names are checked all the same."""
    assert _found(tmp_path, hidden_size=size) == []
    assert codes(_found(tmp_path / "names", lambda tensors: tensors.pop(TO_OUT), hidden_size=size)) == [
        "branch-keys-unknown"
    ]


CONFIGS = {
    "type": ({"type": "lora"}, "unknown-version", "type is 'lora', expected 'hybrid_attention'"),
    "version": ({"version": 3}, "unknown-version", "version is 3, expected 2"),
    "config": ({"config": []}, "bad-linear-branch", "config is [], expected an object"),
}


@pytest.mark.parametrize(("fields", "code", "says"), CONFIGS.values(), ids=CONFIGS)
def test_config_of_another_version_is_a_finding(tmp_path: Path, fields: dict[str, Any], code: str, says: str) -> None:
    """What this version of the format does not say is not guessed."""
    hub = next_source(make_hub(tmp_path), "another version")
    edit_json(hub.source_folder / BRANCH / "config.json", lambda config: config.update(fields))

    [finding] = check_branch(subject_of(hub, tmp_path))

    assert finding.code == "branch-broken"
    assert finding.data["error"]["code"] == code
    assert finding.message.endswith(f"{BRANCH}/config.json: {says}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_file_that_cannot_be_read_is_a_finding(tmp_path: Path, name: str) -> None:
    """And the other file is checked all the same."""
    hub = next_source(make_hub(tmp_path), "damaged")
    (hub.source_folder / BRANCH / name).write_bytes(b"{]")

    [finding] = check_branch(subject_of(hub, tmp_path))

    assert finding.code == "branch-broken"
    assert f"{BRANCH}/{name}" in finding.message


@pytest.mark.parametrize(
    "name", [f"{BRANCH}/config.json", f"{BRANCH}/model.safetensors", "h3-base/transformer/*-00001-of-*"]
)
def test_absent_files_are_left_to_the_check_of_files(tmp_path: Path, name: str) -> None:
    """One cause, one finding; that goes for a shard of the base, too, without which its tensors are not known."""
    hub = next_source(make_hub(tmp_path), "a file less")
    next(hub.source_folder.glob(name)).unlink()

    assert list(check_branch(subject_of(hub, tmp_path))) == []


def test_recipe_without_a_branch_is_no_finding(tmp_path: Path) -> None:
    """The recipe lora has none."""
    write_base(base_folder(tmp_path))
    write_adapter(lora_folder(tmp_path), pair("proj_out", out=3), config=peft_config(["proj_out"]))

    assert list(check_branch(lora_subject(tmp_path))) == []


@pytest.mark.parametrize("method", ["header", "read_bytes"])
def test_file_that_is_not_on_this_host_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """What could not be read now is the runner's to tell."""
    subject = subject_of(make_hub(tmp_path), tmp_path)

    def not_cached(_repo: FolderRepo, path: str, *_: int) -> None:
        raise NotHere(f"{path}: not cached", code="not-cached")

    monkeypatch.setattr(FolderRepo, method, not_cached)

    with pytest.raises(NotHere, match="not cached"):
        list(check_branch(subject))


@pytest.mark.slow
def test_hostile_number_of_keys_takes_a_bounded_time(tmp_path: Path) -> None:
    """Names are looked up, not compared with each other."""
    began = time.process_time()
    [finding] = _found(tmp_path, lambda tensors: tensors.update({f"x{i}\n": zeros(1) for i in range(50_000)}))

    assert finding.data["num_unknown"] == 50_000
    assert len(finding.data["unknown"]) == 1000
    assert finding.message.isprintable()
    assert time.process_time() - began < 60  # reading and writing the header takes nearly all of it
