"""sglang's fingerprint of an overlay, against published values and a plain walk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.consumers import sglang
from overlay.consumers.sglang import fingerprint as sglang_fingerprint
from overlay.errors import BrokenInput, NotHere

pytestmark = pytest.mark.no_torch

SYNTHETIC = {
    "README.md": b"hi\n",
    "model_index.json": b'{"_class_name":"P","_diffusers_version":"0"}',
    "_overlay/overlay_manifest.json": b'{"source_model_id":"org/src"}',
    "b/x.json": b"1",
    "a/y.json": b"2",
    "a/b/z.txt": b"3",
    "a.json": b"4",
}
SYNTHETIC_FINGERPRINT = "6b8f18a2809bf6907ca475b7b517e9d14ab448312f9c447ba8f228cdf7fef673"

VDN_H3 = {
    "README.md": "7ec07f25230ab24423bb30fbc29a23b74f1016cd0412754beec2308b7a10ed74",
    "model_index.json": "e2013dc06d5db70dbe6c80fceb8162bd61e682a64f5e2859174059b3f34ca93d",
    "_overlay/materialize.py": "8481fc322973c309ab78961d4dfd2b4450ea97f393ad4fe2b54de62312979c0b",
    "_overlay/overlay_manifest.json": "ba42e83cbf6dc54f0cc2b2c466b86d12733bbaed60f1090bc0f7fdd078faceec",
}
VDN_H3_FINGERPRINT = "41b00cecdf03a3951ae8b491999ee5037e9c9455fb5e6e503755dcece0af1c5d"


def write(root: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def plain_fingerprint(root: Path) -> str:
    """The published description, word for word."""
    whole = hashlib.sha256()
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(f for f in subfolders if f != "__pycache__" and not f.endswith(".egg-info"))
        for name in sorted(names):
            if name.endswith((".safetensors", ".bin", ".pth", ".pt")):
                continue
            path = Path(folder, name)
            whole.update(path.relative_to(root).as_posix().encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def test_synthetic_vector(tmp_path: Path) -> None:
    """The fingerprint of the synthetic overlay is what the released function gave, from a folder and from contents."""
    assert sglang.overlay_fingerprint(write(tmp_path, SYNTHETIC)) == SYNTHETIC_FINGERPRINT
    assert sglang.overlay_fingerprint(reversed(SYNTHETIC.items())) == SYNTHETIC_FINGERPRINT


def test_published_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The VDN-H3 overlay's four files give the fingerprint of a real marker."""
    monkeypatch.setattr(sglang_fingerprint, "_sha256", bytes.fromhex)
    assert sglang.overlay_fingerprint(VDN_H3.items()) == VDN_H3_FINGERPRINT


def test_files_of_a_folder_come_before_its_subfolders() -> None:
    """``a.json`` and ``b.json`` are hashed before anything in ``a/``: it is no sort of whole paths."""
    names = ["a/x.json", "b.json", "a.json", "a/b/y.json", "a/z.json", "A/x.json"]
    order = sorted(names, key=sglang_fingerprint._walk_order)
    assert order == ["a.json", "b.json", "A/x.json", "a/x.json", "a/z.json", "a/b/y.json"]


@pytest.mark.parametrize(
    "path",
    [
        ".gitattributes",
        "LICENSE",
        "x.gguf",
        "x.ckpt",
        "X.SAFETENSORS",
        ".git/config",
        ".cache/huggingface/x.json",
        "__pycache__",
    ],
)
def test_files_that_count(path: str) -> None:
    """Hidden files, licences and weights in other formats all change the fingerprint."""
    assert sglang_fingerprint.enters_fingerprint(path)
    assert sglang.overlay_fingerprint([*SYNTHETIC.items(), (path, b"content")]) != SYNTHETIC_FINGERPRINT


@pytest.mark.parametrize(
    "path",
    [
        "x.safetensors",
        "a/x.bin",
        "a/x.pth",
        "a/x.pt",
        "a/__pycache__/x.py",
        "p.egg-info/top_level.txt",
        "p.egg-info/sub/x.json",
    ],
)
def test_files_that_do_not_count(path: str) -> None:
    """Weights by their suffix in lower case, and generated folders, leave the fingerprint alone."""
    assert not sglang_fingerprint.enters_fingerprint(path)
    assert sglang.overlay_fingerprint([*SYNTHETIC.items(), (path, b"content")]) == SYNTHETIC_FINGERPRINT


