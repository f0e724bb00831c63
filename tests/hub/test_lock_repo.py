"""Repos out of a lock: equal to the repos that were locked, as far as the store goes, and honest beyond it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.contracts import make_hub, subject_of

from overlay.contract.facts import lock_model
from overlay.demo.checkpoint import LORA_REPO, LORA_REVISION, SOURCE_REPO
from overlay.errors import BrokenInput, NotHere
from overlay.hub.contents import Contents
from overlay.hub.lock_repo import LockRepo, locked_inventory
from overlay.planning.recipes import files_to_digest, make_plan
from overlay.registry import Pin

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.contract.subject import Subject
    from overlay.registry.lock import LockedModel

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
WEIGHTS = f"{STAGE}/adapters/turbo/adapter_model.safetensors"
SPEC = f"{STAGE}/adapters/turbo/adapter_spec.json"


class Made:
    """A hub that was locked."""

    def __init__(self, root: Path) -> None:
        self.hub = make_hub(root)
        self.folder = root / "contents"
        self.contents = Contents(self.folder)
        self.subject: Subject = subject_of(self.hub, root)
        self.plan = make_plan(self.subject.inventory)
        self.locked: LockedModel = lock_model(self.subject, self.plan, self.contents)
        shutil.rmtree(root / "hub")

    @property
    def source(self) -> LockRepo:
        return LockRepo(SOURCE_REPO, self.locked.repos[SOURCE_REPO], self.contents)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("locked"))


def test_the_same_plan_without_the_repos(made: Made) -> None:
    """Out of the lock and its store comes the very plan, though no repo is there; locking that gives the same lock."""
    inventory = locked_inventory(made.subject.inventory.resolution, made.locked, made.contents)
    plan = make_plan(inventory)

    assert (plan.outputs, plan.adapters, plan.location) == (made.plan.outputs, made.plan.adapters, made.plan.location)
    assert lock_model(replace(made.subject, inventory=inventory), plan) == made.locked
    assert files_to_digest(inventory, plan.rule) == ()


def test_knows_locked_files_and_no_other(made: Made) -> None:
    """Paths, sizes and digests are the lock's; a name that is near is suggested."""
    repo = made.source

    assert repo.paths() == sorted(made.locked.repos[SOURCE_REPO].files)
    assert repo.size(SPEC) == made.locked.repos[SOURCE_REPO].files[SPEC].size
    assert repo.digest(SPEC) == f"sha256:{made.locked.repos[SOURCE_REPO].files[SPEC].sha256}"
    assert repo.where(SPEC) == f"{SOURCE_REPO}@{repo.revision[:12]}/{SPEC}"
    for ask in (repo.size, repo.digest, repo.read_bytes, repo.header, repo.local):
        with pytest.raises(NotHere) as caught:
            ask(SPEC.replace("_spec", "_config"))
        assert caught.value.code == "no-such-file"
        assert SPEC in caught.value.data["similar"]


def test_weights_are_never_at_hand(made: Made) -> None:
    """A lock holds no weight: nothing is local, nothing can be fetched or read by range."""
    repo = made.source

    assert repo.local(WEIGHTS) is None
    assert repo.fetch([]) == {}
    for ask in (
        lambda: repo.fetch([WEIGHTS]),
        lambda: repo.read_range(WEIGHTS, 0, 4),
        lambda: repo.read_bytes(WEIGHTS),
    ):
        with pytest.raises(NotHere, match="adapter_model") as caught:
            ask()
        assert caught.value.code == "not-cached"


def test_small_files_can_be_read_in_part(made: Made) -> None:
    """A range of a small file is cut out of it; one too large to be small is refused, as by any repo."""
    repo = made.source

    assert repo.read_range(SPEC, 2, 8) == repo.read_bytes(SPEC)[2:10]
    with pytest.raises(BrokenInput) as caught:
        repo.read_bytes(SPEC, most=3)
    assert caught.value.code == "too-large"


@pytest.mark.parametrize("path", [SPEC, WEIGHTS])
def test_what_was_damaged_is_not_at_hand(path: str, tmp_path: Path) -> None:
    """An edited entry of the store is never read: the file counts as not cached."""
    made = Made(tmp_path)
    sha256 = made.locked.repos[SOURCE_REPO].files[path].sha256
    for entry in made.folder.rglob(f"{sha256}*"):
        entry.write_bytes(entry.read_bytes().replace(b"8", b"9"))
    repo = made.source

    with pytest.raises(NotHere) as caught:
        repo.read_bytes(path) if path == SPEC else repo.header(path)

    assert caught.value.code == "not-cached"


def test_an_incomplete_lock_opens_nothing(made: Made) -> None:
    """Where the lock has only some files of a repo, a missing one would mean nothing: so it is not opened."""
    repos = dict(made.locked.repos)
    repos[SOURCE_REPO] = repos[SOURCE_REPO].model_copy(update={"complete": False})

    with pytest.raises(NotHere, match=SOURCE_REPO) as caught:
        locked_inventory(
            made.subject.inventory.resolution, made.locked.model_copy(update={"repos": repos}), made.contents
        )

    assert caught.value.code == "not-cached"
    assert caught.value.hint == f"overlay lock {SOURCE_REPO}"


def test_a_lock_of_other_pins_opens_nothing(made: Made) -> None:
    """A pin that moved since is not looked up under its old commit."""
    resolution = made.subject.inventory.resolution
    entry = replace(resolution.entry, source=Pin(SOURCE_REPO, "c" * 40))

    with pytest.raises(NotHere, match="cccccccccccc"):
        locked_inventory(replace(resolution, entry=entry), made.locked, made.contents)


def test_an_adapter_with_its_alphas_in_the_weights(tmp_path: Path) -> None:
    """A community file that has a scalar alpha for each module is planned out of the lock, to the last scale."""
    hub = make_hub(tmp_path)
    lora = f"repo: {LORA_REPO}, revision: {LORA_REVISION}"
    text = (
        f"schema_version: 1\nmodels:\n  acme/lora:\n    source: {{repo: {SOURCE_REPO}, revision: {hub.source}}}\n"
        f"    needs: [{{{lora}}}]\n    recipe:\n      name: lora\n      base: {{path: h3-base/transformer}}\n"
        f"      adapters: [{{repo: {LORA_REPO}, path: {hub.lora_file.name}}}]\n"
    )
    subject = subject_of(hub, tmp_path, registry=text, model="acme/lora")
    plan, contents = make_plan(subject.inventory), Contents(tmp_path / "contents")
    locked = lock_model(subject, plan, contents)
    shutil.rmtree(hub.root)
    again = make_plan(locked_inventory(subject.inventory.resolution, locked, contents))

    assert locked.adapters[0].scales == (0.125,)
    assert (again.outputs, again.adapters) == (plan.outputs, plan.adapters)
    weights = locked.repos[LORA_REPO].files[hub.lora_file.name]
    for entry in (tmp_path / "contents").rglob(f"{weights.sha256}.scalars"):
        entry.write_bytes(entry.read_bytes().replace(b"0", b"1"))
    with pytest.raises(NotHere) as caught:
        make_plan(locked_inventory(subject.inventory.resolution, locked, contents))
    assert caught.value.code == "not-cached"
