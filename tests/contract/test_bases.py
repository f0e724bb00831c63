"""Bases: plain, and the one that the adapters were trained on, as far as can be told without a weight byte."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import codes, edit_json, make_hub, next_source, subject_of
from support.lora import IN, OUT, block_base, infos, kohya, pair, peft_config, write_adapter
from support.lora_contracts import (
    BASE,
    BASE_PLACE,
    BASE_REVISION,
    Listed,
    base_folder,
    listed,
    lora_folder,
    lora_subject,
    write_base,
)

from overlay.contract.checks.adapters import check_adapters
from overlay.contract.checks.bases import check_bases
from overlay.errors import NotHere, Refused, TryAgain
from overlay.fingerprint import DigestMemo
from overlay.hub import FolderRepo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.errors import OverlayError
    from overlay.formats.header import TensorInfo
    from overlay.hub import Repo
    from overlay.registry import Pin

pytestmark = pytest.mark.no_torch

Q0, Q1 = "blocks.0.attn.to_q", "blocks.1.attn.to_q"
OTHER, OTHER_REVISION = "org/other", "c" * 40
MODEL_SPEC = "stage-dmd-step-250/model_spec.json"


@pytest.fixture(autouse=True)
def _no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder has no listing that tells digests: none may be asked for, because each would read the file whole."""

    def refuse(repo: FolderRepo, path: str) -> str:
        assert isinstance(repo, Listed), f"{path} would be read whole"
        return of_listing(repo, path)

    of_listing = FolderRepo.digest
    monkeypatch.setattr(FolderRepo, "digest", refuse)


def _subject(root: Path, base: dict[str, TensorInfo] | None = None, config: Any = None, **fields: Any) -> Subject:
    """The small base with a PEFT adapter for one module."""
    write_base(base_folder(root), base, **(config or {}))
    write_adapter(lora_folder(root), pair(Q0), config=peft_config([Q0], **fields))
    return lora_subject(root)


# A base that is not plain.


def _fp8() -> dict[str, TensorInfo]:
    return block_base() | infos({f"{Q0}.weight": (OUT, IN)}, "F8_E4M3")


def _scaled() -> dict[str, TensorInfo]:
    return block_base() | infos({f"{Q0}.weight_scale": (1,)}, "F32")


def _packed() -> dict[str, TensorInfo]:
    without = {name: info for name, info in block_base().items() if name != f"{Q0}.weight"}
    return without | infos({f"{Q0}.qweight": (OUT, IN)}, "U8")


QUANTISED = {
    # By name: the base, its config.json, and what is said of it.
    "fp8": (_fp8(), {}, f"1 target of the adapters, {Q0} first, which is F8_E4M3"),
    "scales-beside-it": (_scaled(), {}, f"1 target of the adapters, {Q0} first, which has {Q0}.weight_scale beside it"),
    "packed": (_packed(), {}, f"1 target of the adapters, {Q0} first, which is stored as {Q0}.qweight"),
    "config": (block_base(), {"quantization_config": {"quant_method": "fp8"}}, "config.json has quantization_config"),
    "both": (
        _fp8(),
        {"compression_config": {"format": "x"}},
        f"config.json has compression_config; 1 target of the adapters, {Q0} first, which is F8_E4M3",
    ),
}


@pytest.mark.parametrize(("base", "config", "says"), QUANTISED.values(), ids=QUANTISED)
def test_quantised_base_is_one_finding(
    tmp_path: Path, base: dict[str, TensorInfo], config: dict[str, Any], says: str
) -> None:
    """Said of the base, at its pin, and not of the adapters again."""
    subject = _subject(tmp_path, base, config)

    [finding] = check_bases(subject)

    assert finding.code == "base-quantised"
    assert (
        f"the base is quantised or scaled: {says}; adapters can be folded into plain BF16, F16, F32" in finding.message
    )
    assert (finding.place.line, finding.place.column) == BASE_PLACE
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    assert finding.data["modules"] == ([] if base == block_base() else [Q0])
    assert list(check_adapters(subject)) == []


