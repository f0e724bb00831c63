"""How servers are started: what is exported is what is built, and the text is taken as it is meant."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.registries import ENTRY, VDN, load_text, registry_text

from overlay.consumers import sglang
from overlay.consumers.launch import Start, by_name, by_path, exported, why_not_known
from overlay.consumers.launch_forms import FORMS, lines_of
from overlay.consumers.server import Server, parse_server
from overlay.errors import InvalidUsage
from overlay.registry import LOCAL, Entry, Launch, Pin, load_registry
from overlay.registry.variables import SGLANG_CACHE_ROOT, SGLANG_REGISTRY

pytestmark = pytest.mark.no_torch

FAMILIES = [(0, 5, 10), (0, 5, 12), (0, 5, 19), (0, 5, 21), (0, 5, 22), (0, 5, 23), (0, 6, 0)]
FINGERPRINT = "f" * 64
# Spaces, quotes of both kinds, what the shell, YAML and Kubernetes expand, text that is not ASCII.
HOSTILE = [
    "/a b",
    "/it's",
    '/"x"',
    "/$HOME/`id`",
    "/$(id)",
    "/$$x",
    "/{a,b}*?",
    "/#x",
    "/a\\b",
    "/-x",
    "/é/😀",
    "/~",
    "/a: b",
]


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Entry]:
    """The shipped models, and one of a project."""
    return dict(load_text(tmp_path, registry_text(ENTRY)).entries)


def start_of(path: str, **serve: Any) -> Start:
    """A start by name with this text wherever a path or a value is."""
    entry = Entry(
        VDN,
        Pin(VDN, "a" * 40),
        Pin(path, LOCAL),
        None,
        (),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        serve={"sglang": Launch(("--x", path), {"SGLANG_X": path}, **serve)},
    )
    server = Server("sglang", (0, 5, 23), with_override=True)
    return by_name(entry, server, path, [], Path(path, "cache"), Path(path, "hub"))


@pytest.mark.parametrize("version", FAMILIES)
def test_what_is_exported_is_what_is_built(entries: dict[str, Entry], tmp_path: Path, version: Any) -> None:
    """Read back as a server's variable, the export names the directory that --with-override builds: each release."""
    known = [entry for entry in entries.values() if entry.overlay]
    assert len(known) == 9
    for entry in known:
        told = load_registry(tmp_path / "mine.yaml", environ={SGLANG_REGISTRY: exported(entry)}, cwd=tmp_path).entries[
            entry.model
        ]
        assert told.server is not None
        as_started = sglang.for_server(told, Server("sglang", version))
        as_built = sglang.for_server(entry, Server("sglang", version, with_override=True))
        assert sglang.location_name(as_started, FINGERPRINT, "v3") == sglang.location_name(as_built, FINGERPRINT, "v3")


def test_the_override_changes_the_directory_where_it_says_more(entries: dict[str, Entry]) -> None:
    """The vectors of the release: without the override the table's, with it the source's commit enters (0.5.22 on)."""
    entry = entries[VDN]
    names = {
        with_override: sglang.location_name(
            sglang.for_server(entry, Server("sglang", (0, 5, 23), with_override)), entry.overlay_fingerprint
        )
        for with_override in (False, True)
    }
    assert names[False] == "OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c"
    assert names[True] != names[False]
    assert json.loads(exported(entry))[VDN]["source_revision"] == entry.source.revision


def test_floating_pins_and_folders_are_exported_as_the_server_takes_them(
    entries: dict[str, Entry], tmp_path: Path
) -> None:
    """A floating overlay is main and a floating source is left out; an overlay folder stays where it is."""
    entry = entries["acme/model"]
    floating = replace(entry, overlay=Pin("acme/overlay", None, "why"), source=Pin("acme/model", None, "why"))
    assert json.loads(exported(floating)) == {
        "acme/model": {"overlay_repo_id": "acme/overlay", "overlay_revision": "main"}
    }
    folder = replace(entry, overlay=Pin(str(tmp_path), LOCAL))
    told = load_registry(tmp_path / "mine.yaml", environ={SGLANG_REGISTRY: exported(folder)}, cwd=tmp_path).entries[
        "acme/model"
    ]
    assert told.overlay == folder.overlay
    assert told.server is not None
    assert (told.server.overlay_repo_id, told.server.overlay_revision) == (str(tmp_path), LOCAL)


def test_by_path_asks_for_nothing(entries: dict[str, Entry]) -> None:
    """The directory and the flags of the model; of variables, only that the Hub is left alone."""
    start = by_path(entries[VDN], Server("sglang"), Path("/c/.overlay/trees/t"), Path("/c"))
    assert shlex.join(start.command) == (
        "sglang serve --model-path /c/.overlay/trees/t --attention-backend hybrid_window_attn_h3"
    )
    assert start.env == {"HF_HUB_OFFLINE": "1"}
    assert start.folders == ("/c",)


