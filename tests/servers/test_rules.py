"""What this program says of sglang's releases, against what the released wheels themselves answer."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from server_child import ask
from support.servers import SGLANG_RELEASES, unpacked

from overlay.cache import choose_root
from overlay.consumers import sglang
from overlay.consumers.server import parse_server
from overlay.formats.materialized import MARKER_NAME

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.no_torch]

PAIR = ["diffusers", "AutoencoderKL"]
# Each index with the files of a tree that a careful reader may or may not take for a model of it.
INDEXES: dict[str, Any] = {
    "two components": {"transformer": PAIR, "vae": PAIR},
    "a null": {"transformer": PAIR, "scheduler": None},
    "two nulls": {"transformer": PAIR, "image_encoder": [None, None]},
    "half a null": {"transformer": PAIR, "vae": [None, "AutoencoderKL"]},
    "a tokenizer": {"transformer": PAIR, "tokenizer": PAIR},
    "a third tokenizer": {"transformer": PAIR, "tokenizer_3": PAIR},
    "a scheduler of audio": {"transformer": PAIR, "audio_scheduler": PAIR},
    "a private pair": {"transformer": PAIR, "_extra": PAIR},
    "a list of three": {"transformer": PAIR, "sizes": [1, 2, 3]},
    "a list of two numbers": {"transformer": PAIR, "sizes": [1, 2]},
    "no component": {"sizes": 3},
    "no version": {"transformer": PAIR, "_diffusers_version": None},
    "not an object": [],
}
FILES: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "weights": ("transformer/model.safetensors", "vae/model.safetensors"),
    "one of two": ("transformer/model.safetensors", "vae/config.json"),
    "ckpt": ("transformer/model.ckpt", "vae/model.pt"),
    "weights below": ("transformer/source/model.safetensors", "vae/source/model.bin"),
    "hidden weights": ("transformer/.model.safetensors", "vae/model.safetensors"),
    "every folder": (
        *("transformer/model.safetensors", "vae/model.safetensors", "tokenizer/vocab.json", "image_encoder/a.json"),
        *("tokenizer_3/vocab.json", "audio_scheduler/config.json", "_extra/x.json", "sizes/x.json"),
    ),
}
MODULAR = {
    "_blocks_class_name": "Blocks",
    "_class_name": "P",
    "_diffusers_version": "0",
    "transformer": ["diffusers", "T", {"subfolder": "transformer"}],
}


def write_tree(tree: Path, index: Any, files: tuple[str, ...], name: str = "model_index.json") -> Path:
    for path in files:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("x")
    tree.mkdir(parents=True, exist_ok=True)
    if isinstance(index, dict):
        index = {"_class_name": "P", "_diffusers_version": "0", **index}
        index = {key: value for key, value in index.items() if value is not None or key != "_diffusers_version"}
    (tree / name).write_text(json.dumps(index))
    return tree


def trees(root: Path) -> list[Path]:
    """Every index with every set of files, with and without the marker, and some odd ones."""
    made = [
        write_tree(root / f"{i}-{j}", index, files)
        for (i, index), (j, files) in itertools.product(enumerate(INDEXES.values()), enumerate(FILES.values()))
    ]
    whole = FILES["every folder"]
    made += [
        write_tree(root / "with [a] in it", INDEXES["two components"], whole),
        write_tree(root / "with [ in it", INDEXES["two components"], whole),
        write_tree(root / "with * in it", INDEXES["two components"], whole),
        write_tree(root / "modular", MODULAR, whole, "modular_model_index.json"),
        write_tree(
            root / "modular-elsewhere",
            MODULAR | {"transformer": ["diffusers", "T", {"subfolder": "t"}]},
            whole,
            "modular_model_index.json",
        ),
        root / "absent",
    ]
    for tree in made[::2]:
        if tree.exists():
            (tree / MARKER_NAME).write_text("{}")
    unreadable = root / "unreadable"
    write_tree(unreadable, {}, whole)
    (unreadable / "model_index.json").write_text("{")
    linked = write_tree(root / "linked", INDEXES["two components"], ("vae/model.safetensors",))
    (linked / "transformer").symlink_to(root / "with [ in it" / "transformer")
    (linked / MARKER_NAME).write_text("{}")
    folder_linked = write_tree(
        root / "folder-linked", INDEXES["two components"], ("vae/x.safetensors", "transformer/x")
    )
    (folder_linked / "transformer/source").symlink_to(root / "with [ in it" / "transformer")
    (folder_linked / MARKER_NAME).write_text("{}")
    return [*made, unreadable, linked, folder_linked]


@pytest.mark.parametrize("version", SGLANG_RELEASES)
def test_a_tree_is_complete_exactly_where_the_server_says_so(version: str, tmp_path: Path) -> None:
    """For several hundred trees, by path and by name; a server that raises does not take the tree either."""
    release = sglang.release_of(parse_server(f"sglang=={version}").version)
    made = trees(tmp_path)
    job = [[name, str(tree)] for tree in made for name in ("is_diffusers_folder", "is_materialized")]
    answers = [answer.get("is", False) for answer in ask(unpacked("sglang", version), job)]
    ours = [not sglang.why_incomplete(tree, release, by_path=by_path) for tree in made for by_path in (True, False)]
    differing = {
        f"{call[0]} {call[1]}": is_so for call, is_so, own in zip(job, answers, ours, strict=True) if is_so != own
    }
    assert not differing
    assert 10 < sum(answers) < len(answers) - 10


PATHS = (
    "vdn-minimax-h3",
    "VDN-minimax-h3",
    "vdn-minimax-h3/",
    "vdn-minimax-h3/h3-base",
    "models--OpenVDN--vdn-minimax-h3/snapshots/abc",
    "models--openvdn--VDN-minimax-h3",
    "models--OpenVDN--vdn-minimax-h3-distilled/snapshots/abc",
    "models--Lightricks--LTX-2.3/x",
    "old-models--Lightricks--LTX-2.3-new/x",
    "models--openvdn--vdn-minimax-h3/cache/.overlay/trees/OpenVDN__vdn-minimax-h3-0123456789abcdef",
    "cache/.overlay/trees/OpenVDN__vdn-minimax-h3-0123456789abcdef",
    "cache/materialized_models/OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c",
    "LTX-2.3",
    "./other/../LTX-2.3",
)


@pytest.mark.parametrize("version", SGLANG_RELEASES)
def test_a_path_is_a_source_exactly_where_the_server_says_so(version: str, tmp_path: Path) -> None:
    """By the last part, by a substring, by a whole part, as the release has it."""
    for path in PATHS:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    (tmp_path / "other").mkdir(exist_ok=True)
    release = sglang.release_of(parse_server(f"sglang=={version}").version)
    told = {"OpenVDN/vdn-minimax-h3": {"overlay_repo_id": "org/overlay"}}
    paths = [f"{tmp_path}/{path}" for path in PATHS]
    job: list[list[Any]] = [["table"], *(["source_at", path] for path in paths)]
    table, *answers = ask(unpacked("sglang", version), job, SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY=json.dumps(told))
    models = list(table["is"] | told)
    assert [sglang.source_at(path, models, release) for path in paths] == [answer["is"] for answer in answers]
    assert any(answer["is"] for answer in answers)


@pytest.mark.parametrize("version", SGLANG_RELEASES)
def test_tables_roots_locks_and_fingerprints_are_the_releases_own(version: str, tmp_path: Path) -> None:
    """The built-in table row for row, the cache root with and without XDG, lock names short and long."""
    number = parse_server(f"sglang=={version}").version
    assert number
    release = sglang.release_of(number)
    identity = sglang.Identity("org/src", "org/ov", "a" * 40, "v1", "f" * 64, release=release)
    long = sglang.Identity("org/src", f"/data/{'o' * 150}", "local", "v1", "f" * 64, release=release)
    names = [
        f"overlay-materialize::{i.source_model_id}::{i.overlay_repo_id}::{i.overlay_revision}" for i in (identity, long)
    ]
    overlay = write_tree(tmp_path / "overlay", {}, ("a/y.json", "a.json", "a/w.bin", "__pycache__/x", "z.egg-info/x"))
    job = [["table"], ["cache_root"], *(["lock", name] for name in names), ["fingerprint", str(overlay)]]
    folder = unpacked("sglang", version)
    variables = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    table, root, lock, long_lock, fingerprint = (answer.get("is") for answer in ask(folder, job, **variables))
    assert {
        model: {k: v for k, v in asdict(row).items() if v} for model, row in sglang.built_in(number).items()
    } == table
    assert str(choose_root(None, variables, honours_xdg=release.honours_xdg).path) == root
    assert [identity.lock_name, long.lock_name] == [lock, long_lock]
    assert fingerprint == (sglang.overlay_fingerprint(overlay) if release.hashes_fingerprint else None)
