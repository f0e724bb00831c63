"""The lock file: what it accepts, what it refuses by name, and that writing gives back what was read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import InvalidRegistry
from overlay.registry import Launch, Need, Pin, Place, Recipe
from overlay.registry.entries import Entry
from overlay.registry.lock import (
    MAX_BYTES,
    Expected,
    ExpectedFile,
    Lock,
    LockedAdapter,
    LockedFile,
    LockedModel,
    LockedRepo,
    LockedScript,
    dump_lock,
    lock_path,
    parse_lock,
    read_lock,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

A, B = "a" * 40, "b" * 40
SHA = "0" * 64

hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\\/"), min_size=1, max_size=12)
parts = texts.filter(lambda part: part not in (".", ".."))
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)
repos = st.sampled_from(["acme/model", "acme/overlay", "Org.1/na_me-2", "x/y"])
digests = st.one_of(hexes.map("sha256:{}".format), hexes.map(lambda value: f"xxh3_128:{value[:32]}"))
counts = st.integers(0, 2**53)
files = st.builds(
    LockedFile,
    size=counts,
    sha256=hexes,
    tensors=st.none() | counts,
    header=st.none() | digests,
    source=st.none() | texts,
)
expected = st.builds(
    Expected,
    rule=texts,
    writer_version=counts,
    files=st.dictionaries(
        paths,
        st.builds(
            ExpectedFile,
            size=counts,
            digest=digests,
            sha256=hexes,
            tensors=st.none() | st.dictionaries(texts, digests, max_size=3),
        ),
        max_size=3,
    ),
)
adapters = st.builds(
    LockedAdapter,
    name=texts,
    kind=texts,
    weights=texts,
    spec=st.none() | texts,
    pairs=counts,
    ranks=st.lists(counts, max_size=3).map(tuple),
    scales=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    meaning=digests,
    source=st.none() | texts,
)
options = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
models = st.builds(
    LockedModel,
    recipe=st.dictionaries(texts, options, max_size=3),
    location=parts.filter(lambda name: not name.startswith(".")),
    repos=st.dictionaries(
        repos,
        st.builds(
            LockedRepo,
            revision=hexes.map(lambda value: value[:40]),
            complete=st.booleans(),
            source=st.none() | texts,
            components=st.lists(texts, max_size=2).map(tuple),
            licenses=st.lists(paths, max_size=2).map(tuple),
            files=st.dictionaries(paths, files, max_size=3),
        ),
        max_size=3,
    ),
    adapters=st.lists(adapters, max_size=2).map(tuple),
    script=st.none() | st.builds(LockedScript, path=paths, sha256=hexes),
    expected=st.none() | expected,
)
locks = st.builds(Lock, models=st.dictionaries(repos, models, max_size=3))


def small() -> dict[str, Any]:
    """A sound lock as a document, for a test to spoil."""
    return {
        "lock_version": 1,
        "models": {
            "acme/model": {
                "adapters": [],
                "location": "acme__model-1",
                "recipe": {"name": "mappings"},
                "repos": {
                    "acme/model": {
                        "complete": True,
                        "components": [],
                        "licenses": [],
                        "revision": A,
                        "files": {"a/b.json": {"size": 1, "sha256": SHA}},
                    }
                },
            }
        },
    }


def repo_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["models"]["acme/model"]["repos"]["acme/model"]


def refused(document: object) -> InvalidRegistry:
    with pytest.raises(InvalidRegistry) as caught:
        parse_lock(json.dumps(document).encode(), "some/registry.lock")
    assert caught.value.code == "lock-invalid"
    assert caught.value.message.startswith("some/registry.lock: ")
    assert caught.value.hint
    return caught.value


@given(locks)
def test_what_is_written_is_read_back_and_written_the_same(lock: Lock) -> None:
    """Reading gives the lock that was written, and writing that gives the very bytes."""
    data = dump_lock(lock)
    read = parse_lock(data, "lock")

    assert read == lock
    assert dump_lock(read) == data
    assert json.loads(data) == json.loads(lock.model_dump_json(exclude_none=True))


@given(locks, st.randoms(use_true_random=False))
def test_order_of_names_never_shows(lock: Lock, random: Any) -> None:
    """The same facts found in another order are the same file."""

    def shuffled(value: dict[str, Any]) -> dict[str, Any]:
        keys = list(value)
        random.shuffle(keys)
        return {key: value[key] for key in keys}

    other = Lock(
        models=shuffled(
            {
                name: model.model_copy(
                    update={
                        "repos": shuffled(
                            {
                                repo: section.model_copy(update={"files": shuffled(section.files)})
                                for repo, section in model.repos.items()
                            }
                        )
                    }
                )
                for name, model in lock.models.items()
            }
        )
    )

    assert dump_lock(other) == dump_lock(lock)


@given(st.dictionaries(paths, files, min_size=1, max_size=4), paths, files)
def test_one_file_changes_one_line(before: dict[str, LockedFile], path: str, file: LockedFile) -> None:
    """A file more, or another content, changes no line but its own (and the comma before it)."""

    def lines(found: dict[str, LockedFile]) -> set[str]:
        repo = LockedRepo(revision=A, files=found)
        model = LockedModel(recipe={"name": "mappings"}, location="here", repos={"acme/model": repo})
        return {line.removesuffix(",") for line in dump_lock(Lock(models={"acme/model": model})).decode().split("\n")}

    old, new = lines(before), lines({**before, path: file})

    assert len(new - old) <= 1
    assert len(old - new) <= 1


def test_one_tensor_a_line() -> None:
    """Each digest of a tensor stands on a line of its own, and so does each adapter's rank list."""
    tensors = {f"block.{number}.weight": f"xxh3_128:{number:032x}" for number in range(3)}
    file = ExpectedFile(size=3, digest=f"sha256:{SHA}", sha256=SHA, tensors=tensors)
    model = LockedModel(
        recipe={"name": "mappings"},
        location="here",
        repos={},
        expected=Expected(rule="fp32-once", writer_version=1, files={"w.safetensors": file}),
    )
    lines = [line.strip() for line in dump_lock(Lock(models={"acme/model": model})).decode().splitlines()]

    assert [f'"{name}": "{digest}"' for name, digest in tensors.items()] == [
        line.removesuffix(",") for line in lines if line.startswith('"block.')
    ]


