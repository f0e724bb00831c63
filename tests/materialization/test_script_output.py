"""What a script left: what is taken over, what is refused, and what becomes of links and second names."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit, shard
from support.published_rule import files_of
from support.scripted import ENOUGH, MODEL, PATH, PLAIN, StandIn, prepared, reused, scripted_options

from overlay.errors import BrokenInput, CannotWrite
from overlay.formats.header import read_header
from overlay.formats.materialized import MARKER_NAME
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.materialization.request import Options


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """In the place of the sandbox."""
    return StandIn(monkeypatch)


def tree_of(options: Options) -> dict[str, bytes]:
    """Files of the published tree, beside the record and the marker."""
    path = materialize(MODEL, options).path
    assert path is not None
    return {name: data for name, data in files_of(path).items() if name not in (RECORD_NAME, MARKER_NAME)}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    (out / 'model_index.json').unlink()\n", "model_index.json"),
        ("    pass\n", "unet: there is no such component"),
        ("    (out / 'model_index.json').write_text('{')\n" + ENOUGH, "model_index.json"),
        (ENOUGH + "    (out / 'unet/y.safetensors').write_bytes(b'short')\n", "y.safetensors"),
        ("    (out / 'unet').mkdir()\n    (out / 'unet/config.json').write_text('{}')\n", "unet: has no weights"),
        (ENOUGH + "    (out / 'unet/y.bin').write_bytes(b'')\n", "y.bin"),
        (ENOUGH + "    (out / 'y.txt').symlink_to('/etc/passwd')\n", "/etc/passwd"),
        (ENOUGH + "    import os; os.mkfifo(out / 'y')\n", "pipe"),
        (ENOUGH + "    (out / 'a\\\\b').write_text('x')\n", "backslash"),
    ],
    ids=[
        "no index",
        "no component",
        "broken index",
        "broken weights",
        "no weights",
        "pickle",
        "link out",
        "pipe",
        "bad name",
    ],
)
def test_what_may_not_be_taken_over(tmp_path: Path, stand_in: StandIn, body: str, words: str) -> None:
    """It is named, and nothing is published or kept."""
    with pytest.raises(BrokenInput) as caught:
        materialize(MODEL, prepared(tmp_path, PLAIN + body))
    assert caught.value.code == "script-output"
    assert words in str(caught.value)
    assert len(stand_in.jobs) == 1
    assert not [*tmp_path.glob("root/.overlay/objects/*/*/*"), *tmp_path.glob("root/materialized_models/*")]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("pipeline.py", b"x", r"kind that no model needs \(\.py\)"),
        ("unet/.git/config", b"x", "hidden"),
        (f"unet/{MARKER_NAME}", b"x", "hidden"),
        ("licenses/acme__overlay/LICENSE", b"x", "licenses/"),
        (f"{MARKER_NAME}/x.txt", b"x", "hidden"),
        (f"{RECORD_NAME}/x.txt", b"x", "a file of ours"),
        ("a.json", b"\x80\x04.", "a pickle"),
        ("unet/vocab.txt", b"(dp0\nVa\np1\nI1\ns.", "a pickle"),
        ("unet/config.json", b"\xff\xfe", "no JSON"),
        ("unet/x.json", b"", "no JSON"),
        ("unet/x.json", b"[" * 100_000, "no JSON"),
        ("model_index.json", b"[]", "model_index.json"),
        ("unet/x.gguf", b"x", "no GGUF"),
        ("z.SafeTensors", b"junk", "z.SafeTensors"),
        ("unet/z.safetensors", b"", "z.safetensors"),
    ],
)
def test_a_script_leaves_only_files_of_a_model(
    tmp_path: Path, stand_in: StandIn, name: str, data: bytes, words: str
) -> None:
    """Of a kind that is known, and what their names say: else nothing is kept, and the place in the tree is named."""
    body = (
        f"    (out / {name!r}).parent.mkdir(parents=True, exist_ok=True)\n    (out / {name!r}).write_bytes({data!r})\n"
    )
    with pytest.raises(BrokenInput, match=words) as caught:
        materialize(MODEL, prepared(tmp_path, PLAIN + ENOUGH + body))
    assert caught.value.code == "script-output"
    assert caught.value.data["where"] in (name, name.rpartition("/")[0], ".")
    assert str(tmp_path / "root") not in f"{caught.value} {caught.value.data}"
    assert PATH in str(caught.value)
    assert not [*tmp_path.glob("root/.overlay/objects/*/*/*"), *tmp_path.glob("root/.overlay/actions/*/*")]
    assert len(stand_in.jobs) == 1


@pytest.mark.parametrize("whole", ["source", "Path(overlay_dir).parent / 'hub/hub/models--acme--need/snapshots/' / C"])
def test_hidden_files_of_repos_are_not_given(tmp_path: Path, stand_in: StandIn, whole: str) -> None:
    """So a script may copy a whole folder, as many do; nearly every repo has a ``.gitattributes``."""
    add_repo(
        tmp_path / "hub", "acme/need", commit("c"), {"enc/a.json": "1", ".gitattributes": "*", "enc/.gitignore": "*"}
    )
    body = f"    import shutil\n    C = '{commit('c')}'\n    shutil.copytree({whole}, out, dirs_exist_ok=True)\n"
    options = prepared(
        tmp_path,
        PLAIN + body + ENOUGH,
        manifest={"source_allow_patterns": ["unet/*", ".*"]},
        needs=f"needs: [{{repo: acme/need, revision: {commit('c')}}}]",
    )
    (tmp_path / "hub" / MODEL / commit("a") / ".gitattributes").write_text("*")
    (tmp_path / "hub" / MODEL / commit("a") / "unet/.gitignore").write_text("*")
    (tmp_path / "hub/acme/overlay" / commit("b") / ".gitattributes").write_text("*")
    made = tree_of(options)
    assert ("unet/w.safetensors" if whole == "source" else "enc/a.json") in made
    assert not [path for path in made if "/." in f"/{path}"]
    assert len(stand_in.jobs) == 1


def test_a_filesystem_that_refuses_the_scripts_folders_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one where root may not change owners (NFS with root_squash): the root is named, and what to do."""
    StandIn(monkeypatch)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("overlay.sandbox.run", refuse)
    with pytest.raises(CannotWrite, match="Operation not permitted") as caught:
        materialize(MODEL, prepared(tmp_path))
    assert caught.value.code == "not-permitted"
    assert str(tmp_path / "root") in str(caught.value)
    assert "--cache-root" in str(caught.value.hint)


