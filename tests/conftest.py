"""Every test runs in its own empty world: home, caches, temporary folder, working directory, and no network."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import overlay

if TYPE_CHECKING:
    from collections.abc import Iterator

_HIDDEN = (
    "HF_",
    "HUGGINGFACE_",
    "OVERLAY_",
    "SGLANG_",
    "AWS_",
    "TRANSFORMERS_",
    "XDG_",
    "MKL_",
    "FORCE_COLOR",
    "CI",
    "GITHUB_",
)
_WITHOUT_TORCH = importlib.util.find_spec("torch") is None

# A deadline a test of its own: on a loaded machine the slowest example of hundreds says nothing.
hypothesis.settings.register_profile("overlay", deadline=None)
hypothesis.settings.load_profile("overlay")

# A shell, and nohup, start what goes into the background with these ignored, and so would all that tests start.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

if os.environ.get("OVERLAY_TEST_INSTALLED"):
    # `make test` tests the wheel; the checkout must not stand in for a file that the wheel lacks.
    assert "site-packages" in Path(overlay.__file__).parts, f"tests import {overlay.__file__}, not the installed wheel"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the lane that is run.

    Where torch is not installed, files without a no_torch test may import it at their top. Files without a slow test
    only take time: most of them are.
    """
    chosen = config.option.markexpr
    only_slow = (chosen == "slow" or chosen.startswith("slow and ")) and " or " not in chosen
    wanted = "no_torch" if _WITHOUT_TORCH else "slow" if only_slow else ""
    if wanted and collection_path.name.startswith("test_"):
        return wanted not in collection_path.read_text() or None
    return None


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    world = tmp_path_factory.mktemp("world")
    for name in list(os.environ):
        if name.startswith(_HIDDEN):
            monkeypatch.delenv(name)
    for name, folder in {
        "HOME": "home",
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "home/.cache",
        "XDG_CONFIG_HOME": "home/.config",
        "XDG_STATE_HOME": "home/.local/state",
        "HF_HOME": "home/.cache/huggingface",
    }.items():
        (world / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(name, str(world / folder))
    monkeypatch.setattr(tempfile, "tempdir", str(world / "tmp"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    (world / "work").mkdir()
    monkeypatch.chdir(world / "work")
    _move_hub_constants(monkeypatch, world / "home/.cache/huggingface")
    yield
    # Thousands of them would make every later mktemp slow, and some hold what a demo built.
    shutil.rmtree(world, ignore_errors=True)


def _move_hub_constants(monkeypatch: pytest.MonkeyPatch, hf_home: Path) -> None:
    """huggingface_hub reads its variables once, when it is imported; later tests must not see the first one's paths."""
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None:
        return
    for name, path in {
        "HF_HOME": hf_home,
        "HF_HUB_CACHE": hf_home / "hub",
        "HF_XET_CACHE": hf_home / "xet",
        "HF_ASSETS_CACHE": hf_home / "assets",
        "HF_TOKEN_PATH": hf_home / "token",
    }.items():
        monkeypatch.setattr(constants, name, str(path))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _loopback_only(getattr(socket.socket, name)))


def _loopback_only(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            self.close()
            # Not an OSError: code under test may take that for a network that is down and go on.
            raise RuntimeError(f"tests connect to this machine only, not to {address}")
        return connect(self, address)

    return guarded


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
