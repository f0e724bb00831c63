"""Inputs that cannot be read, or that change while a run reads them: an error that names them, never a wrong tree."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import copy_hub
from support.children import in_child
from support.faults import at_first_write, check_sound, fail_reads
from support.hubs import client_of
from support.models import VDN, options, vdn_registry

from overlay.errors import OverlayError
from overlay.fingerprint import file_digest
from overlay.materialization.materialize import materialize
from overlay.materialization.request import Options
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder

FILES = {
    "base": "h3-base/transformer/diffusion_pytorch_model-00003-of-00003.safetensors",
    "adapter": "stage-dmd-step-250/adapters/turbo/adapter_model.safetensors",
    "carried": "stage-dmd-step-250/linear_branch/model.safetensors",
}


def attempt(chosen: Options, prepare: Callable[[], Any]) -> tuple[Any, Any]:
    """What ``prepare`` gave, and the published tree's name or the error, of a run in a child of its own."""

    def work() -> tuple[Any, Any]:
        prepared = prepare()
        try:
            done = materialize(VDN, chosen)
        except OverlayError as error:
            return prepared, error
        assert done.path is not None
        return prepared, done.path.name

    return in_child(work)


def check_objects(root: Path) -> None:
    """Every object is what its name says, published or not."""
    for path in (root / ".overlay/objects").glob("*/*/*"):
        algorithm = path.parent.parent.name
        assert file_digest(path, algorithm) == f"{algorithm}:{path.name}"


def staged(root: Path) -> bool:
    """Whether a run has begun to write."""
    return any(path.suffix == ".safetensors" for path in (root / ".overlay/staging").glob("*/*"))


@pytest.mark.parametrize("moment", ["at once", "while building"])
@pytest.mark.parametrize("name", FILES)
def test_h22_a_disk_that_cannot_read_an_input(shared_build: Built, tmp_path: Path, name: str, moment: str) -> None:
    """EIO in the second half of a file: the file is named, nothing is published, the next run does it."""
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    path = shared_build.hub.source_folder / FILES[name]
    if moment == "while building":  # the digests are known then, and the file is read to build from it
        materialize(VDN, options(shared_build.hub, root, only=("processor",)))
        for kept in (root / ".overlay/objects").glob("*/*/*"):
            kept.unlink()

    failing, outcome = attempt(
        chosen, lambda: fail_reads(path, errno.EIO, when=lambda: moment == "at once" or staged(root))
    )

    if failing.hits == 0:
        # Read before anything was staged; then a run that got this far never read it again.
        assert moment == "while building"
        assert outcome == shared_build.tree.name
    else:
        assert (outcome.exit_status, outcome.code) == (1, "unreadable")
        assert path.name in outcome.message
        assert os.strerror(errno.EIO) in outcome.message
        assert "dmesg" in outcome.hint
        assert not list(root.glob("materialized_models/*"))
    assert not list(root.glob(".overlay/staging/*"))
    check_objects(root)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    check_sound(root)


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def edit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(os.urandom(64))


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes()[:-64] + os.urandom(64))
    new.replace(path)


def delete(path: Path) -> None:
    path.unlink()


CHANGES = (shrink, grow, edit, replace, delete)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", FILES)
def test_h22_a_file_of_a_folder_that_changes_while_it_is_read(
    shared_build: Built, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, change: Any
) -> None:
    """After the first staged byte: an error that names it, or the tree of what was read before; never a mixture."""
    hub = copy_hub(tmp_path_factory)
    path = hub.source_folder / FILES[name]
    content = path.read_bytes()
    root = tmp_path / "root"
    chosen = options(hub, root)

    happened, outcome = attempt(chosen, lambda: at_first_write(lambda: change(path)))

    assert happened
    if outcome != shared_build.tree.name:
        assert outcome.exit_status in (1, 3)
        assert path.name in outcome.message
        assert outcome.hint
        assert not list(root.glob("materialized_models/*"))
    else:
        assert change is delete  # of a file that was open already
    assert not list(root.glob(".overlay/staging/*"))
    check_objects(root)
    check_sound(root)

    path.unlink(missing_ok=True)
    path.write_bytes(content)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert verify(done.path, "full").ok


def blobs(folder: Path, size: int) -> list[Path]:
    """Files of a Hub cache with this size."""
    return [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size == size
    ]


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[HubFolder, Path]:
    """The tiny checkpoint, and a Hub cache that holds it."""
    hub = copy_hub(tmp_path_factory)
    folder = tmp_path_factory.mktemp("hf")
    with pytest.MonkeyPatch.context() as patch, HubServer(hub.root) as server, client_of(server, patch, folder / "hub"):
        registry = vdn_registry(folder, hub)
        materialize(VDN, Options(registry=registry, cache_root=folder / "root"))
    return hub, folder


@pytest.mark.parametrize("fault", ["EIO", *(change.__name__ for change in CHANGES)])
@pytest.mark.parametrize(
    "name", ["base", *(pytest.param(name, marks=pytest.mark.slow) for name in FILES if name != "base")]
)
def test_h22_a_blob_of_the_hub_that_fails_or_changes(
    downloaded: tuple[HubFolder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    """EIO in a blob, or one that another user of the Hub's cache damages or removes in the middle of a run."""
    hub, before = downloaded
    folder = tmp_path / "hf"
    shutil.copytree(before / "hub", folder / "hub", symlinks=True)
    source = hub.source_folder / FILES[name]
    expected = next((before / "root/.overlay/trees").iterdir()).name
    root = tmp_path / "root"
    chosen = Options(registry=vdn_registry(tmp_path, hub), cache_root=root, link="copy")
    with HubServer(hub.root) as server, client_of(server, monkeypatch, folder / "hub"):
        [blob] = blobs(folder / "hub", source.stat().st_size)
        if fault == "EIO":
            prepare: Any = lambda: fail_reads(blob, errno.EIO)  # noqa: E731 - one of two
        else:
            change = next(change for change in CHANGES if change.__name__ == fault)
            prepare = lambda: at_first_write(lambda: change(blob))  # noqa: E731 - one of two
        _, outcome = attempt(chosen, prepare)

        if outcome == expected:  # of what was read before
            assert fault != "EIO"
        else:
            assert outcome.exit_status in (1, 3, 5)
            assert outcome.hint
            assert not list(root.glob("materialized_models/*"))
        check_objects(root)
        check_sound(root)
        with suppress(FileNotFoundError):
            blob.unlink()
        done = materialize(VDN, chosen)
        assert done.path is not None
        assert done.path.name == expected
        check_sound(root)
