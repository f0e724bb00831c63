"""What was in force before: out of git as it stored it, or out of another file."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from overlay.contract.before import before_at, before_in, changed_models, fallen_back
from overlay.contract.git import commit_of, file_at
from overlay.errors import InvalidRegistry, InvalidUsage, NotHere, TryAgain
from overlay.registry import Registry, load_registry
from overlay.registry.load import packaged_registry
from overlay.registry.lock import lock_path, read_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

REGISTRY = """\
schema_version: 1
models:
  org/model:
    source: {{revision: {}}}
    overlay: {{repo: org/overlay, revision: {}}}
    needs: []
    recipe: {{name: mappings}}
"""
A, B, C = "a" * 40, "b" * 40, "c" * 40


def git(folder: Path, *args: str) -> str:
    """Run git in a folder as a user who has no settings."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", folder, *who, *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a registry in a folder of it, committed once."""
    folder = tmp_path / "deploy"
    folder.mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    (folder / "registry.yaml").write_text(REGISTRY.format(A, B))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return folder


def registry(folder: Path) -> Registry:
    return load_registry(folder / "registry.yaml", environ={})


def changed(folder: Path, revision: str = "HEAD") -> tuple[str, ...]:
    """Models that are not what they were at a revision."""
    now = registry(folder)
    return changed_models(before_at(now, revision), now.entries, {})


def test_nothing_changed(project: Path) -> None:
    """A file that says the same in other words, at other lines, is as it was."""
    text = (project / "registry.yaml").read_text()
    (project / "registry.yaml").write_text(f"# moved\n\n{text}")
    assert changed(project) == ()


def test_a_pin_changed(project: Path) -> None:
    """The entry with the new pin is named, and none of the packaged ones below it."""
    (project / "registry.yaml").write_text(REGISTRY.format(C, B))
    assert changed(project) == ("org/model",)
    resolution, locked = before_at(registry(project), "main").model("org/model") or pytest.fail("is not new")
    assert (resolution.entry.source.revision, locked) == (A, None)


def test_a_lock_changed(project: Path) -> None:
    """What the lock says is part of the change: the pins are the same, the facts are others."""
    section = '{"recipe": {"name": "mappings"}, "location": "org__model", "repos": {}}'
    (project / "registry.lock").write_text(f'{{"lock_version": 1, "models": {{"org/model": {section}}}}}')
    before = before_at(registry(project), "HEAD")
    git(project, "add", ".")
    git(project, "commit", "-qm", "lock")
    after = before_at(registry(project), "HEAD")

    assert changed_models(before, after.entries, after.locked) == ("org/model",)
    assert changed_models(after, after.entries, after.locked) == ()


def test_a_registry_that_was_not_there(project: Path) -> None:
    """Every entry is new."""
    other = project / "more"
    other.mkdir()
    (other / "registry.yaml").write_text(REGISTRY.format(A, B))
    before = before_at(registry(other), "HEAD")

    assert before.entries == {}
    assert "every entry is new" in before.notes[0]
    assert before.model("org/model") is None


def test_a_registry_that_was_broken_keeps_nobody_from_repairing_it(project: Path) -> None:
    """Then everything is checked, and it is said why; likewise for a lock."""
    good = (project / "registry.yaml").read_text()
    (project / "registry.yaml").write_text("models: {")
    (project / "registry.lock").write_text("{")
    git(project, "add", ".")
    git(project, "commit", "-qm", "broken")
    (project / "registry.yaml").write_text(good)
    before = before_at(registry(project), "HEAD")
    assert (before.entries, before.locked) == ({}, {})
    assert "unusable before" in before.notes[0]

    git(project, "add", ".")
    git(project, "commit", "-qm", "repaired")
    before = before_at(registry(project), "HEAD")
    assert before.entries.keys() > {"org/model"}
    assert before.notes[0].startswith("the lock was unusable before")


def test_the_packaged_registry_is_compared_with_itself_alone(tmp_path: Path) -> None:
    """What was laid over nothing then is laid over nothing now: an entry that is new there is new."""
    now = load_registry(packaged_registry(), environ={})
    (tmp_path / "old.yaml").write_text("schema_version: 1\nmodels: {}\n")
    before = before_in(now, tmp_path / "old.yaml")

    assert changed_models(before, now.entries, {}) == tuple(now.entries)


def test_an_entry_that_leaves_the_file_falls_back_on_the_packaged_one(project: Path, tmp_path: Path) -> None:
    """One that the packaged registry has is still there, with other pins; one that it has not is gone."""
    [packaged, *_] = load_registry(packaged_registry(), environ={}).entries
    text = REGISTRY.format(A, B)
    (tmp_path / "old.yaml").write_text(text + text[text.index("  org/model:") :].replace("org/model", packaged, 1))
    (project / "registry.yaml").write_text("schema_version: 1\nmodels: {}\n")
    now = registry(project)
    before = before_in(now, tmp_path / "old.yaml")

    assert before.own == ("org/model", packaged)
    assert fallen_back(before, now) == (packaged,)


def test_against_a_file(project: Path, tmp_path: Path) -> None:
    """Another file in the place of the one in force; one that is not there is an error."""
    (tmp_path / "old.yaml").write_text(REGISTRY.format(A, C))
    now = registry(project)
    assert changed_models(before_in(now, tmp_path / "old.yaml"), now.entries, {}) == ("org/model",)
    with pytest.raises(NotHere) as caught:
        before_in(now, tmp_path / "none.yaml")
    assert caught.value.code == "no-such-file"
    assert caught.value.hint == "name a registry file to compare with: --against FILE"


@pytest.fixture
def linked(project: Path) -> Path:
    """The registry moved into a folder below, a link left in its place, and a lock beside the link."""
    (project / "sub").mkdir()
    (project / "registry.yaml").rename(project / "sub" / "pins.yaml")
    (project / "registry.yaml").symlink_to("sub/pins.yaml")
    section = '{"recipe": {"name": "mappings"}, "location": "org__model", "repos": {}}'
    (project / "registry.lock").write_text(f'{{"lock_version": 1, "models": {{"org/model": {section}}}}}')
    git(project, "add", ".")
    git(project, "commit", "-qm", "link")
    return project


def test_a_registry_that_is_a_link_is_as_it_was(linked: Path) -> None:
    """git has the link and what it leads to; the lock lies beside the link, then as now."""
    now = registry(linked)
    lock = read_lock(lock_path(now.path))
    before = before_at(now, "HEAD")

    assert lock is not None
    assert changed_models(before, now.entries, lock.models) == ()
    assert before.notes == ()
    (linked / "sub/pins.yaml").write_text(REGISTRY.format(C, B))
    assert changed(linked) == ("org/model",)


def test_a_registry_that_became_a_link(linked: Path) -> None:
    """It is compared with the file that was in the place of the link, by that name."""
    assert changed(linked, "HEAD~1") == ()


@pytest.mark.parametrize("target", ["../../elsewhere.yaml", "/etc/hosts", "registry.yaml"])
def test_a_link_that_led_out_of_the_repository(project: Path, target: str) -> None:
    """What it said then is not known, so that is an error and not "every entry is new"."""
    content = (project / "registry.yaml").read_text()
    (project / "registry.yaml").unlink()
    (project / "registry.yaml").symlink_to(target)
    git(project, "add", ".")
    git(project, "commit", "-qm", "out")
    (project / "registry.yaml").unlink()
    (project / "registry.yaml").write_text(content)

    with pytest.raises(InvalidUsage) as caught:
        before_at(registry(project), "HEAD")
    assert caught.value.code == "leads-out-of-the-repository"


@pytest.mark.parametrize("kind", ["dangling", "folder"])
def test_what_was_no_file_was_not_there(project: Path, kind: str) -> None:
    """A link that led nowhere, or a folder of that name, is no registry."""
    content = (project / "registry.yaml").read_text()
    (project / "registry.yaml").unlink()
    if kind == "folder":
        (project / "registry.yaml").mkdir()
        (project / "registry.yaml/file").touch()
    else:
        (project / "registry.yaml").symlink_to("nowhere.yaml")
    git(project, "add", ".")
    git(project, "commit", "-qm", "none")
    git(project, "rm", "-rq", "registry.yaml")
    project.mkdir(exist_ok=True)  # git takes empty folders along
    (project / "registry.yaml").write_text(content)

    assert "every entry is new" in before_at(registry(project), "HEAD").notes[0]


@pytest.mark.parametrize("keep", ["blob:none", "tree:0"])
def test_what_git_cannot_read_is_not_taken_for_absent(project: Path, tmp_path: Path, keep: str) -> None:
    """A partial clone that has not got the file, and whose remote is out of reach: it could not be told."""
    (project / "registry.yaml").write_text(REGISTRY.format(C, B))
    git(project, "commit", "-qam", "two")
    git(tmp_path, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", f"--filter={keep}", tmp_path.as_uri(), str(clone))
    git(clone, "remote", "set-url", "origin", (tmp_path / "nowhere").as_uri())
    now = registry(clone / "deploy")

    with pytest.raises(TryAgain) as caught:
        before_at(now, "HEAD~1")
    assert caught.value.code == "git-failed"
    assert caught.value.data["where"].endswith("deploy/registry.yaml")
    assert before_at(now, "HEAD").notes == ()


@pytest.mark.parametrize("git_dir", [".git", "../.git", "/nonexistent"])
def test_a_hook_sees_the_repository_that_the_file_lies_in(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git_dir: str
) -> None:
    """git tells its hooks where its folder is, relative to where they run; the registry may lie deeper."""
    expected = git(tmp_path, "rev-parse", "HEAD")
    now = registry(project)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", git_dir)
    monkeypatch.setenv("GIT_INDEX_FILE", ".git/index")
    before = before_at(now, "HEAD")

    assert before.name == f"HEAD ({expected[:12]})"
    assert changed_models(before, now.entries, {}) == ()


@pytest.mark.parametrize(("name", "code"), [("old.yaml", "registry-unreadable"), ("old.lock", "lock-unreadable")])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.name)])
def test_against_what_cannot_be_read(
    project: Path, tmp_path: Path, name: str, code: str, make: Callable[[Path], None]
) -> None:
    """A pipe is not waited for, and what is no file is not taken for a lock that is not there."""
    (tmp_path / "old.yaml").write_text(REGISTRY.format(A, C))
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)

    with pytest.raises(InvalidRegistry) as caught:
        before_in(registry(project), tmp_path / "old.yaml")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("revision", "code"),
    [
        ("", "bad-revision"),
        ("--output=/tmp/x", "bad-revision"),
        ("-1", "bad-revision"),
        ("HEAD:registry.yaml", "bad-revision"),
        ("HEAD\n", "bad-revision"),
        ("HEAD\0", "bad-revision"),
        ("nonsense", "unknown-revision"),
        ("$(touch x)", "unknown-revision"),
        ("0" * 40, "unknown-revision"),
        ("HEAD^{tree}", "unknown-revision"),
    ],
)
def test_revisions_that_are_none(project: Path, revision: str, code: str) -> None:
    """What is no commit of this repository is refused with a word for it, and never taken for an option."""
    with pytest.raises(InvalidUsage) as caught:
        commit_of(project, revision)
    assert caught.value.code == code
    assert sorted(path.name for path in project.iterdir()) == ["registry.yaml"]


@pytest.mark.parametrize(
    ("revision", "hint"),
    [
        ("origin/two", "git fetch origin two:refs/remotes/origin/two"),
        ("HEAD~3", "see which there are: git log --oneline; git branch --all"),
        ("origin/two~1", "git fetch origin two:refs/remotes/origin/two"),
        ("nonsense", "see which there are: git log --oneline; git branch --all"),
    ],
)
@pytest.mark.parametrize("is_shallow", [False, True])
def test_what_helps_is_something_that_git_can_do(
    project: Path,
    tmp_path: Path,
    revision: str,
    hint: str,
    is_shallow: bool,  # noqa: FBT001  # a table
) -> None:
    """A branch that was not fetched is; a shallow clone is made deeper; else one looks. No clone is made shallow."""
    git(tmp_path, "checkout", "-qb", "two")
    git(tmp_path, "commit", "-qm", "two", "--allow-empty")
    git(tmp_path, "commit", "-qm", "three", "--allow-empty")
    git(tmp_path, "checkout", "-q", "main")
    clone = tmp_path / "clone"
    depth = ["--depth=1"] if is_shallow else []
    git(tmp_path, "clone", "-q", "--single-branch", "-b", "main", *depth, tmp_path.as_uri(), str(clone))

    with pytest.raises(InvalidUsage) as caught:
        commit_of(clone, revision)
    if is_shallow:
        hint = "the clone is shallow: git fetch --unshallow" + (
            " origin two:refs/remotes/origin/two" if "origin/" in revision else ""
        )
    assert caught.value.hint == hint
    if "git fetch" in hint:
        git(clone, *hint.partition("git ")[2].split())
        git(clone, "rev-parse", "--verify", "origin/two~1" if "origin" in revision else "HEAD")


@pytest.mark.parametrize("revision", ["HEAD", "main", "tag", "HEAD~0", "@"])
def test_revisions_of_every_kind(project: Path, revision: str) -> None:
    """Branches, tags and what git derives from them name their commit."""
    git(project, "tag", "-am", "tag", "tag")
    assert commit_of(project, revision) == git(project, "rev-parse", "HEAD")


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder outside every repository has no revisions; the way out is named."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InvalidUsage) as caught:
        commit_of(tmp_path, "HEAD")
    assert caught.value.code == "not-a-repository"
    assert caught.value.hint == "name a file to compare with: --against FILE"


def test_no_git(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where git is not installed it is said."""
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(InvalidUsage) as caught:
        commit_of(project, "HEAD")
    assert caught.value.code == "no-git"


def test_a_file_comes_as_it_is_stored(project: Path) -> None:
    """No program that an attribute of the repository names is run on it."""
    (project / ".gitattributes").write_text("* diff=evil filter=evil\n")
    for name in ("diff.evil.textconv", "filter.evil.smudge"):
        git(project, "config", name, f"sh -c 'touch {project}/ran; cat'")
    commit = commit_of(project, "HEAD")

    assert file_at(project / "registry.yaml", commit) == REGISTRY.format(A, B).encode()
    assert file_at(project / "none.yaml", commit) is None
    assert not os.path.lexists(project / "ran")
