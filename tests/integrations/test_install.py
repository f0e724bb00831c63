"""The install of the action: everything but torch, from wheels that lie on this machine."""

from __future__ import annotations

import json
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest
from support.actions import make_checkout, run_step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def write_wheel(folder: Path, name: str, version: str, *requires: str, script: str | None = None) -> None:
    """A wheel with nothing but its metadata, and a program."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
    files = {
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    if script:
        files[f"{name}-{version}.data/scripts/{script}"] = "#!python\nprint('here')\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            wheel.writestr(entry, text)


@pytest.mark.slow
def test_installs_without_torch(tmp_path: Path) -> None:
    """The program and what it needs are installed apart from the job's Python; torch and extras are not."""
    checkout = make_checkout(tmp_path / "job")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    requires = ["click>=8", "ruamel.yaml>=0.18", "torch>=2", 'pytest>=9; extra == "dev"', 'old; python_version < "3"']
    write_wheel(wheels, "model_overlay", "3.2.1", *requires, script="overlay")
    write_wheel(wheels, "click", "8.9")
    write_wheel(wheels, "ruamel.yaml", "0.19")
    write_wheel(wheels, "torch", "2.13")

    ran = run_step(
        checkout,
        "install.sh",
        inputs={"version": "model-overlay==3.2.1"},
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(wheels),
        PIP_DISABLE_PIP_VERSION_CHECK="1",
    )

    assert ran.status == 0, ran.log
    folder = ran.files["GITHUB_PATH"].strip()
    listed = subprocess.run([f"{folder}/python", "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    names = {package["name"] for package in json.loads(listed.stdout)} - {"pip", "setuptools"}
    assert names == {"model_overlay", "click", "ruamel.yaml"}
    assert subprocess.run([f"{folder}/overlay"], capture_output=True, check=True).stdout == b"here\n"
    assert checkout.git("status", "--porcelain") == ""


def test_cache_key(tmp_path: Path) -> None:
    """The cache of pip is another for another version, and the same for the same."""
    checkout = make_checkout(tmp_path)

    def key(version: str) -> str:
        return run_step(checkout, "cache-key.sh", inputs={"version": version}).files["GITHUB_OUTPUT"]

    assert key("") == key("")
    assert len({key(""), key("model-overlay==1"), key("model-overlay==2")}) == 3
    assert key("").startswith("digest=")
