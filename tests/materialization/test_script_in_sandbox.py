"""Scripts in the real sandbox: one that is written to the format makes the tree of the recipe vdn-h3, byte for byte."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.models import VDN
from support.published_rule import files_of
from support.scripted import MODEL, scripted_hub, scripted_options, vdn_options

from overlay.errors import BrokenInput
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify
from overlay.sandbox import available

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built

pytestmark = pytest.mark.slow

MARKER = ".sglang_overlay_materialized.json"


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    """A machine without any has nothing to test here."""
    if not available():
        pytest.skip("no sandbox works here")


def test_the_script_and_the_recipe_make_the_same_files(shared_build: Built, tmp_path: Path) -> None:
    """Every file but the record and the marker, which names the overlay's revision; run once, found again."""
    hub = replace(shared_build.hub, root=shutil.copytree(shared_build.hub.root, tmp_path / "hub"))
    options = vdn_options(hub, tmp_path)
    done = materialize(VDN, options)
    assert (done.result, done.counters.downloaded) == ("built", 0)
    assert done.path is not None
    made, expected = files_of(done.path), files_of(shared_build.tree)
    assert sorted(made) == sorted(expected)
    different = [path for path in expected if made[path] != expected[path]]
    assert sorted(different) == [MARKER, RECORD_NAME]
    marker, of_recipe = json.loads(made[MARKER]), json.loads(expected[MARKER])
    assert {key for key in marker if marker[key] != of_recipe[key]} == {"overlay_revision", "overlay_fingerprint"}
    assert verify(done.path, level="full").ok
    record = json.loads(made[RECORD_NAME])
    assert record["run"]["script"]["peak_memory"] > 0
    linked = {path for path in record["run"]["claimed"] if path.endswith(".safetensors")}
    assert "text_encoder/model-00001-of-00002.safetensors" in linked  # a link, and not what the script wrote
    assert "transformer/sglang_vdn_linear_branch.safetensors" in linked  # a copy of an input
    vae = done.path / "video_vae"
    assert (vae / "model.safetensors").samefile(vae / "source/model.safetensors")
    assert materialize(VDN, options).result == "present"
    shutil.rmtree(tmp_path / "root/.overlay/trees")
    shutil.rmtree(tmp_path / "root/materialized_models")
    again = materialize(VDN, options)
    assert (again.result, again.path, again.counters) == ("reused", done.path, Counters())


def test_what_it_finds_in_its_folder_it_may_change(tmp_path: Path) -> None:
    """Mapped files and the overlay's own are its to rewrite, and the inputs behind them stay as they are."""
    script = (
        "from pathlib import Path\n"
        "def materialize(*, overlay_dir, source_dir, output_dir, manifest):\n"
        "    out = Path(output_dir)\n"
        "    (out / 'unet/config.json').write_text('[1]')\n"
        "    with open(out / 'README.md', 'a') as file:\n"
        "        file.write(' and of the script')\n"
        "    (out / 'unet/w.safetensors').rename(out / 'unet/v.safetensors')\n"
    )
    scripted_hub(tmp_path / "hub", script, file_mappings=[{"type": "tree", "src": "unet"}])
    before = files_of(tmp_path / "hub")
    done = materialize(MODEL, scripted_options(tmp_path, script))
    assert done.path is not None
    made = files_of(done.path)
    assert made["unet/config.json"] == b"[1]"
    assert made["README.md"] == b"of the overlay and of the script"
    assert "unet/v.safetensors" in made
    assert "unet/w.safetensors" not in made
    assert files_of(tmp_path / "hub") == before


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("raise RuntimeError('no luck')", "script-failed", "no luck"),
        ("Path(source_dir, 'unet/w.safetensors').write_bytes(b'')", "script-failed", "OSError|PermissionError"),
        ("import socket; socket.create_connection(('127.0.0.1', 1))", "script-failed", "Error"),
        ("import time; time.sleep(60)", "script-limit", "seconds"),
    ],
)
def test_a_script_that_misbehaves_publishes_nothing(tmp_path: Path, line: str, code: str, words: str) -> None:
    """It is named, with the reason; inputs are as they were."""
    head = "from pathlib import Path\ndef materialize(*, overlay_dir, source_dir, output_dir, manifest):\n"
    script = f"{head}    {line}\n"
    scripted_hub(tmp_path / "hub", script)
    before = files_of(tmp_path / "hub")
    with pytest.raises(BrokenInput, match=words) as caught:
        materialize(MODEL, scripted_options(tmp_path, script, limits=", limits: {time: 4s}"))
    assert caught.value.code == code
    assert files_of(tmp_path / "hub") == before
    assert not list(tmp_path.glob("root/materialized_models/*"))
    assert not list(tmp_path.glob("root/.overlay/staging/*"))