@pytest.mark.parametrize(
    ("server", "steps"),
    [("sglang==0.5.20", 9), ("sglang==0.5.21", 9), ("sglang==0.5.22", 8), ("sglang", 8), ("vllm-omni", 8)],
)
def test_steps_are_counted_as_the_release_does(entries: dict[str, Entry], server: str, steps: int) -> None:
    """Nine grid points are nine steps to releases that count points, and eight to those that count evaluations."""
    entry = replace(entries[VDN], serve=dict.fromkeys(("sglang", "vllm-omni"), Launch(grid_points=9)))
    start = by_path(entry, parse_server(server), Path("/c/t"), Path("/c"))
    assert (start.request, start.grid_points) == ({"num_inference_steps": steps}, 9)
    assert f"# in each request: num_inference_steps {steps} (9 grid points)" in lines_of(start, "shell")


def test_a_model_without_launch_data(entries: dict[str, Entry]) -> None:
    """Nothing is invented: no flag, no request, and no comment on it."""
    start = by_path(entries["acme/model"], Server("vllm-omni"), Path("/c/t"), Path("/c"))
    assert start.command == ("vllm-omni", "serve", "/c/t", "--omni")
    assert len(lines_of(start, "shell")) == 2


def test_by_name_tells_where_and_what(entries: dict[str, Entry]) -> None:
    """The cache root, the Hub's cache, and with an override the pins; no variable of the entry replaces one."""
    entry = replace(entries[VDN], serve={"sglang": Launch(env={"HF_HUB_OFFLINE": "0", "NCCL_DEBUG": "INFO"})})
    plain, told = (
        by_name(entry, Server("sglang", None, override), VDN, [Path("/h/src")], Path("/c"), Path("/h"))
        for override in (False, True)
    )
    assert plain.command[-1] == VDN
    assert plain.env == {"NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/h", SGLANG_CACHE_ROOT: "/c"}
    assert told.env == {**plain.env, SGLANG_REGISTRY: exported(entry)}
    assert plain.folders == ("/c", "/h")  # the source lies in the Hub's cache


def test_a_request_has_values_as_the_server_takes_them(entries: dict[str, Entry]) -> None:
    """A registry has text alone; numbers and truth values are none to a server, and other text stays as it is."""
    said = {"a": "5", "b": "1.50", "c": "true", "d": "1e3", "e": "007", "f": "NaN", "g": "-0.5", "h": "x"}
    entry = replace(entries[VDN], serve={"sglang": Launch(request=said)})
    found = by_path(entry, Server("sglang"), Path("/c/t"), Path("/c"))
    assert found.request == {**said, "a": 5, "b": 1.5, "c": True, "g": -0.5}
    assert lines_of(found, "shell")[1] == "# in each request: a 5, b 1.5, c true, d 1e3, e 007, f NaN, g -0.5, h x"


@pytest.mark.parametrize("path", HOSTILE)
def test_shell_takes_it_as_it_is_meant(path: str, tmp_path: Path) -> None:
    """eval in sh runs the very words with the very values, whatever stands in them; the command is the last line."""
    start = start_of(path, grid_points=9, request={"prompt": "$(id) `id` 'x'"})
    probe = tmp_path / "sglang"
    probe.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n")
    probe.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", 'eval "$TEXT"'],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TEXT": "\n".join(lines_of(start, "shell")) + " more"},
        capture_output=True,
        text=True,
        check=True,
    )
    words, environ = json.loads(done.stdout)
    assert words == [*start.command[1:], "more"]
    assert {name: environ[name] for name in start.env} == start.env


@pytest.mark.parametrize("path", [path for path in HOSTILE if ":" not in path])
def test_docker_takes_it_as_it_is_meant(path: str) -> None:
    """Mounts, read-only and under their own paths, variables, image and command come out as they went in."""
    start = start_of(path)
    *_, line = lines_of(start, "docker")
    words = shlex.split(line)
    pairs = list(pairwise(words))
    assert [value for flag, value in pairs if flag == "-v"] == [f"{folder}:{folder}:ro" for folder in start.folders]
    assert [value for flag, value in pairs if flag == "-e"] == [f"{name}={value}" for name, value in start.env.items()]
    image = words.index(start.image)
    assert words[image - 1 : image] + words[image + 1 :] == list(start.command)


def kubernetes(text: str) -> str:
    """A value as the kubelet hands it on, where no variable is named in it: its expansion, written down plainly."""
    found, at = "", 0
    while at < len(text):
        if text[at : at + 2] == "$$":
            found, at = found + "$", at + 2
        elif text[at : at + 2] == "$(":
            raise AssertionError(f"{text} names a variable")
        else:
            found, at = found + text[at], at + 1
    return found