PLAIN = {
    "another-module-in-fp8": (block_base() | infos({f"{Q1}.weight": (OUT, IN)}, "F8_E4M3"), {}),
    "no-quantisation-said": (block_base(), {"quantization_config": None}),
    "fp32": (block_base() | infos({f"{Q0}.weight": (OUT, IN)}, "F32"), {}),
}


@pytest.mark.parametrize(("base", "config"), PLAIN.values(), ids=PLAIN)
def test_base_whose_targets_are_plain_is_no_finding(
    tmp_path: Path, base: dict[str, TensorInfo], config: dict[str, Any]
) -> None:
    """Only what the adapters change has to be plain."""
    assert list(check_bases(_subject(tmp_path, base, config))) == []


def test_base_without_a_config_is_no_finding(tmp_path: Path) -> None:
    """Community bases are files alone; nothing is then held against them."""
    write_base(base_folder(tmp_path))
    (base_folder(tmp_path) / "config.json").unlink()
    write_adapter(lora_folder(tmp_path), kohya(Q0))

    assert list(check_bases(lora_subject(tmp_path))) == []


# The base that an adapter names.


NAMED = {
    # By name: what the adapter's config says, and what is found.
    "h30-another-repo": ({"base_model_name_or_path": OTHER}, [f"was trained on {OTHER}, as it says"]),
    "h30-another-commit": ({"revision": OTHER_REVISION}, [f"was trained on {BASE}@cccccccccccc, as it says"]),
    "h30-another-repo-and-commit": (
        {"base_model_name_or_path": OTHER, "revision": OTHER_REVISION},
        [f"was trained on {OTHER}@cccccccccccc, as it says"],
    ),
    "the-same": ({}, None),
    "the-same-commit": ({"revision": BASE_REVISION}, None),
    "a-branch-tells-nothing": ({"revision": "main"}, None),
    "other-case": ({"base_model_name_or_path": "Org/Base"}, None),
    "a-folder-tells-nothing": ({"base_model_name_or_path": "/data/checkpoints/base"}, None),
    "no-name": ({"base_model_name_or_path": None}, None),
    "no-text": ({"base_model_name_or_path": 7, "revision": ["main"]}, None),
}


@pytest.mark.parametrize(("fields", "says"), NAMED.values(), ids=NAMED)
def test_base_that_an_adapter_names_is_compared_with_the_pin(
    tmp_path: Path, fields: dict[str, Any], says: list[str] | None
) -> None:
    """A name is only a hint, so it is a warning, at the pin of the base."""
    found = list(check_bases(_subject(tmp_path, **fields)))

    if says is None:
        assert found == []
        return
    [finding] = found
    assert finding.code == "base-not-trained-on"
    says = [*says, f"the base is {BASE}@bbbbbbbbbbbb", f"{lora_folder(tmp_path)}/adapter_config.json: "]
    assert [text for text in says if text not in finding.message] == []
    assert (finding.place.line, finding.place.column) == BASE_PLACE
    assert finding.severities == {"overlay": "warning", "sglang": "warning"}
    assert finding.data["pinned"] == {"repo": BASE, "revision": BASE_REVISION}
    assert finding.data["compared"] is False


def _opens(root: Path, kind: type[FolderRepo] = Listed) -> Callable[[Pin], Repo]:
    """Opens what an adapter names, as the Hub would."""

    def open_other(pin: Pin) -> Repo:
        folder = root / "hub" / pin.repo / str(pin.revision)
        return kind(folder, repo=pin.repo, revision=str(pin.revision), memo=DigestMemo(None, write=False))

    return open_other


def _compared(root: Path, change: Callable[[Path], object], kind: type[FolderRepo] = Listed) -> list[Finding]:
    """What is found where the adapter names a copy of the base with a change."""
    subject = listed(_subject(root, base_model_name_or_path=OTHER, revision=OTHER_REVISION))
    copy = base_folder(root, OTHER_REVISION, OTHER)
    shutil.copytree(base_folder(root), copy)
    change(copy)
    return list(check_bases(subject, _opens(root, kind)))


