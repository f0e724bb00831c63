"""Which files may lie in a tree: by their names, and by their first bytes."""

from __future__ import annotations

import bz2
import io
import lzma
import pickle
import tarfile

import pytest

from overlay.formats.materialized import MARKER_NAME
from overlay.formats.tree_files import why_no_data, why_not_by_name

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(
    "name",
    [
        *("pipeline.py", "conftest.py", "unet/__pycache__/x.cpython-312.pyc", "unet/lib.so", "x.dll", "setup.cfg"),
        *("pyproject.toml", "Makefile", "a.npy", "a.npz", "b.joblib", "e.dill", "c.pth.tar", "x.h5", "x.onnx", "x.zip"),
        *("d.bin ", "unet/diffusion_pytorch_model.bin.", "unet/w.pt.txt ", "safetensors", "run.sh", "x.html", "x.svg"),
        *("licenses/acme__overlay/LICENSE", "Licenses/x.txt", ".git/config", "unet/.git/config", ".GIT/x.json"),
        *(".envrc", ".vscode/tasks.json", f"unet/{MARKER_NAME}", ".SGLANG_overlay_materialized.json", "unet/HEAD"),
        *("LICENSE.exe", "unet/LICENSE.py", "x.model.v3.py", "x.model.vv", ".model.v3", "COPYRIGHT.sh", "README.exe"),
    ],
)
def test_what_tools_run_and_readers_unpickle_is_no_file_of_a_model(name: str) -> None:
    """Also where a blank or a dot behind the suffix would hide it from a glance."""
    assert why_not_by_name(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        *("a/x.safetensors", "x.GGUF", "config.json", "merges.txt", "LICENSE.rst", "README.md", "a/b.PNG", "x.jinja"),
        *("tokenizer.model", "a/tokenizer.model.v3", "tokenizer.model.v7m1", "tekken.json", "README", "AUTHORS"),
        *("LICENSE", "unet/NOTICE", "COPYRIGHT", "THIRD_PARTY_NOTICES", "third-party-licenses", "LICENSE-APACHE"),
    ],
)
def test_what_weights_lie_beside_is(name: str) -> None:
    """Tokenizers, papers, pictures."""
    assert why_not_by_name(name) is None


def tar() -> bytes:
    """An archive of one file."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return held.getvalue()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        *((pickle.dumps(value, protocol), "a pickle") for value in ({"a": [1, 2.5]}, print) for protocol in range(6)),
        (pickle.dumps(print, 0) + b"text", "a pickle"),
        (pickle.dumps(print, 4)[2:], "a pickle"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x93NUMPY\x01", "an array of numpy"),
        (b"\x7fELF\x02", "a program"),
        (tar(), "a tar archive"),
        (lzma.compress(b"x"), "compressed data"),
        (bz2.compress(b"x"), "compressed data"),
        (b"\x28\xb5\x2f\xfd\x20", "compressed data"),
        (b"7z\xbc\xaf\x27\x1c\x00", "a 7z archive"),
    ],
)
def test_what_runs_or_hides_is_known_by_its_first_bytes(data: bytes, what: str) -> None:
    """Whatever its name says."""
    assert str(why_no_data(data)).startswith(what)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "x", "{}", "[1, 2.5]", "e.g. this", "N.B. that", "a.b.c", "c\nd\nR\n", "0.1 0.2", "1\n2\n", "BZh"),
        *("core\nthing\nother", "(0, 1)", "#version: 0.2\nt h\n", "1 - 2.", "Note.", "\ufeff{}", "2.5", "ustar"),
    ],
)
def test_text_is_no_pickle(text: str) -> None:
    """Though its first letters are opcodes."""
    assert why_no_data(text.encode()) is None
