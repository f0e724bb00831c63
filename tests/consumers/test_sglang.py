"""Where sglang looks for a materialization, against values that released servers gave."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from overlay.consumers import sglang
from overlay.registry import LOCAL, Entry, Need, Pin, Place, Recipe, ServerSpec, load_registry

pytestmark = pytest.mark.no_torch

SYNTHETIC = "6b8f18a2809bf6907ca475b7b517e9d14ab448312f9c447ba8f228cdf7fef673"
VDN = "41b00cecdf03a3951ae8b491999ee5037e9c9455fb5e6e503755dcece0af1c5d"
VDN_OVERLAY = "7de18275dddfe59da36a234e222bcdd274963bc3"
VDN_IDENTITY = sglang.Identity("OpenVDN/vdn-minimax-h3", "kevin-mi/VDN-H3-overlay", VDN_OVERLAY, "v1", VDN)
ORG = sglang.Identity("org/src", "org/ov", "a" * 40, "v1", SYNTHETIC)
VDN_ENTRY = Entry(
    model="OpenVDN/vdn-minimax-h3",
    source=Pin("OpenVDN/vdn-minimax-h3", "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14"),
    overlay=Pin("kevin-mi/VDN-H3-overlay", VDN_OVERLAY),
    overlay_fingerprint=VDN,
    needs=(),
    recipe=Recipe("vdn-h3", {"stage": "stage-dmd-step-250"}),
    place=Place("registry.yaml", 1, 1),
)


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        (VDN_IDENTITY, "e541eaf4b41d4e5c"),
        (replace(VDN_IDENTITY, source_revision="ec875b5bde3832ff72511b079c70ea18b277c339"), "56cb2edd7eda552c"),
        (replace(VDN_IDENTITY, overlay_revision="main"), "051ddcd8cbd1de49"),
        (replace(VDN_IDENTITY, release=sglang.release_of((0, 5, 10))), "239d3a4cb72ad080"),
        (ORG, "15049327404ac714"),
        (replace(ORG, source_revision="b" * 40), "76865e99f79ec11d"),
        (replace(ORG, source_model_id="org/sré"), "cf85fbd89fc77dcb"),
    ],
)
def test_key_vectors(identity: sglang.Identity, key: str) -> None:
    """Every published key comes out of its identity."""
    assert identity.key16 == key


VDN_LOCK = "3a4ce56e2ada233c83519eef76c2c9939a0adc3e2b1e2c697647bd09f4717b16"
VDN_LOCK_TEXT = "overlay-materialize::OpenVDN-vdn-minimax-h3::kevin-mi-VDN-H3-overlay::" + VDN_OVERLAY


def test_lock_vector() -> None:
    """The published lock name, which no other field of the identity moves."""
    assert VDN_IDENTITY.lock_name == f"{VDN_LOCK}{VDN_LOCK_TEXT}.lock"
    other = replace(VDN_IDENTITY, overlay_fingerprint="0" * 64, materializer_version="v4", source_revision="b" * 40)
    assert other.lock_name == VDN_IDENTITY.lock_name


@pytest.mark.parametrize(("extra", "is_shortened"), [(0, False), (1, True)])
def test_lock_names_that_no_filesystem_takes_are_digests_from_0_5_18_on(extra: int, *, is_shortened: bool) -> None:
    """255 bytes fit, one more does not; earlier releases try all the same."""
    whole = len(replace(VDN_IDENTITY, overlay_repo_id="").lock_name)
    long = replace(VDN_IDENTITY, overlay_repo_id="o" * (255 - whole + extra))
    assert len(long.lock_name) == (64 + len(".lock") if is_shortened else 255)
    early = replace(long, release=sglang.release_of((0, 5, 17)))
    assert len(early.lock_name) == 255 + extra
    assert early.lock_name.startswith(long.lock_name.removesuffix(".lock")[:64])


def test_empty_source_revision_is_left_out() -> None:
    """An empty source revision is no field of the key, as with the server."""
    assert replace(ORG, source_revision="").key16 == ORG.key16


def test_location_of_the_packaged_entry() -> None:
    """The packaged VDN-H3 entry has the directory that a bare server uses."""
    entry = load_registry().entries["OpenVDN/vdn-minimax-h3"]
    name = sglang.location_name(entry, entry.overlay_fingerprint, entry.materializer_version)
    assert name == "OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c"


def test_marker() -> None:
    """The marker is the server's JSON, with a source that names no folder of this host."""
    marker = sglang.marker_bytes(VDN_IDENTITY, "OpenVDN/vdn-minimax-h3@6d05")
    assert marker == (
        b'{\n  "materializer_version": "v1",\n  "overlay_fingerprint": "' + VDN.encode() + b'",\n'
        b'  "overlay_repo_id": "kevin-mi/VDN-H3-overlay",\n'
        b'  "overlay_revision": "7de18275dddfe59da36a234e222bcdd274963bc3",\n'
        b'  "source_dir": "OpenVDN/vdn-minimax-h3@6d05",\n'
        b'  "source_model_id": "OpenVDN/vdn-minimax-h3",\n  "source_revision": null\n}'
    )
    assert json.loads(sglang.marker_bytes(replace(VDN_IDENTITY, source_revision="b"), "s"))["source_revision"] == "b"