def test_names_that_some_filesystem_takes_for_one(tmp_path: Path, stand_in: StandIn) -> None:
    """Refused before anything of it is kept or remembered."""
    body = "    (out / 'unet/Note.txt').write_text('a')\n    (out / 'unet/NOTE.txt').write_text('b')\n"
    with pytest.raises(BrokenInput, match=r"unet/N(ote|OTE)\.txt") as caught:
        materialize(MODEL, prepared(tmp_path, PLAIN + ENOUGH + body))
    assert caught.value.code == "script-output"
    assert not [*tmp_path.glob("root/.overlay/objects/*/*/*"), *tmp_path.glob("root/.overlay/actions/*/*")]
    assert len(stand_in.jobs) == 1


def test_papers_and_pictures_are_fine(tmp_path: Path, stand_in: StandIn) -> None:
    """What model folders hold beside weights, and JSON as Windows writes it."""
    names = ("LICENSE", "NOTICE", "merges.txt", "tokenizer.model.v3", "a/template.jinja", "a/b.PNG", "v.yaml")
    body = "    (out / 'a').mkdir()\n" + "".join(f"    (out / {name!r}).write_text('x')\n" for name in names)
    body += "    (out / 'a/bom.json').write_bytes(b'\\xef\\xbb\\xbf{}')\n    (out / 'a/x.gguf').write_bytes(b'GGUF')\n"
    assert {*names, "a/bom.json", "a/x.gguf"} <= {*tree_of(prepared(tmp_path, PLAIN + ENOUGH + body))}
    assert len(stand_in.jobs) == 1


