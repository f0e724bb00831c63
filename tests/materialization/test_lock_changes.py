"""What is said of a change of the lock: each thing once, in words, and nothing where nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.materialization.locking.changes import changes
from overlay.registry.lock import (
    Expected,
    ExpectedFile,
    LockedAdapter,
    LockedFile,
    LockedModel,
    LockedRepo,
    LockedScript,
)

pytestmark = pytest.mark.no_torch

SHA, OTHER = "0" * 64, "1" * 64
FILE, CHANGED = LockedFile(size=1, sha256=SHA), LockedFile(size=1, sha256=OTHER)
REPO = LockedRepo(revision="a" * 40, files={"a.json": FILE, "b.json": FILE})


def adapter(name: str, meaning: str = SHA, **more: Any) -> LockedAdapter:
    values: dict[str, Any] = {"kind": "openvdn", "weights": f"x/y/{name}", "pairs": 3, "ranks": (8,), "scales": (1.0,)}
    return LockedAdapter(name=name, meaning=f"sha256:{meaning}", **(values | more))


def expected(**files: str) -> Expected:
    made = {
        path.replace("_", "."): ExpectedFile(size=1, digest=f"sha256:{sha}", sha256=sha) for path, sha in files.items()
    }
    return Expected(rule="fp32-once", writer_version=1, files=made)


BEFORE = LockedModel(
    recipe={"name": "vdn-h3", "stage": "one"},
    location="here",
    repos={"acme/model": REPO},
    adapters=(adapter("default"), adapter("turbo", OTHER)),
    script=LockedScript(path="m.py", sha256=SHA),
    expected=expected(x_json=SHA, y_json=SHA),
)


def repo(**more: Any) -> dict[str, Any]:
    return {"repos": {"acme/model": REPO.model_copy(update=more)}}


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({}, []),
        (repo(revision="b" * 40), ["acme/model: aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (repo(files={"a.json": CHANGED, "b.json": FILE}), ["acme/model: changed a.json"]),
        (repo(files={"a.json": FILE, "c.json": FILE}), ["acme/model: added c.json", "acme/model: removed b.json"]),
        (
            repo(files={**REPO.files, **{f"{n:02}.json": FILE for n in range(13)}}),
            [*(f"acme/model: added {n:02}.json" for n in range(10)), "acme/model: added 3 more"],
        ),
        (repo(components=("vae",)), ["acme/model: components vae"]),
        (repo(complete=False), ["acme/model: not all files are known now"]),
        (repo(source="a page"), ["the same facts, noted otherwise"]),
        ({"repos": {"acme/model": REPO, "acme/need": REPO}}, ["acme/need@aaaaaaaaaaaa: 2 files"]),
        ({"repos": {}}, ["acme/model: no part of the model any more"]),
        ({"recipe": {"name": "vdn-h3", "stage": "two"}}, ["recipe: vdn-h3 one -> vdn-h3 two"]),
        ({"location": "there"}, ["location: here -> there"]),
        ({"script": None}, ["the overlay's script changed"]),
        (
            {"adapters": (adapter("default", "2" * 64, pairs=4), adapter("turbo", OTHER))},
            ["adapter default means something else: 4 pairs, 3 before"],
        ),
        (
            {"adapters": (adapter("default", spec="x/y/spec.json"), adapter("turbo", OTHER))},
            ["adapter default lies elsewhere or is described otherwise; it means the same"],
        ),
        ({"adapters": (adapter("default"),)}, ["adapter turbo is gone"]),
        (
            {"adapters": (*BEFORE.adapters, adapter("third"))},
            ["adapter third is new"],
        ),
        (
            {"adapters": BEFORE.adapters[::-1]},
            ["adapters are folded in another order: turbo, default"],
        ),
        ({"expected": None}, ["expected output dropped: it was of other pins or another recipe"]),
        ({"expected": expected(x_json=SHA, y_json=OTHER)}, ["expected output: 1 file new or changed"]),
        ({"expected": expected(x_json=OTHER)}, ["expected output: 1 file new or changed, 1 gone"]),
    ],
)
def test_each_change_is_one_line(update: dict[str, Any], said: list[str]) -> None:
    """Every kind of change has its words, and a change of one thing says nothing of another."""
    assert list(changes(BEFORE, BEFORE.model_copy(update=update))) == said


def test_a_new_model_is_summed_up() -> None:
    """Of a model that was not locked: repos with their commits, the location, adapters, what is expected."""
    assert list(changes(None, BEFORE)) == [
        "acme/model@aaaaaaaaaaaa: 2 files",
        "location here",
        "adapter default: 3 pairs",
        "adapter turbo: 3 pairs",
        "expected output: 2 files new or changed",
    ]
