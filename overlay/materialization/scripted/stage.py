"""What a script finds: folders of links to its inputs, its output folder half filled, and a Hub cache without a Hub.

Inputs are linked by symbolic links to where they really lie: read-only in the sandbox, and no byte of them is written.
Hidden files of repos (``.gitattributes``) are left out: a script that copies a whole folder would leave them, and no
tree may have them.
"""

from __future__ import annotations

import shutil
import site
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.cache import SMALL_FILE, writing
from overlay.fingerprint import file_digest
from overlay.formats.tree_files import is_hidden
from overlay.hub.trees import TreeFile, write_tree
from overlay.hub.wheels import read_wheel
from overlay.planning.outputs import CarriedFile, GeneratedFile
from overlay.registry import COMMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.cache import Cache
    from overlay.materialization.inputs import Inputs
    from overlay.materialization.request import Options
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.scripted import GivenRepo, Script

__all__ = ["Stage", "bring_wheels", "stage"]

_NO_COMMIT = "0" * 40
"""What a folder is called in the Hub's cache, which knows commits only."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders of one run.

    Attributes:
        root: What they lie in.
        wheels: Importable files.
        real: Where each input really lies.
    """

    root: Path
    wheels: tuple[Path, ...]
    real: dict[Path, Input]

    @property
    def overlay(self) -> Path:
        """The overlay's files."""
        return self.root / "overlay"

    @property
    def source(self) -> Path:
        """The source's files."""
        return self.root / "source"

    @property
    def output(self) -> Path:
        """What the tree is made of."""
        return self.root / "output"

    @property
    def hub(self) -> Path:
        """A home of the Hub's client; its cache holds the needs."""
        return self.root / "hub"

    @property
    def readable(self) -> tuple[Path, ...]:
        """All that the script may read of this host's files, beside what it may import."""
        return (self.hub, *self.wheels, *self.real)

    @property
    def python_path(self) -> tuple[Path, ...]:
        """The wheels, then what is installed for this interpreter: torch comes from there."""
        installed = [*site.getsitepackages(), *(path for path in sys.path if path.endswith("-packages"))]
        return (*self.wheels, *(path for path in map(Path, dict.fromkeys(installed)) if path.is_dir()))

    @property
    def environ(self) -> dict[str, str]:
        """Variables of the script: a Hub client that asks nobody."""
        return {
            "HF_HOME": str(self.hub),
            "HF_HUB_CACHE": str(self.hub / "hub"),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }


def bring_wheels(script: Script, cache: Cache, options: Options) -> dict[str, Path]:
    """Each wheel as an object of the cache, by name; one that is there, and is still itself, is not asked for again.

    Raises:
        OverlayError: As ``read_wheel``.
        CannotWrite: The filesystem refused.
    """
    found = {}
    for wheel in script.wheels:
        digest = f"sha256:{wheel.sha256}"
        place = cache.object_path(digest)
        if place.is_file() and file_digest(place, "sha256") != digest:
            cache.drop_object(digest)
        if not place.is_file():
            data = read_wheel(wheel, hub=options.hub, offline=options.offline)
            with cache.staging() as folder:
                with writing(cache.root, f"write {wheel.name}"):
                    (folder / wheel.name).write_bytes(data)
                place = cache.adopt_file(folder / wheel.name, digest)
        found[wheel.name] = place
    return found


def stage(root: Path, script: Script, inputs: Inputs, wheels: dict[str, Path], cache: Cache) -> Stage:
    """Lay everything out in a folder of our own.

    Raises:
        CannotWrite: The filesystem refused.
    """
    with writing(cache.root, "write the inputs of a script"):
        made = Stage(
            root=root,
            wheels=tuple(_copied(place, root / "wheels" / name) for name, place in wheels.items()),
            real={inputs.path(item).resolve(): item for item in script.given},
        )
        for path, data in script.overlay.items():
            if not is_hidden(path):
                _written(made.overlay / path, data)
        for folder in (made.overlay, made.source, made.output, made.hub):
            folder.mkdir(exist_ok=True)
        for item in _seen(script.source):
            _linked(made.source / item.path, inputs.path(item).resolve())
        for need in script.needs:
            _hub_repo(made.hub / "hub", need, inputs)
        _fill(made.output, script.finds, inputs)
    return made


def _hub_repo(cache: Path, need: GivenRepo, inputs: Inputs) -> None:
    """A repo as the client finds it without a connection: also where nobody names a revision."""
    storage = cache / f"models--{need.repo.replace('/', '--')}"
    commit = need.revision if COMMIT.fullmatch(need.revision) else _NO_COMMIT
    files = _seen(need.files)
    for item in files:
        _linked(storage / "snapshots" / commit / item.path, inputs.path(item).resolve())
    _written(storage / "refs" / "main", commit.encode())
    # The whole of it, as far as the client is told: else it calls the snapshot incomplete.
    write_tree(storage, commit, {item.path: TreeFile(item.size, _NO_COMMIT) for item in files})


def _seen(files: Iterable[Input]) -> list[Input]:
    return [item for item in files if not is_hidden(item.path)]


def _fill(output: Path, finds: Iterable[OutputFile], inputs: Inputs) -> None:
    """As a server does it: small files are copied, for they may be rewritten; large ones are linked."""
    for found in finds:
        if isinstance(found, GeneratedFile):
            _written(output / found.path, found.data)
        elif isinstance(found, CarriedFile) and found.input.size < SMALL_FILE:
            _copied(inputs.path(found.input), output / found.path)
        elif isinstance(found, CarriedFile):
            _linked(output / found.path, inputs.path(found.input).resolve())


def _written(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _linked(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _copied(source: Path, dest: Path) -> Path:
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, dest)
    return dest
