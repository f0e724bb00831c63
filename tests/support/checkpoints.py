"""Checkpoints for tests: a tiny one, made once a run and copied where a test wants to change it, and a wide one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import overlay.demo.checkpoint
from overlay.demo.checkpoint import SPEC_NAME, HubFolder, write_hub
from overlay.demo.presets import Preset, make_preset

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["copy_hub", "tiny_hub", "wide_hub"]

_WIDTHS = (
    *("hidden_size", "num_attention_heads", "ffn_dim", "text_dim", "freq_dim"),
    *("time_embed_hidden_dim", "time_embed_dim"),
)


_made: dict[tuple[Path, str], HubFolder] = {}


def tiny_hub(factory: pytest.TempPathFactory, spec_name: str = SPEC_NAME) -> HubFolder:
    """The tiny hub folder, shared by all tests of the run: read it, never write into it."""
    key = factory.getbasetemp(), spec_name
    if key not in _made:
        _made[key] = write_hub(factory.mktemp("tiny-hub"), spec_name=spec_name)
    return _made[key]


def copy_hub(factory: pytest.TempPathFactory, spec_name: str = SPEC_NAME) -> HubFolder:
    """A copy of the tiny hub folder that the caller may change."""
    folder = factory.mktemp("hub")
    shutil.copytree(tiny_hub(factory, spec_name).root, folder, dirs_exist_ok=True)
    return replace(tiny_hub(factory, spec_name), root=folder)


def wide_hub(folder: Path, *, blocks: int, spec_name: str = SPEC_NAME) -> HubFolder:
    """A hub folder of some 250 MB: every weight is many chunks and blocks, as in a release, of which there are 3 GB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay.demo.checkpoint, "make_preset", lambda _name, blocks: _wide(blocks))
        return write_hub(folder, preset="wide", blocks=blocks, spec_name=spec_name)


def _wide(blocks: int) -> Preset:
    """A quarter of the released widths."""
    released, tiny = make_preset("release-dims", blocks), make_preset("tiny", blocks)
    return replace(
        released,
        name="wide",
        transformer={**released.transformer, **{name: released.transformer[name] // 4 for name in _WIDTHS}},
        video_vae=tiny.video_vae,
        audio_vae=tiny.audio_vae,
        text_encoder={name: size // 4 for name, size in released.text_encoder.items()},
        rank=released.rank // 4,
        narrow_rank=released.narrow_rank // 4,
    )