def test_source_commit_enters_only_where_the_built_in_table_has_one() -> None:
    """VDN-H3's source pin stays out of the key, Hy-Nomas' is in it."""
    registry = load_registry()
    vdn = sglang.identity_of(registry.entries["OpenVDN/vdn-minimax-h3"], VDN)
    nomas = sglang.identity_of(registry.entries["tencent/Hy-Nomas"], VDN)
    assert vdn.source_revision is None
    assert nomas.source_revision == "dea948068220d1037f1d1c10b95b6793d92bee28"


def test_manifest_source_revision_fills_in() -> None:
    """A source revision of the manifest counts where the server was told none."""
    nomas = load_registry().entries["tencent/Hy-Nomas"]
    assert sglang.identity_of(VDN_ENTRY, VDN, manifest_source_revision="c" * 40).source_revision == "c" * 40
    assert sglang.identity_of(nomas, VDN, manifest_source_revision="c" * 40).source_revision == nomas.source.revision


def test_exported_registry_decides_verbatim() -> None:
    """Under an exported registry the key holds what that says, not the entry's pins."""
    told = replace(VDN_ENTRY, server=ServerSpec("./overlay/", "main", None))
    identity = sglang.identity_of(told, VDN)
    assert (identity.overlay_repo_id, identity.overlay_revision) == ("./overlay/", "main")
    direct = replace(VDN_ENTRY, server=ServerSpec("kevin-mi/VDN-H3-overlay", "main", None))
    assert sglang.location_name(direct, VDN) == "OpenVDN__vdn-minimax-h3-051ddcd8cbd1de49"
    pinned = replace(
        VDN_ENTRY,
        server=ServerSpec("kevin-mi/VDN-H3-overlay", VDN_OVERLAY, "ec875b5bde3832ff72511b079c70ea18b277c339"),
    )
    assert sglang.location_name(pinned, VDN) == "OpenVDN__vdn-minimax-h3-56cb2edd7eda552c"


def test_floating_overlay_is_main_to_a_server() -> None:
    """An overlay without a commit enters the key as ``main``."""
    floating = replace(VDN_ENTRY, overlay=Pin("kevin-mi/VDN-H3-overlay", None, "reason"))
    assert sglang.identity_of(floating, VDN).key16 == "051ddcd8cbd1de49"


def test_materializer_version_enters() -> None:
    """Another materializer version is another directory."""
    assert sglang.location_name(VDN_ENTRY, VDN, "v4") != sglang.location_name(VDN_ENTRY, VDN)


LORA = Entry(
    model="acme/wan-turbo",
    source=Pin("acme/wan", "1" * 40),
    overlay=None,
    overlay_fingerprint=None,
    needs=(Need(Pin("acme/lora", "2" * 40)),),
    recipe=Recipe(
        "lora",
        {"base": {"repo": "acme/wan", "path": "transformer"}, "adapters": [{"repo": "acme/lora", "path": ""}]},
    ),
    place=Place("registry.yaml", 1, 1),
)


def test_location_without_an_overlay_follows_pins_and_recipe() -> None:
    """Without an overlay the name is this project's own, moved by any pin or option and by nothing else."""
    name = sglang.location_name(LORA, None)
    document = (
        '{"needs": [["acme/lora", "' + "2" * 40 + '"]], "recipe": {"adapters": [{"path": "", "repo": "acme/lora"}], '
        '"base": {"path": "transformer", "repo": "acme/wan"}, "name": "lora"}, "source": ["acme/wan", "'
        + "1" * 40
        + '"]}'
    )
    assert name == f"acme__wan-turbo-{hashlib.sha256(document.encode()).hexdigest()[:16]}"
    assert sglang.location_name(replace(LORA, place=Place("elsewhere.yaml", 9, 3)), None) == name
    others = [
        replace(LORA, source=Pin("acme/wan", "3" * 40)),
        replace(LORA, needs=(Need(Pin("acme/lora", "3" * 40)),)),
        replace(LORA, needs=(Need(Pin("acme/lora", "2" * 40), ("x",)),)),
        replace(LORA, recipe=Recipe("lora", {**LORA.recipe.options, "adapters": []})),
    ]
    assert len({name, *(sglang.location_name(other, None) for other in others)}) == 5


def test_location_needs_the_fingerprint_of_an_overlay() -> None:
    """A caller that leaves the fingerprint out has a bug, and hears of it."""
    with pytest.raises(ValueError, match="fingerprint"):
        sglang.location_name(VDN_ENTRY, None)
    with pytest.raises(ValueError, match="no overlay"):
        sglang.identity_of(LORA, VDN)


def test_packaged_registry_agrees_with_the_built_in_table() -> None:
    """The packaged entries are the server's eight, at its commits."""
    entries = load_registry().entries
    assert entries.keys() == sglang.BUILT_IN.keys()
    for model, row in sglang.BUILT_IN.items():
        assert entries[model].overlay == Pin(row.overlay_repo_id, row.overlay_revision)
        if row.source_revision:
            assert entries[model].source == Pin(model, row.source_revision)


def test_local_overlay_is_in_the_key_as_it_was_spelled() -> None:
    """A folder is not normalised: ``./x`` and ``x`` are two directories to a server."""
    names = {
        sglang.location_name(replace(VDN_ENTRY, server=ServerSpec(spelling, LOCAL, None)), VDN)
        for spelling in ("./x", "x", "x/")
    }
    assert len(names) == 3
