"""Records, stamps, environment and adapters that nobody should have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import overlay
from overlay.cache import Cache
from overlay.errors import BrokenInput, CannotWrite
from overlay.formats.layout import canonical_layout
from overlay.formats.materialized import RECORD_NAME
from overlay.materialization.record import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST = "xxh3_128:" + "0" * 32


def write_safetensors(path: Path, tensors: dict[str, tuple[int, ...]], value: int = 0) -> None:
    layout = canonical_layout([(name, "F32", shape) for name, shape in tensors.items()], {"format": "pt"})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(layout.header + bytes([value]) * (layout.file_size - len(layout.header)))


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    """A folder `out` that was fused from `base` and `adapter`."""
    write_safetensors(tmp_path / "base/model.safetensors", {"l.weight": (4, 4)})
    write_safetensors(
        tmp_path / "adapter/adapter_model.safetensors", {"l.lora_A.weight": (2, 4), "l.lora_B.weight": (4, 2)}, 1
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["l"]}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    overlay.fuse(tmp_path / "base", [tmp_path / "adapter"], tmp_path / "out", device="cpu")
    return tmp_path


def output(**changes: Any) -> dict[str, Any]:
    return {"path": "x", "size": 1, "digest": DIGEST} | changes


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(output(path="\ud800"), id="lone-surrogate"),
        pytest.param("9" * 5000, id="digits"),
        pytest.param(output(size=True), id="size"),
        pytest.param(output(digest="md5:00"), id="digest"),
        pytest.param(output(tensors=7), id="tensors"),
        pytest.param(output(tensors={"a": 1}), id="tensors-object"),
        pytest.param(output(tensors=[7]), id="tensor"),
        pytest.param(output(tensors=[{"name": "a", "digest": DIGEST}]), id="tensor-dtype"),
        pytest.param(output(tensors=[{"name": "a", "dtype": "F32", "shape": [], "digest": "?"}]), id="tensor-digest"),
    ],
)
def test_a_record_that_no_build_wrote_is_refused_by_name(tmp_path: Path, document: Any) -> None:
    """Never a crash, whatever a record holds."""
    if not isinstance(document, str):
        document = json.dumps({"schema_version": 1, "outputs": [document]})
    (tmp_path / RECORD_NAME).write_text(document)
    with pytest.raises(BrokenInput, match=RECORD_NAME) as caught:
        read_record(tmp_path)
    assert caught.value.code == "record-unreadable"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("/dev/zero")])
def test_a_record_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    """A pipe would never answer, a device never end."""
    make(tmp_path / RECORD_NAME)
    with pytest.raises(BrokenInput, match="expected a regular file"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.update(inputs=7),
        lambda record: record.update(fused_before=7),
        lambda record: record.pop("inputs"),
        lambda record: [item.update(digest="?") for item in record["inputs"]],
    ],
)
def test_a_spoilt_record_does_not_make_a_base_look_untouched(
    fused: Path, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    """A base with a record that does not say what was fused is refused, not fused a second time."""
    path = fused / "out" / RECORD_NAME
    record = json.loads(path.read_bytes())
    spoil(record)
    path.write_text(json.dumps(record))
    with pytest.raises(BrokenInput) as caught:
        overlay.fuse(fused / "out", [fused / "adapter"], fused / "again", device="cpu")
    assert caught.value.code == "already-fused"


@pytest.mark.parametrize("second", ["adapter", "copy"])
def test_an_adapter_that_is_given_twice_is_refused(fused: Path, second: str) -> None:
    """By its bytes: a copy under another name doubles the effect just the same."""
    (fused / "copy").mkdir()
    for path in (fused / "adapter").iterdir():
        (fused / "copy" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BrokenInput) as caught:
        overlay.fuse(fused / "base", [fused / "adapter", fused / second], fused / "twice", device="cpu")
    assert caught.value.code == "adapter-twice"
    assert not (fused / "twice").exists()


def test_a_layout_version_of_thousands_of_digits_is_unknown(tmp_path: Path) -> None:
    """Python refuses to read such a number; that is no bug of ours to report."""
    (tmp_path / ".overlay").mkdir()
    (tmp_path / ".overlay/version").write_text("1" * 5000)
    with pytest.raises(CannotWrite) as caught:
        Cache.open(tmp_path, create=False)
    assert caught.value.code == "layout-unknown"


@pytest.mark.no_torch
@pytest.mark.parametrize(
    ("variables", "command", "code"),
    [
        ({"HF_HUB_DOWNLOAD_TIMEOUT": ""}, ["prewarm", "OpenVDN/vdn-minimax-h3", "--dry-run"], "bad-environment"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, ["doctor"], "bad-environment"),
        ({"OVERLAY_CACHE_ROOT": "~nobody-of-this-name/cache"}, ["cache", "ls"], "no-home"),
    ],
)
def test_variables_without_a_usable_value(variables: dict[str, str], command: list[str], code: str) -> None:
    """They are the user's to mend, not a bug."""
    done = subprocess.run(
        [sys.executable, "-c", "import overlay.cli; overlay.cli.main()", *command],
        env=os.environ | variables,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"error[{code}]" in done.stderr.decode()
