"""Scripts in the real sandbox: one that is written to the format makes the tree of the recipe vdn-h3, byte for byte."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.hubs import add_repo, client_of, commit
from support.models import VDN
from support.published_rule import files_of
from support.sandboxes import SANDBOXES
from support.scripted import MODEL, scripted_hub, scripted_options, vdn_options

import overlay.sandbox
from overlay.errors import BrokenInput
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

pytestmark = pytest.mark.slow

MARKER = ".sglang_overlay_materialized.json"


@pytest.fixture(autouse=True, params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each sandbox that works here; a machine without any has nothing to test."""
    found = [each for each in SANDBOXES if each.name == request.param]
    if not found:
        pytest.skip(f"{request.param} does not work here")
    monkeypatch.setattr(overlay.sandbox, "require_sandbox", lambda: found[0])
    return found[0].name


def test_the_script_and_the_recipe_make_the_same_files(shared_build: Built, tmp_path: Path, sandbox: str) -> None:
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
    assert record["run"]["script"]["sandbox"] == sandbox
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


def test_it_reads_the_hubs_cache_and_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs of source and needs where the client put them; a token beside them is out of reach."""
    script = (
        "from pathlib import Path\n"
        "from huggingface_hub import get_token, hf_hub_download\n"
        "def materialize(*, overlay_dir, source_dir, output_dir, manifest):\n"
        "    out, weights = Path(output_dir), Path(source_dir, 'unet/w.safetensors')\n"
        "    (out / 'unet').mkdir()\n"
        "    (out / 'unet/w.safetensors').symlink_to(weights.resolve())\n"
        "    (out / 'unet/config.json').write_text(Path(hf_hub_download('acme/need', 'a/b.txt')).read_text())\n"
        "    assert get_token() is None\n"
        "    try:\n"
        "        (weights.resolve().parents[3] / 'token').read_text()\n"
        "    except OSError:\n"
        "        return\n"
        "    raise RuntimeError('the token could be read')\n"
    )
    scripted_hub(tmp_path / "hub", script)
    add_repo(tmp_path / "hub", "acme/need", commit("c"), {"a/b.txt": '"needed"'})
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/token").write_text("hf_secret")
        needs = f"needs: [{{repo: acme/need, revision: {commit('c')}}}]"
        done = materialize(MODEL, replace(scripted_options(tmp_path, script, needs=needs), hub=None))
    assert done.path is not None
    assert files_of(done.path)["unet/config.json"] == b'"needed"'
    assert json.loads((done.path / RECORD_NAME).read_bytes())["run"]["claimed"] == ["unet/w.safetensors"]
    assert done.counters.downloaded == 16


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("raise RuntimeError('no luck')", "script-failed", "materialize.py: line 3: RuntimeError: no luck$"),
        ("raise RuntimeError('first\\nsecond')", "script-failed", "line 3: RuntimeError: first$"),
        ("raise RuntimeError('x' * 60_000)", "script-failed", "line 3: RuntimeError: x{100,}…$"),
        ("print('lie', flush=True); import os; os._exit(91)", "script-failed", "materialize.py: ended with status 91$"),
        ("import os; os._exit(3)", "script-failed", "ended with status 3$"),
        ("Path(source_dir, 'unet/w.safetensors').write_bytes(b'')", "script-failed", "OSError|PermissionError"),
        ("import socket; socket.create_connection(('127.0.0.1', 1))", "script-failed", "Error"),
        ("import time; time.sleep(60)", "script-limit", r"its limit of 4 s \(time\)"),
        ("Path(output_dir, *['a'] * 150).mkdir(parents=True)", "script-limit", "had 100 folders within one another"),
        ("import os; os.truncate(os.open(output_dir + '/a', 65), 2**40)", "script-limit", r"its limit of .* \(disk\)"),
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
    assert str(caught.value).startswith(f"{tmp_path}/hub/acme/overlay/{'b' * 40}/_overlay/materialize.py: ")
    assert "staging" not in f"{caught.value} {caught.value.data}"
    assert "-v shows" in str(caught.value.hint)
    assert len(caught.value.data["output"]) <= 4096
    assert files_of(tmp_path / "hub") == before
    assert not list(tmp_path.glob("root/materialized_models/*"))
    assert not list(tmp_path.glob("root/.overlay/staging/*"))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "from huggingface_hub import snapshot_download; snapshot_download('acme/forgotten')",
            "add it to the entry's needs",
        ),
        (
            "from huggingface_hub import snapshot_download; snapshot_download('acme/need', local_dir='te')",
            "leave local_dir out and copy from the folder that it returns",
        ),
        ("import absent_helper.deep", "install absent_helper"),
    ],
)
def test_what_a_script_lacks_is_told(tmp_path: Path, line: str, hint: str) -> None:
    """A repo that the entry does not name, a module that is not there: what to write, and the line that asks."""
    script = f"def materialize(*, overlay_dir, source_dir, output_dir, manifest):\n    {line}\n"
    scripted_hub(tmp_path / "hub", script)
    add_repo(tmp_path / "hub", "acme/need", commit("c"), {"a.txt": "needed"})
    needs = f"needs: [{{repo: acme/need, revision: {commit('c')}}}]"
    with pytest.raises(BrokenInput, match=r"materialize\.py: line 2: ") as caught:
        materialize(MODEL, scripted_options(tmp_path, script, needs=needs))
    assert hint in str(caught.value.hint)


def test_h20_a_killed_script_publishes_nothing_and_the_next_run_does(tmp_path: Path) -> None:
    """The script dies with the run; what it had written is staging that nobody adopts."""
    script = (
        "import os, time\n"
        "from pathlib import Path\n"
        "def materialize(*, overlay_dir, source_dir, output_dir, manifest):\n"
        "    (Path(output_dir) / 'unet').mkdir()\n"
        "    data = (Path(source_dir) / 'unet/w.safetensors').read_bytes()\n"
        "    (Path(output_dir) / 'unet/made.safetensors').write_bytes(data[:-1] + b'!')\n"
        "    for _ in range(80):\n"
        "        (Path(output_dir) / 'beat.txt').open('a').write('x')\n"
        "        time.sleep(0.05)\n"
    )
    scripted_hub(tmp_path / "hub", script)
    options = scripted_options(tmp_path, script)
    command = [sys.executable, "-m", "overlay", "prewarm", MODEL, "--registry", str(options.registry), "--hub"]
    run = subprocess.Popen([*command, str(options.hub), "--cache-root", str(options.cache_root)], stderr=-1, stdout=-1)
    with run:
        until(lambda: list(tmp_path.glob("root/.overlay/staging/*/output/beat.txt")))
        run.send_signal(signal.SIGKILL)
    [beat] = tmp_path.glob("root/.overlay/staging/*/output/beat.txt")
    until(lambda: is_still(beat))
    assert beat.stat().st_size < 80
    assert not list(tmp_path.glob("root/materialized_models/*"))
    assert not list(tmp_path.glob("root/.overlay/objects/*/*/*"))
    assert materialize(MODEL, options).result == "built"


def until(reached: Callable[[], object]) -> None:
    """Wait for something, not for ever."""
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_still(path: Path) -> bool:
    """Whether nobody writes to a file."""
    before = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size == before