def test_named_base_with_equal_files_is_no_finding(tmp_path: Path) -> None:
    """A copy under another name, whatever else its repo holds, is the base that the adapter was trained on."""
    assert _compared(tmp_path, lambda copy: (copy / "README.md").write_text("A copy.")) == []


def test_named_base_with_equal_files_in_another_folder_is_no_finding(tmp_path: Path) -> None:
    """Files are found by digest."""

    def move(copy: Path) -> None:
        (copy / "transformer").mkdir()
        (copy / "model.safetensors").rename(copy / "transformer/model.safetensors")

    assert _compared(tmp_path, move) == []


def test_named_base_with_equal_shapes_and_other_bytes_is_said_so(tmp_path: Path) -> None:
    """Nothing else could tell: the adapter fits, and the result is not what was trained."""
    [finding] = _compared(tmp_path, lambda copy: write_base(copy, fill=1))

    assert finding.code == "base-bytes-differ"
    assert "its tensors have the same names and shapes, and other bytes" in finding.message
    assert finding.data["compared"] is True
    assert finding.severities == {"overlay": "warning", "sglang": "warning"}


UNLIKE: dict[str, Callable[[Path], object]] = {
    "other-tensors": lambda copy: write_base(copy, infos({"x.weight": (1, 1)})),
    "other-dtypes": lambda copy: write_base(copy, block_base() | infos({f"{Q1}.weight": (OUT, IN)}, "F32")),
    "no-weights": lambda copy: (copy / "model.safetensors").unlink(),
    "broken": lambda copy: (copy / "model.safetensors").write_bytes(b"x"),
    "cut-otherwise": lambda copy: write_base(copy, fill=1) and _rename(copy),
}