def test_code_of_the_overlay_is_not_the_scripts_to_change(tmp_path: Path, stand_in: StandIn) -> None:
    """It comes to the tree as it is pinned, and so does what the overlay itself has under licenses/."""
    options = prepared(tmp_path, f"{PLAIN}    assert not (out / 'pipeline.py').exists()\n{ENOUGH}")
    own = {"pipeline.py": "import os", "licenses/acme/terms.txt": "strict"}
    for name, text in own.items():
        (tmp_path / "hub/acme/overlay" / commit("b") / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub/acme/overlay" / commit("b") / name).write_text(text)
    made = tree_of(options)
    assert {name: made[name].decode() for name in own} == own
    assert len(stand_in.jobs) == 1


def test_names_of_one_file_are_taken_once(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, hard or not, to its own file or to an input: one inode of weights, hashed once; and the same once more."""
    import overlay.materialization.scripted.output as taking

    hashed = []
    digest = taking.file_digest
    monkeypatch.setattr(taking, "file_digest", lambda path, kind: hashed.append(path) or digest(path, kind))
    body = (
        "    import os\n"
        "    (out / 'unet').mkdir()\n"
        "    data = (source / 'unet/w.safetensors').read_bytes()\n"
        "    (out / 'unet/a.safetensors').write_bytes(data[:-1] + b'!')\n"
        "    for n in range(5):\n"
        "        (out / f'unet/l{n}.safetensors').symlink_to('a.safetensors')\n"
        "        os.link(out / 'unet/a.safetensors', out / f'unet/h{n}.safetensors')\n"
        "        (out / f'unet/i{n}.safetensors').symlink_to(source / 'unet/w.safetensors')\n"
    )
    done = materialize(MODEL, prepared(tmp_path, PLAIN + body))
    assert done.path is not None
    made, given = ({path.stat().st_ino for path in done.path.glob(f"unet/{name}*")} for name in ("[alh]", "i"))
    assert (len(made), len(given), len([*done.path.glob("unet/*.safetensors")])) == (1, 1, 16)
    assert done.counters == Counters(read=16, written=32)  # what the script wrote, and a copy of the input
    assert len([path for path in hashed if path.suffix == ".safetensors"]) == 1
    assert verify(done.path, level="full").ok
    assert reused(tmp_path, scripted_options(tmp_path, PLAIN + body))
    assert len(stand_in.jobs) == 1


def test_small_files_under_many_names_are_bounded(tmp_path: Path, stand_in: StandIn) -> None:
    """Each is a file of its own in the tree, so their sum is held against the limit on disk before any is kept."""
    body = (
        "    (out / 'big.txt').write_bytes(b'x' * 2**20)\n"
        "    for n in range(80):\n"
        "        (out / f'l{n}.txt').symlink_to('big.txt')\n"
    )
    options = prepared(tmp_path, PLAIN + ENOUGH + body, limits=", limits: {disk: 64MiB}")
    with pytest.raises(BrokenInput, match=r"second names of small files, of 83.9 MB") as caught:
        materialize(MODEL, options)
    assert caught.value.code == "script-output"
    assert not [*tmp_path.glob("root/.overlay/objects/*/*/*")]
    assert len(stand_in.jobs) == 1


def test_a_wheel_in_the_cache_is_hashed_again(tmp_path: Path, stand_in: StandIn) -> None:
    """One whose bytes are others by now is brought anew, and never imported."""
    name = "helper-1-py3-none-any.whl"
    (tmp_path / "hub/wheels").mkdir(parents=True)
    (tmp_path / "hub/wheels" / name).write_bytes(b"good")
    wheel = hashlib.sha256(b"good").hexdigest()
    needs = f"needs: [{{wheel: {name}, sha256: {wheel}}}]"
    for turn in ("1", "2"):
        script = f"{PLAIN}{ENOUGH}    (out / 'turn.txt').write_text('{turn}')\n"
        shutil.rmtree(tmp_path / "hub/acme", ignore_errors=True)
        seen = f"{script}    wheel = next(Path(overlay_dir).parent.glob('wheels/*')).read_bytes()\n"
        seen += f"    Path({str(tmp_path)!r}, 'seen').write_bytes(wheel)\n"
        materialize(MODEL, prepared(tmp_path, seen, needs=needs))
        assert (tmp_path / "seen").read_bytes() == b"good"
        [place] = [path for path in tmp_path.glob("root/.overlay/objects/*/*/*") if path.read_bytes() == b"good"]
        place.chmod(0o644)
        place.write_bytes(b"evil")
    assert len(stand_in.jobs) == 2


def test_links_and_copies_of_inputs_are_carried(tmp_path: Path, stand_in: StandIn) -> None:
    """As a recipe's own would be: by the link policy, and named in the record; what is linked inside is a file."""
    body = (
        "    import shutil\n"
        "    (out / 'unet').mkdir()\n"
        "    (out / 'unet/linked.safetensors').symlink_to((source / 'unet/w.safetensors').resolve())\n"
        "    shutil.copy(source / 'unet/w.safetensors', out / 'unet/copied.safetensors')\n"
        "    (out / 'unet/config.json').symlink_to(source / 'unet/config.json')\n"
        "    (out / 'own.json').symlink_to(Path(overlay_dir) / 'model_index.json')\n"
        "    (out / 'second.md').symlink_to('README.md')\n"
        f"    (out / '{MARKER_NAME}').write_text('mine')\n"
        f"    (out / '{RECORD_NAME}').write_text('mine')\n"
    )
    done = materialize(MODEL, prepared(tmp_path, PLAIN + body))
    assert done.path is not None
    made = files_of(done.path)
    assert made["unet/linked.safetensors"] == made["unet/copied.safetensors"] == shard("w")
    assert made["own.json"] == made["model_index.json"]
    assert made["second.md"] == b"of the overlay"
    assert b"mine" not in (made[MARKER_NAME], made[RECORD_NAME])
    record = json.loads(made[RECORD_NAME])
    assert sorted(record["run"]["claimed"]) == [
        "unet/config.json",
        "unet/copied.safetensors",
        "unet/linked.safetensors",
    ]
    assert not [path for path in done.path.rglob("*") if path.is_symlink()]
    assert verify(done.path, level="full").ok
    assert reused(tmp_path, scripted_options(tmp_path, PLAIN + body))
    assert len(stand_in.jobs) == 1


def test_a_second_name_costs_nothing(tmp_path: Path, stand_in: StandIn) -> None:
    """Of weights that were written: one inode in the tree, one payload; small files keep inodes of their own."""
    body = (
        "    import os\n"
        "    (out / 'unet/deep').mkdir(parents=True)\n"
        "    data = (source / 'unet/w.safetensors').read_bytes()\n"
        "    (out / 'unet/a.safetensors').write_bytes(data[:-1] + b'!')\n"
        "    os.link(out / 'unet/a.safetensors', out / 'unet/deep/b.safetensors')\n"
        "    (out / 'unet/c.json').write_text('{}')\n"
        "    os.link(out / 'unet/c.json', out / 'unet/d.json')\n"
    )
    done = materialize(MODEL, prepared(tmp_path, PLAIN + body))
    assert done.path is not None
    unet = done.path / "unet"
    assert (unet / "a.safetensors").samefile(unet / "deep/b.safetensors")
    assert not (unet / "c.json").samefile(unet / "d.json")
    assert (unet / "d.json").read_text() == "{}"
    assert done.counters == Counters(written=16)
    assert verify(done.path, level="full").ok
    assert len(stand_in.jobs) == 1


def test_modes_are_the_umasks(tmp_path: Path, stand_in: StandIn) -> None:
    """Whatever mode a script gave a file."""
    body = ENOUGH + "    (out / 'unet/x.json').write_text('[]')\n    (out / 'unet/x.json').chmod(0o755)\n"
    body += "    data = (source / 'unet/w.safetensors').read_bytes()[:-1] + b'!'\n"
    body += "    (out / 'unet/y.safetensors').write_bytes(data)\n    (out / 'unet/y.safetensors').chmod(0o600)\n"
    done = materialize(MODEL, prepared(tmp_path, PLAIN + body))
    assert done.path is not None
    modes = {path.stat().st_mode & 0o777 for path in (done.path / "unet").iterdir()}
    assert modes == {(done.path / RECORD_NAME).stat().st_mode & 0o777}
    assert read_header(done.path / "unet/y.safetensors").tensors
    assert len(stand_in.jobs) == 1