@pytest.mark.parametrize("path", HOSTILE)
def test_kubernetes_takes_it_as_it_is_meant(path: str) -> None:
    """Parsed by the YAML library and expanded as the kubelet does, the fragment has what the start says."""
    start = start_of(path, grid_points=9)
    pod = YAML(typ="safe", pure=True).load("\n".join(lines_of(start, "k8s")))
    [container] = pod["containers"]
    assert (container["name"], container["image"]) == ("sglang", "lmsysorg/sglang:v0.5.23")
    assert container["command"] + [kubernetes(word) for word in container["args"]] == list(start.command)
    assert {item["name"]: kubernetes(item["value"]) for item in container["env"]} == start.env
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    [memory, *volumes], [shared, *mounts] = pod["volumes"], container["volumeMounts"]
    assert memory == {"name": shared["name"], "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}
    assert shared["mountPath"] == "/dev/shm"  # noqa: S108  # of a container
    places = {item["name"]: item["mountPath"] for item in mounts}
    assert {item["name"]: item["hostPath"]["path"] for item in volumes} == places
    assert tuple(places.values()) == start.folders
    assert all(item["readOnly"] is True for item in mounts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", ["/a\nb", "/a\rb", "/a\x1b[31m", "/a\udcff", "/a\u2028b"])
def test_what_no_line_can_hold_is_refused(path: str, form: Any) -> None:
    """A path with a line break, an escape or bytes that are no text is named and not printed."""
    with pytest.raises(InvalidUsage) as caught:
        lines_of(start_of(path), form)
    assert caught.value.code == "not-nameable"
    assert str(caught.value).isprintable()


def test_docker_cannot_mount_a_colon() -> None:
    """docker -v splits at colons, so such a folder is refused and not mounted elsewhere."""
    with pytest.raises(InvalidUsage, match="colon"):
        lines_of(start_of("/a:b"), "docker")


@pytest.mark.parametrize("form", ["docker", "k8s"])
def test_a_container_has_another_working_directory(form: Any) -> None:
    """A relative folder is refused where it would be another one."""
    with pytest.raises(InvalidUsage, match="relative"):
        lines_of(start_of("./overlay"), form)


def test_vllm_omni_is_given_a_partition(entries: dict[str, Entry], tmp_path: Path) -> None:
    """In the native layout the model is a folder of the tree; sglang, and any other layout, get the tree."""
    for name in ("Ref2VA", "FL2VA"):
        (tmp_path / name).mkdir()
    entry = entries["acme/model"]
    assert by_path(entry, Server("vllm-omni"), tmp_path, tmp_path).command[2] == str(tmp_path)
    (tmp_path / "Ref2VA/model_index.json").touch()
    assert by_path(entry, Server("vllm-omni"), tmp_path, tmp_path).command[2] == str(tmp_path / "Ref2VA")
    (tmp_path / "FL2VA/model_index.json").touch()
    assert by_path(entry, Server("vllm-omni"), tmp_path, tmp_path).command[2] == str(tmp_path / "FL2VA")
    assert by_path(entry, Server("sglang"), tmp_path, tmp_path).command[3] == str(tmp_path)


def test_the_pod_of_the_page_is_started_likewise(entries: dict[str, Entry]) -> None:
    """One claim under one path, which the server only reads, and the flags of the model."""
    page = (Path(__file__).parents[2] / "docs/how-to/pre-warm-in-a-container.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    spec = YAML(typ="safe", pure=True).load(text)["spec"]
    [first], [server] = spec["initContainers"], spec["containers"]
    [filled], [read, _] = first["volumeMounts"], server["volumeMounts"]
    assert read == {**filled, "readOnly": True}
    assert {volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume} == {filled["name"]}
    assert all(place["value"].startswith(f"{filled['mountPath']}/") for place in first["env"])
    written = f"{filled['mountPath']}/vdn-h3.path"
    assert first["args"][0].endswith(f" > {written}")
    assert f"$(cat {written})" in server["args"][0]
    assert " ".join(entries[VDN].serve["sglang"].flags) in server["args"][0]


@pytest.mark.parametrize("release", ["==0.30.1", "==0.12"])
def test_a_vllm_omni_that_nobody_looked_at(release: str) -> None:
    """Older and newer releases are taken to behave as the one that is known, and that is said."""
    assert "taken to behave as 0.30.0" in str(why_not_known(parse_server(f"vllm-omni{release}")))
    assert why_not_known(parse_server("vllm-omni==0.30")) is why_not_known(parse_server("vllm-omni")) is None