def _rename(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001-of-00001.safetensors")


@pytest.mark.parametrize("change", UNLIKE.values(), ids=UNLIKE)
def test_named_base_that_is_unlike_is_another_base(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """No claim about bytes where there are no equal shapes in equal files to compare."""
    assert codes(_compared(tmp_path, change)) == ["base-not-trained-on"]


def test_named_base_without_digests_is_compared_by_name_alone(tmp_path: Path) -> None:
    """Weights in a folder are not read for this."""
    assert codes(_compared(tmp_path, lambda _: None, FolderRepo)) == ["base-not-trained-on"]


@pytest.mark.parametrize(
    "error", [NotHere("gone", code="revision-not-here"), Refused("gated", code="gated")], ids=["not-here", "gated"]
)
def test_named_base_that_cannot_be_opened_is_compared_by_name_alone(tmp_path: Path, error: OverlayError) -> None:
    """It is not what the entry needs, so nobody has to have it."""

    def fail(_pin: Pin) -> Repo:
        raise error

    subject = listed(_subject(tmp_path, revision=OTHER_REVISION))

    assert codes(check_bases(subject, fail)) == ["base-not-trained-on"]


def test_lost_connection_is_no_finding(tmp_path: Path) -> None:
    """Could not tell is not bad."""

    def fail(_pin: Pin) -> Repo:
        raise TryAgain("connection lost", code="connection")

    with pytest.raises(TryAgain):
        list(check_bases(listed(_subject(tmp_path, revision=OTHER_REVISION)), fail))


# What a stage's model_spec.json says.


def _hash(resolved: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(resolved, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _resolved(config_hash: str | None = None, **resolved: Any) -> dict[str, Any]:
    return {"resolved_config": resolved, "config_hash": config_hash or _hash(resolved)}


SPECS = {
    # By name: what `base` says, and what is found.
    "class": (
        {"class_name": "WanTransformer3DModel"},
        "class_name is WanTransformer3DModel, the base's is MiniMaxH3Transformer3DModel",
    ),
    "resolved-config": (
        _resolved(hidden_size=193, num_layers=1, _note="x"),
        "resolved_config has hidden_size 193, the base 192",
    ),
    "hash-of-something-else": (_resolved("0" * 64, num_layers=1), "config_hash is not that of its resolved_config"),
    "published-note-binds-nothing": (_resolved("0" * 64, _note="stamped at conversion; verify on load"), None),
    "resolved-config-that-holds": (_resolved(hidden_size=192, not_in_the_config=1), None),
    "source-is-a-folder": ({"source": "ckpts/other", "revision": "0" * 40}, None),
    "no-text": ({"class_name": 3, "resolved_config": []}, None),
}


@pytest.mark.parametrize(("base", "says"), SPECS.values(), ids=SPECS)
def test_model_spec_is_compared_with_the_base(tmp_path: Path, base: dict[str, Any], says: str | None) -> None:
    """Class and config, as far as they are given; once for the stage, not once for each adapter."""
    hub = next_source(make_hub(tmp_path), "another model spec")
    edit_json(hub.source_folder / MODEL_SPEC, lambda spec: spec["base"].update(base))

    found = list(check_bases(subject_of(hub, tmp_path)))

    assert codes(found) == (["base-not-trained-on"] if says else [])
    for finding in found:
        assert f"{MODEL_SPEC}: describes another base than " in finding.message
        assert finding.message.endswith(f"h3-base/transformer: {says}")
        assert (finding.place.line, finding.place.column) == (4, 14)


def test_release_layout_is_clean(tmp_path: Path) -> None:
    """What is published gives no finding, and none against itself as it was before."""
    hub = make_hub(tmp_path)
    subject = subject_of(hub, tmp_path)

    assert list(check_bases(subject)) == []
    assert list(check_bases(listed(subject_of(hub, tmp_path, before=listed(subject))))) == []


# The base before a change.


def _bumped(root: Path, change: Callable[[Path], object], *, known: bool = True) -> list[Finding]:
    """What is found where the base alone is bumped, to a commit with a change."""
    before = _subject(root)
    copy = base_folder(root, OTHER_REVISION)
    shutil.copytree(base_folder(root), copy)
    change(copy)
    after = lora_subject(root, revision=OTHER_REVISION, before=listed(before) if known else before)
    return list(check_bases(listed(after) if known else after))


def test_bump_to_other_bytes_under_equal_names_is_found(tmp_path: Path) -> None:
    """The adapters stay, and were trained on what was there before."""
    [finding] = _bumped(tmp_path, lambda copy: write_base(copy, fill=1))

    assert finding.code == "base-bytes-differ"
    assert "the bytes of 1 of 1 shard (model.safetensors) are not those of" in finding.message
    assert finding.severities == {"overlay": "warning", "sglang": "warning"}
    assert finding.data["shards"] == ["model.safetensors"]
    assert finding.data["before"] == BASE_REVISION
    assert (finding.place.line, finding.place.column) == BASE_PLACE


@pytest.mark.parametrize(
    "change",
    [lambda copy: (copy / "README.md").write_text("x"), UNLIKE["other-tensors"], UNLIKE["cut-otherwise"]],
    ids=["no-weights-changed", "other-tensors", "cut-otherwise"],
)
def test_bump_that_changes_no_bytes_under_equal_names_is_no_finding(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    """Other tensors are for the check of adapters; other files with the same tensors cannot be told apart."""
    assert _bumped(tmp_path, change) == []


def test_bump_of_a_folder_says_nothing_of_bytes(tmp_path: Path) -> None:
    """No listing, no digest, and no weight is read for one."""
    assert _bumped(tmp_path, lambda copy: write_base(copy, fill=1), known=False) == []


def test_bump_of_base_and_adapters_together_is_no_finding(tmp_path: Path) -> None:
    """A release that was trained anew has other adapters, too."""
    hub = make_hub(tmp_path)
    before = listed(subject_of(hub, tmp_path))
    anew = next_source(hub, "trained anew")
    for path in sorted(anew.source_folder.glob("h3-base/transformer/*.safetensors")):
        _flip_last_byte(path)
    kept = listed(subject_of(anew, tmp_path, before=before))
    assert codes(check_bases(kept)) == ["base-bytes-differ"]

    for path in sorted(anew.source_folder.glob("*/adapters/*/*.safetensors")):
        _flip_last_byte(path)

    assert list(check_bases(listed(subject_of(anew, tmp_path, before=before)))) == []


def _flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