def test_what_a_server_never_downloads_changes_the_fingerprint(tmp_path: Path) -> None:
    """A snapshot that was fetched whole has another fingerprint, and the files that make it so are named."""
    extras = {".gitattributes": b"*", "LICENSE": b"MIT", "a/picture.png": b"png"}
    weights = {"transformer/model.safetensors": b"w"}
    root = write(tmp_path, {**SYNTHETIC, **extras, **weights})

    assert sglang.overlay_fingerprint(root) != SYNTHETIC_FINGERPRINT
    assert sglang.extra_files([*SYNTHETIC, *extras, *weights], SYNTHETIC) == tuple(extras)


def test_a_file_that_is_not_of_the_commit_changes_the_fingerprint(tmp_path: Path) -> None:
    """Also one of a kind that the server does fetch, where the commit has it."""
    root = write(tmp_path, {**SYNTHETIC, "notes.py": b"", "z/todo.md": b"x"})
    assert sglang.overlay_fingerprint(root) != SYNTHETIC_FINGERPRINT
    assert sglang.extra_files([*SYNTHETIC, "notes.py", "z/todo.md"], SYNTHETIC) == ("notes.py", "z/todo.md")


def test_file_links_are_followed_and_folder_links_are_not(tmp_path: Path) -> None:
    """A Hub snapshot of links hashes like real files; a link to a folder adds nothing."""
    blobs = write(tmp_path / "blobs", {"1": b"hi\n"})
    snapshot = write(tmp_path / "snapshot", {path: data for path, data in SYNTHETIC.items() if path != "README.md"})
    (snapshot / "README.md").symlink_to(blobs / "1")
    (snapshot / "linked").symlink_to(blobs)

    assert sglang.overlay_fingerprint(snapshot) == SYNTHETIC_FINGERPRINT


def test_dangling_link_is_named(tmp_path: Path) -> None:
    """A dangling link is refused by its name; where it does not count it is no matter."""
    root = write(tmp_path, SYNTHETIC)
    (root / "gone.safetensors").symlink_to("nowhere")
    assert sglang.overlay_fingerprint(root) == SYNTHETIC_FINGERPRINT
    (root / "gone.json").symlink_to("nowhere")
    with pytest.raises(BrokenInput, match=r"gone\.json: expected a file") as caught:
        sglang.overlay_fingerprint(root)
    assert caught.value.code == "not-a-file"


def test_special_file_is_not_read(tmp_path: Path) -> None:
    """A pipe among the files is refused; reading it would wait for ever."""
    os.mkfifo(write(tmp_path, SYNTHETIC) / "pipe.json")
    with pytest.raises(BrokenInput, match=r"pipe\.json"):
        sglang.overlay_fingerprint(tmp_path)


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A folder that cannot be listed has no fingerprint, least of all that of an empty one."""
    with pytest.raises(NotHere, match="nowhere: no such file"):
        sglang.overlay_fingerprint(tmp_path / "nowhere")


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    """A file name that is not UTF-8 has no place in a fingerprint."""
    with open(os.fsencode(tmp_path) + b"/\xff.json", "wb"):  # noqa: PTH123 - pathlib has no bytes
        pass
    with pytest.raises(BrokenInput, match="not UTF-8"):
        sglang.overlay_fingerprint(tmp_path)


PARTS = st.sampled_from(["a", "b", "a.b", "A", "é", "__pycache__", "x.egg-info", ".git"])
NAMES = st.sampled_from(["a", "a.json", "B.md", "b.bin", "m.safetensors", "z.txt", "é.json"])
TREES = st.dictionaries(
    st.tuples(st.lists(PARTS, max_size=3), NAMES).map(lambda t: "/".join([*t[0], t[1]])),
    st.binary(max_size=4),
    max_size=12,
)


@given(files=TREES)
def test_equals_a_plain_walk(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    """For any tree, contents and folder give what the description of the walk gives."""
    files = {path: data for path, data in files.items() if not any(other.startswith(path + "/") for other in files)}
    root = write(tmp_path_factory.mktemp("tree"), files)
    assert plain_fingerprint(root) == sglang.overlay_fingerprint(root) == sglang.overlay_fingerprint(files.items())