def test_small_document_is_sound(tmp_path: Path) -> None:
    """The document that the tests below spoil is accepted as it is."""
    path = tmp_path / "registry.lock"
    path.write_text(json.dumps(small()))

    lock = read_lock(path)

    assert lock is not None
    assert lock.models["acme/model"].repos["acme/model"].files["a/b.json"].size == 1


def test_no_file_is_no_lock(tmp_path: Path) -> None:
    """Where there is none, none is read."""
    assert read_lock(tmp_path / "registry.lock") is None


@pytest.mark.parametrize("name", ["registry.yaml", "mine.yml", "a.b.yaml"])
def test_lies_beside_its_registry(name: str, tmp_path: Path) -> None:
    """It has the registry's name, and is in the registry's folder."""
    assert lock_path(tmp_path / name) == tmp_path / f"{name.rpartition('.')[0]}.lock"


def spoil_file(change: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda document: repo_of(document)["files"]["a/b.json"].update(change)


def rename(path: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: repo_of(document)["files"].update({path: {"size": 1, "sha256": SHA}})


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (spoil_file({"size": "1"}), "a/b.json > size"),
        (spoil_file({"size": 1.0}), "a/b.json > size"),
        (spoil_file({"size": True}), "a/b.json > size"),
        (spoil_file({"size": -1}), "a/b.json > size"),
        (spoil_file({"sha256": "A" * 64}), "is no sha256"),
        (spoil_file({"sha256": "0" * 63}), "is no sha256"),
        (spoil_file({"header": "sha256:00"}), "digest 'sha256:00' is not usable"),
        (spoil_file({"header": SHA}), "is not usable"),
        (spoil_file({"more": 1}), "a/b.json > more"),
        (spoil_file({"tensors": None, "sha256": None}), "a/b.json > sha256"),
        (rename("../out"), "leads out of its folder"),
        (rename("/etc/passwd"), "is absolute"),
        (rename(""), "is empty"),
        (rename("a\\b"), "backslash"),
        (rename("a//b"), "not in plain form"),
        (rename("./a"), "not in plain form"),
        (lambda d: repo_of(d).update(revision="main"), "is no commit"),
        (lambda d: repo_of(d).update(revision=A.upper()), "is no commit"),
        (lambda d: repo_of(d).update(licenses=["../LICENSE"]), "leads out"),
        (lambda d: repo_of(d).update(licenses="LICENSE"), "licenses"),
        (lambda d: repo_of(d).update(complete=1), "complete"),
        (lambda d: repo_of(d).update(files=[]), "files"),
        (lambda d: repo_of(d).pop("revision"), "revision"),
        (lambda d: d["models"]["acme/model"].update(location="../up"), "leads out"),
        (lambda d: d["models"]["acme/model"].update(location="a/b"), "is no name of a folder"),
        (lambda d: d["models"]["acme/model"].update(location=".overlay"), "is no name of a folder"),
        (lambda d: d["models"]["acme/model"].update(recipe=[]), "recipe"),
        (lambda d: d["models"].update({"no-slash": d["models"]["acme/model"]}), "is no repo id"),
        (lambda d: d["models"]["acme/model"]["repos"].update({"../..": repo_of(d)}), "is no repo id"),
        (lambda d: d.update(models=[]), "models"),
        (lambda d: d.update(extra={}), "extra"),
        (lambda d: d.update(lock_version=2), "lock_version is 2; this program reads 1"),
        (lambda d: d.update(lock_version="1"), 'lock_version is "1"'),
        (lambda d: d.update(lock_version=True), "lock_version is true"),
        (lambda d: d.update(lock_version=1.0), "lock_version is 1.0"),
        (lambda d: d.pop("lock_version"), "lock_version is null"),
    ],
)
def test_refuses_what_is_not_as_it_must_be(spoil: Callable[[dict[str, Any]], object], named: str) -> None:
    """A wrong type, an unknown key, a path that leads out, another version: each is named with its place."""
    document = small()
    spoil(document)

    assert named in refused(document).message


