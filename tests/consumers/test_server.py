"""What a user names as a server, and what that server is told of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlay.consumers import sglang
from overlay.consumers.server import Server, parse_server
from overlay.errors import InvalidUsage
from overlay.registry import Entry, Pin, Place, Recipe, ServerSpec, load_registry

pytestmark = pytest.mark.no_torch

VDN = "41b00cecdf03a3951ae8b491999ee5037e9c9455fb5e6e503755dcece0af1c5d"


def vdn(server: Server | None) -> sglang.Identity:
    """The packaged VDN-H3 entry as a server takes it."""
    entry = load_registry().entries["OpenVDN/vdn-minimax-h3"]
    return sglang.identity_of(sglang.for_server(entry, server), VDN)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("sglang", Server("sglang")),
        ("sglang==0.5.22", Server("sglang", (0, 5, 22))),
        ("sglang==0.5.15.post1", Server("sglang", (0, 5, 15))),
        (" vllm-omni==0.30.0 ", Server("vllm-omni", (0, 30, 0))),
        ("vllm-omni==0.30", Server("vllm-omni", (0, 30, 0))),
    ],
)
def test_servers_are_named_as_requirements_are(text: str, server: Server) -> None:
    """A name, with == and a version or without."""
    assert parse_server(text) == server


@pytest.mark.parametrize("text", ["", "sglang=0.5.22", "sglang>=0.5", "vllm"])
def test_what_is_no_server_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidUsage, match="no server"):
        parse_server(text)


@pytest.mark.parametrize("text", ["sglang==", "sglang==main", "sglang==5", "sglang==0.5.23rc1", "sglang==0.5.2.3"])
def test_what_is_no_release_is_refused(text: str) -> None:
    """The message says what one looks like."""
    with pytest.raises(InvalidUsage, match=r"no release of sglang; expected sglang==X\.Y\.Z"):
        parse_server(text)


@pytest.mark.parametrize(
    ("version", "key"),
    [
        ((0, 5, 10), "239d3a4cb72ad080"),
        ((0, 5, 12), "e541eaf4b41d4e5c"),
        ((0, 5, 20), "e541eaf4b41d4e5c"),
        ((0, 5, 21), "e541eaf4b41d4e5c"),
        ((0, 5, 22), "e541eaf4b41d4e5c"),
        ((0, 5, 23), "e541eaf4b41d4e5c"),
        ((0, 6, 0), "e541eaf4b41d4e5c"),
        (None, "e541eaf4b41d4e5c"),
    ],
)
def test_key_by_release(version: tuple[int, int, int] | None, key: str) -> None:
    """The first release hashed four fields; later ones the fingerprint too."""
    assert vdn(Server("sglang", version)).key16 == key


def test_override_brings_the_source_pin_into_the_key_where_the_release_hashes_it() -> None:
    """The same exported registry is another directory from 0.5.22 on."""
    entry = load_registry().entries["OpenVDN/vdn-minimax-h3"]
    entry = replace(entry, source=Pin(entry.source.repo, "ec875b5bde3832ff72511b079c70ea18b277c339"))
    for version, key in [((0, 5, 21), "e541eaf4b41d4e5c"), ((0, 5, 23), "56cb2edd7eda552c")]:
        told = sglang.for_server(entry, Server("sglang", version, with_override=True))
        assert sglang.identity_of(told, VDN).key16 == key


def test_releases_without_overlays_are_refused() -> None:
    """Before 0.5.10 there is nothing to warm."""
    with pytest.raises(InvalidUsage, match=r"0\.5\.10"):
        vdn(Server("sglang", (0, 5, 9)))


def test_what_a_variable_told_the_server_stays() -> None:
    """A release changes how the key is made, not what the server was told."""
    entry = Entry(
        model="org/src",
        source=Pin("org/src", "b" * 40),
        overlay=Pin("org/ov", "a" * 40),
        overlay_fingerprint=None,
        needs=(),
        recipe=Recipe("mappings", {}),
        place=Place("registry.yaml", 1, 1),
        server=ServerSpec("org/ov", "main", None),
    )
    told = sglang.for_server(entry, Server("sglang", (0, 5, 22)))
    assert told.server == ServerSpec("org/ov", "main", None, (0, 5, 22))


def test_markers_have_the_fields_of_their_release() -> None:
    """``source_revision`` came with 0.5.22, the fingerprint with 0.5.11."""
    markers = {
        v: sglang.marker_bytes(vdn(Server("sglang", v)), "s").decode() for v in [(0, 5, 10), (0, 5, 21), (0, 5, 22)]
    }
    assert "overlay_fingerprint" not in markers[0, 5, 10]
    assert "source_revision" not in markers[0, 5, 21]
    assert '"source_revision": null' in markers[0, 5, 22]


def test_built_in_tables_change_between_releases() -> None:
    """VDN-H3 came with 0.5.20, JoyAI-Echo's source pin with 0.5.22, the 4-step preview went with it."""
    assert "OpenVDN/vdn-minimax-h3" not in sglang.built_in((0, 5, 19))
    assert sglang.built_in((0, 5, 21))["jdopensource/JoyAI-Echo"].source_revision is None
    assert sglang.built_in((0, 5, 22))["jdopensource/JoyAI-Echo"].source_revision is not None
    assert len(sglang.built_in((0, 5, 20))) == 6
    assert len(sglang.built_in((0, 5, 22))) == 6
    assert len(sglang.BUILT_IN) == 8
    assert sglang.built_in((0, 5, 10)) == {}
