"""Fetch the released servers that tests hold this program against: the few modules of each wheel that matter.

    python tools/fetch_servers.py [DIR]          default: .servers

Each wheel is downloaded with pip from the index that pip is set up for, checked against the digest below, unpacked to
``DIR/<name>-<version>`` and removed. What is there already is not fetched again. Nothing of it is installed, and no
dependency is fetched: ``server_child.py`` says what stands in for those.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FOLDER = Path(".servers")
STAMP = ".fetched"

# Without the packages' __init__.py, which import the whole server.
SGLANG = (
    "sglang/utils.py",
    "sglang/srt/environ.py",
    "sglang/multimodal_gen/envs.py",
    "sglang/multimodal_gen/runtime/loader/weight_utils.py",
    "sglang/multimodal_gen/runtime/utils/common.py",
    "sglang/multimodal_gen/runtime/utils/hf_diffusers_utils.py",
    "sglang/multimodal_gen/runtime/utils/logging_utils.py",
    "sglang/multimodal_gen/runtime/utils/model_overlay.py",
)
VLLM_OMNI = ("vllm_omni/*.py",)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A released wheel.

    Attributes:
        sha256: Of the file that the index has for CPython 3.11 on x86-64 Linux; the modules are the same in all.
        members: Globs of what is unpacked.
    """

    name: str
    version: str
    sha256: str
    members: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Where it is unpacked to."""
        return f"{self.name}-{self.version}"

    @property
    def stamp(self) -> str:
        """What says that this very wheel was unpacked, and which members of it."""
        return "\n".join((self.sha256, *self.members))


# One release of sglang for each of the ways in which they differ.
WHEELS = (
    Wheel("sglang", "0.5.10", "ac8855a5d57dac8831fee526bca5212f1ae451f378e2ab08b3baecbc4deb4076", SGLANG),
    Wheel("sglang", "0.5.12", "4ed786a38655851fd055ef57380c34d29b87753b53f63457309f51e5bf48c2e6", SGLANG),
    Wheel("sglang", "0.5.14", "4fe16056b45c8aca00f5f90ceb174dc3a62a3f5dccf159c791370795cd00fc99", SGLANG),
    Wheel("sglang", "0.5.16", "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713", SGLANG),
    Wheel("sglang", "0.5.19", "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b", SGLANG),
    Wheel("sglang", "0.5.21", "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20", SGLANG),
    Wheel("sglang", "0.5.22", "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b", SGLANG),
    Wheel("sglang", "0.5.23", "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937", SGLANG),
    Wheel("vllm-omni", "0.30.0", "141cb0c7b9c07970e5c92a99aab9696e81682dbfa3d2bfcde359c3c1533385f4", VLLM_OMNI),
)


def is_there(wheel: Wheel, folder: Path) -> bool:
    """Whether this wheel was unpacked in the folder, as it is named here."""
    stamp = folder / wheel.folder / STAMP
    return stamp.is_file() and stamp.read_text() == wheel.stamp


def fetch(wheel: Wheel, folder: Path) -> None:
    """Download, check and unpack one wheel.

    Raises:
        SystemExit: pip could not get it, or it is another file than the one named here.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as work:
        file = _download(wheel, Path(work))
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != wheel.sha256:
            sys.exit(f"{file.name}: sha256 {found}, expected {wheel.sha256}")
        unpacked = Path(work, wheel.folder)
        with zipfile.ZipFile(file) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if _is_wanted(name, wheel)])
        (unpacked / STAMP).write_text(wheel.stamp)
        shutil.rmtree(folder / wheel.folder, ignore_errors=True)
        unpacked.rename(folder / wheel.folder)


def _download(wheel: Wheel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11"]
    command += ["--platform", "manylinux_2_34_x86_64", "--dest", str(work), f"{wheel.name}=={wheel.version}"]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - our own list
        sys.exit(f"pip could not download {wheel.name} {wheel.version}; is the package index reachable?")
    return next(work.glob("*.whl"))


def _is_wanted(name: str, wheel: Wheel) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in wheel.members)


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description="Fetch the released servers that tests need.")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", default=DEFAULT_FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in WHEELS:
        if not is_there(wheel, folder):
            print(f"fetching {wheel.name} {wheel.version}", flush=True)
            fetch(wheel, folder)


if __name__ == "__main__":
    main()