@pytest.mark.parametrize("document", [[], "text", 1, None, True])
def test_refuses_what_is_no_object(document: object) -> None:
    """A JSON value that is no object is no lock."""
    assert "expected an object" in refused(document).message


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "line 1, column 1"),
        (b"{", "line 1, column 2"),
        (b'{"lock_version": 1,\n "models": {}\n', "line 3, column 1"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b'{"lock_version": 1, "models": {}, "models": {}}', "'models' is given twice"),
        (b'{"lock_version": 1, "models": {"a/b": 1, "a/b": 2}}', "'a/b' is given twice"),
        (b'{"lock_version": NaN}', "NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"lock_version": 1}\n<<<<<<< HEAD\n', "line 2: a merge conflict"),
        (b'{\n "lock_version": 1,\n=======\n}', "line 3: a merge conflict"),
        (b'{\n "lock_version": 1\n}\n>>>>>>> theirs\n', "line 4: a merge conflict"),
    ],
)
def test_refuses_what_is_no_json(data: bytes, named: str) -> None:
    """Damage, a key given twice and a merge conflict are told with the line."""
    with pytest.raises(InvalidRegistry) as caught:
        parse_lock(data, "registry.lock")

    assert caught.value.code == "lock-invalid"
    assert caught.value.message.startswith("registry.lock: ")
    assert named in caught.value.message
    assert "overlay lock" in (caught.value.hint or "")


def test_a_name_that_looks_like_a_conflict_is_none() -> None:
    """The markers count at the beginning of a line only, where JSON never has them."""
    document = small()
    repo_of(document)["files"]["<<<<<<< HEAD"] = {"size": 1, "sha256": SHA}

    lock = parse_lock(json.dumps(document, indent=1).encode(), "registry.lock")

    assert "<<<<<<< HEAD" in lock.models["acme/model"].repos["acme/model"].files


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def make_too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


@pytest.mark.parametrize("make", [make_folder, make_pipe, make_dangling, make_too_large])
def test_refuses_what_cannot_be_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    """A folder, a pipe, a link to nothing and a file without end are refused at once, and never waited for."""
    path = tmp_path / "registry.lock"
    make(path)

    with pytest.raises(InvalidRegistry, match=r"registry\.lock") as caught:
        read_lock(path)

    assert caught.value.code == "lock-unreadable"
    assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_refuses_what_may_not_be_read(tmp_path: Path) -> None:
    """A file of another user is not taken for an absent one."""
    path = tmp_path / "registry.lock"
    path.write_text(json.dumps(small()))
    path.chmod(0)

    with pytest.raises(InvalidRegistry) as caught:
        read_lock(path)

    assert caught.value.code == "lock-unreadable"


def entry(**changes: Any) -> Entry:
    values: dict[str, Any] = {
        "model": "acme/model",
        "source": Pin("acme/model", A),
        "overlay": Pin("acme/overlay", B),
        "overlay_fingerprint": None,
        "needs": (Need(Pin("acme/need", A), ("vae",)),),
        "recipe": Recipe("vdn-h3", {"stage": "one"}),
        "place": Place("registry.yaml", 3, 3),
    }
    return Entry(**{**values, **changes})


LOCKED = LockedModel(
    recipe={"name": "vdn-h3", "stage": "one"},
    location="here",
    repos={
        "acme/model": LockedRepo(revision=A, files={}),
        "acme/overlay": LockedRepo(revision=B, files={}),
        "acme/need": LockedRepo(revision=A, components=("vae",), files={}),
    },
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"source": Pin("acme/model", B)}, "acme/model is locked at aaaaaaaaaaaa, pinned at bbbbbbbbbbbb"),
        ({"source": Pin("acme/other", A)}, "acme/model is not in the entry any more"),
        ({"overlay": None}, "acme/overlay is not in the entry any more"),
        ({"needs": ()}, "acme/need is not in the entry any more"),
        ({"needs": (Need(Pin("acme/need", A), ("vae", "text")),)}, "acme/need: locked with the components vae"),
        (
            {"recipe": Recipe("vdn-h3", {"stage": "two"})},
            "locked with the recipe vdn-h3 (stage one), it is vdn-h3 (stage two)",
        ),
        ({"consumers": ("overlay",)}, None),
        ({"serve": {"sglang": Launch(("--x",))}}, None),
    ],
)
def test_says_what_the_entry_has_otherwise(changes: dict[str, Any], said: str | None) -> None:
    """A lock is current for exactly the pins, components and recipe that it was made of."""
    differences = LOCKED.differences(entry(**changes))

    assert bool(differences) == (said is not None)
    assert said is None or any(line.startswith(said) for line in differences)
