"""What goes wrong between this program and the Hub, each with its own message, status and next step."""

from __future__ import annotations

import errno
import os
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub.file_download
import pytest
from hub_server import HubServer
from huggingface_hub import constants
from support.hubs import client_of, commit

from overlay.errors import CannotWrite, InvalidUsage, OverlayError, Refused, TryAgain
from overlay.hub import client, patience

if TYPE_CHECKING:
    from conftest import World

pytestmark = pytest.mark.no_torch

ONE = "unet/one.safetensors"
TOKEN = "hf_SECRETsecretSECRET"  # noqa: S105  # of a server of this test


def failure(world: World, *paths: str) -> OverlayError:
    """What opening the repo and fetching files raises."""
    with pytest.raises(OverlayError) as caught:
        world.open().fetch(paths, None)
    return caught.value


def everything_said(error: BaseException) -> str:
    """All text that anyone might print of an error, its causes included."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        parts += [str(cause), repr(cause), repr(getattr(cause, "hint", "")), repr(getattr(cause, "data", ""))]
        cause = cause.__cause__ or cause.__context__
    return "\n".join(parts)


def as_private(world: World) -> None:
    world.server.token = "hf_another"  # noqa: S105  # of a server of this test


def as_gated(world: World) -> None:
    world.server.gated = frozenset({"org/base"})


def as_missing(world: World) -> None:
    (world.hub / "org/base").rename(world.hub / "org/gone")


@pytest.mark.parametrize(
    ("prepare", "token", "code", "says", "hint"),
    [
        (as_private, None, "token-needed", r"without a token \(401\)", r"hf auth login, or set HF_TOKEN"),
        (as_private, TOKEN, "token-rejected", r"rejects the token \(401\)", r"hf auth whoami"),
        (as_gated, TOKEN, "gated", r"has not been let in \(403\)", r"accept the terms at http://\S+/org/base$"),
        (as_gated, None, "gated", r"no token was sent \(401\)", r"terms at http://\S+/org/base, then log in"),
        (as_missing, TOKEN, "repo-not-found", r"none that the token may see \(404\)", r"check the name"),
        (as_missing, None, "repo-not-found", r"none that everybody may see \(404\)", r"if it is private"),
    ],
)
def test_h26_refusals_are_told_apart(  # a table
    world: World, monkeypatch: pytest.MonkeyPatch, prepare: Any, token: str | None, code: str, says: str, hint: str
) -> None:
    """No token, a bad one, terms not accepted, no such repo: four messages, each with its own next step."""
    prepare(world)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)

    error = failure(world, ONE)

    assert isinstance(error, Refused)
    assert error.exit_status == 6
    assert error.code == code
    assert error.message.startswith("org/base@aaaaaaaaaaaa: ")
    assert re.search(says, error.message)
    assert re.search(hint, error.hint or "")
    assert error.data["endpoint"] == world.server.url
    assert TOKEN not in everything_said(error)
    assert pickle.loads(pickle.dumps(error)).data == error.data  # noqa: S301  # made here


@pytest.mark.parametrize("faulty", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("status", "options", "kind", "code"),
    [
        (401, {}, Refused, "token-needed"),
        (403, {}, Refused, "forbidden"),
        (403, {"code": "GatedRepo"}, Refused, "gated"),
        (404, {"code": "EntryNotFound"}, Refused, "no-such-file"),
        (404, {"code": "RevisionNotFound"}, Refused, "vanished-commit"),
        (404, {}, Refused, "hub-refused"),
        (451, {}, Refused, "hub-refused"),
        (403, {"message": "Access to this resource is disabled."}, Refused, "repo-disabled"),
        (429, {"retry_after": 7}, TryAgain, "rate-limited"),
        (408, {}, TryAgain, "hub-unavailable"),
        (500, {}, TryAgain, "hub-unavailable"),
        (503, {}, TryAgain, "hub-unavailable"),
    ],
)
def test_a_status_while_downloading_has_its_class(  # a table
    world: World, faulty: str, status: int, options: dict[str, Any], kind: type[OverlayError], code: str
) -> None:
    """What may pass later is told from what is final; the file is named, nothing is left behind."""
    world.server.fault(method=faulty, path=f"*{ONE}", status=status, **options)

    error = failure(world, ONE)

    assert (type(error), error.code) == (kind, code)
    assert error.message.startswith(f"org/base@aaaaaaaaaaaa/{ONE}: ")
    assert error.data["status"] == status
    assert not list(world.cache.rglob("*.incomplete"))
    if status == 429:
        assert "wait 7 seconds" in (error.hint or "")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_short_trouble_is_waited_out(world: World, status: int) -> None:
    """The listing, a look at a header and a download all survive two bad answers."""
    world.server.fault(path="*/tree/*", status=status, times=2)
    world.server.fault(method="HEAD", path=f"*{ONE}", status=status, times=2)
    world.server.fault(method="GET", path="*two.safetensors", status=status, times=2)

    repo = world.open()
    repo.header("unet/two.safetensors")

    assert repo.fetch([ONE], None)[ONE].stat().st_size == repo.size(ONE)


def test_a_hub_in_trouble_is_not_waited_for_by_each_repo(world: World) -> None:
    """After all tries of one question in vain, the next ones are asked once; the first answer ends that."""
    fault = world.server.fault(status=500)
    asked = []
    for _ in range(3):
        world.server.forget()
        assert failure(world).code == "hub-unavailable"
        asked.append(len(world.server.asked()))
    assert asked == [6, 1, 1]

    fault.times = 0
    world.open()
    world.server.forget()
    fault.times = 2

    world.open(revision=None)
    assert len(world.server.asked()) == 3


@pytest.mark.parametrize("other_host", [True, False])
def test_h27_a_mirror_without_the_commit_header_is_named(world: World, *, other_host: bool) -> None:
    """The message names the endpoint, the variable and the header; it does not blame the connection."""
    if other_host:
        world.server.fault(method="HEAD", path="*/resolve/*", redirect="http://localhost:1")
    else:
        world.server.fault(method="HEAD", path="*/resolve/*", no_commit=True)

    error = failure(world, ONE)

    assert isinstance(error, Refused)
    assert f"HF_ENDPOINT={world.server.url}" in error.message
    assert "X-Repo-Commit" in error.message
    assert error.data["header"] == "X-Repo-Commit"
    assert "your connection works" in (error.hint or "")


def test_a_listing_that_is_redirected_away_is_followed(world: World) -> None:
    """A mirror may send API calls on to the host that it mirrors."""
    world.server.fault(path="/api/*", redirect=world.server.url, times=1)

    assert len(world.open().paths()) == 5


def test_a_refused_connection_names_the_endpoint(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Nobody listens there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with client_of(url, monkeypatch, world.cache):
            error = failure(world)

    assert (type(error), error.code) == (TryAgain, "no-connection")
    assert f"HF_ENDPOINT={url}" in error.message
    assert "--offline" in (error.hint or "")


def test_a_name_that_does_not_resolve_is_told_from_a_refusal(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """The host is named."""

    def nowhere(*_args: Any, **_options: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with client_of("http://hub.invalid", monkeypatch, world.cache):
        error = failure(world)

    assert (type(error), error.code) == (TryAgain, "name-not-resolved")
    assert "the name hub.invalid of HF_ENDPOINT=http://hub.invalid" in error.message


def test_an_endpoint_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """The listing has a time limit, the client's own variable."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    world.server.fault(delay=0.5)

    error = failure(world)

    assert (type(error), error.code) == (TryAgain, "timeout")
    assert "HF_HUB_DOWNLOAD_TIMEOUT" in (error.hint or "")


@pytest.mark.parametrize("url", ["hub.example", "htp://hub.example", "http://"])
def test_an_endpoint_that_is_no_address_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, world: World, url: str
) -> None:
    """Not a network problem, so not worth trying again."""
    with client_of(url, monkeypatch, world.cache):
        error = failure(world)

    assert (type(error), error.code) == (InvalidUsage, "bad-endpoint")


def test_a_body_that_always_ends_early_is_a_lost_connection(world: World) -> None:
    """After its tries the client gives up; nothing half is left."""
    world.server.fault(method="GET", path=f"*{ONE}", drop_after=20)

    error = failure(world, ONE)

    assert (type(error), error.code) == (TryAgain, "connection-lost")
    assert not list(world.cache.rglob("*.incomplete"))
    assert world.open().local(ONE) is None


def test_a_connection_lost_while_reading_a_header_is_transient(world: World) -> None:
    """Looks at headers are tried again a few times, then fail in the same way."""
    fault = world.server.fault(method="GET", path=f"*{ONE}", drop_after=20, times=patience.RETRIES)
    assert list(world.open().header(ONE).tensors) == ["a"]

    fault.times = None
    with pytest.raises(TryAgain) as caught:
        world.open().header(ONE)
    assert caught.value.code == "connection-lost"


def test_a_full_disk_says_which_variable_moves_the_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room while downloading: exit status 4, the cache and HF_HOME named, no leftovers."""

    def no_room(_url: str, file: Any, **_options: Any) -> None:
        file.write(b"some")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub.file_download, "http_get", no_room)

    error = failure(world, ONE)

    assert (type(error), error.code, error.exit_status) == (CannotWrite, "no-room", 4)
    assert str(world.cache) in error.message
    assert "HF_HOME" in (error.hint or "")
    assert not list(world.cache.rglob("*.incomplete"))


def test_a_home_that_is_a_file_is_named(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HOME that is a file: exit status 4 and the variable, from the token as from the cache."""
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    of_token = failure(world, ONE)
    monkeypatch.undo()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))
    of_cache = failure(world, ONE)

    for error in (of_token, of_cache):
        assert (type(error), error.code) == (CannotWrite, "not-a-folder")
        assert str(home) in error.message
        assert "HF_HOME" in (error.hint or "")


def test_a_token_file_that_may_not_be_read_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no bug, and no reason to go on without the token."""

    def refuse() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), constants.HF_TOKEN_PATH)

    monkeypatch.setattr("overlay.hub.explain.get_token", refuse)

    error = failure(world, ONE)

    assert (type(error), error.code) == (Refused, "unreadable")
    assert error.message.startswith(constants.HF_TOKEN_PATH)


PROGRAM = f"""
import ctypes, os, sys
if os.geteuid() == 0 and "again" not in sys.argv:
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE: root without its right to write all
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
from overlay.errors import CannotWrite
from overlay.fingerprint import DigestMemo
from overlay.hub import HubRepo
from overlay.registry import Pin
repo = HubRepo(Pin("org/base", {commit("a")!r}), offline=False, memo=DigestMemo(None))
try:
    print(repo.fetch(["README.md"], None)["README.md"])
except CannotWrite as error:
    print(error.code, error.message, error.hint)
"""


def said_by_another_process(folder: Path, environ: dict[str, str]) -> str:
    """What a process with only this environment prints of fetching a file."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout


def test_a_cache_that_may_not_be_written_is_named(world: World, tmp_path: Path) -> None:
    """Exit status 4; the place, the cache and HF_HOME are named. The listing, which only saves work, is no obstacle."""
    world.cache.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(world.cache, 65534, 65534)
    world.cache.chmod(0o555)

    said = said_by_another_process(tmp_path, {"HF_ENDPOINT": world.server.url, "HF_HUB_CACHE": str(world.cache)})

    assert said.startswith("not-permitted org/base@aaaaaaaaaaaa/README.md: ")
    assert f"the Hub's cache {world.cache}" in said
    assert "HF_HOME" in said


@pytest.mark.parametrize("token", ["hf_secr\x00et", "hf_sécret", "hf_secret\tx"])
def test_a_token_that_no_header_can_carry_is_not_printed(world: World, token: str) -> None:
    """The network library would quote it; it is refused before that."""
    Path(constants.HF_TOKEN_PATH).parent.mkdir(parents=True, exist_ok=True)
    Path(constants.HF_TOKEN_PATH).write_text(token, encoding="utf-8")

    error = failure(world)

    assert (type(error), error.code) == (InvalidUsage, "bad-token")
    assert "secr" not in everything_said(error)
    assert not world.server.asked()


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 401},
        {"status": 403},
        {"status": 429},
        {"status": 500},
        {"redirect": "http://localhost:1"},
        {"drop_after": 5},
        {"status": 401, "message": "Invalid credentials in Authorization header"},
    ],
)
def test_h26_the_token_is_in_no_message(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: dict[str, Any]
) -> None:
    """Whatever fails, neither the error, nor its causes, nor what the client prints shows the token."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    world.server.fault(path="*one.safetensors", **fault)

    error = failure(world, ONE)

    assert TOKEN not in everything_said(error)
    assert TOKEN not in "".join(capfd.readouterr())
    assert all(request.authorized for request in world.server.asked())


def test_user_and_password_of_the_endpoint_are_not_printed(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """A mirror's password may stand in HF_ENDPOINT."""
    world.server.fault(status=404)
    url = world.server.url.replace("://", "://me:pa55word@")
    with client_of(url, monkeypatch, world.cache):
        error = failure(world)

    assert "pa55word" not in f"{error.message} {error.hint} {error.data}"
    assert f"HF_ENDPOINT={world.server.url}" in error.message


def test_a_bug_in_the_client_stays_what_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nothing here knows is not dressed up as a network error."""

    def broken(*_args: Any, **_options: Any) -> None:
        raise TypeError("bug")

    monkeypatch.setattr(client, "hf_hub_download", broken)

    with pytest.raises(TypeError, match="bug"):
        world.open().fetch([ONE], None)


def test_the_environment_is_read_by_the_client(world: World, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_TOKEN and HF_HOME work as for any other user of the library."""
    with HubServer(world.hub, token=TOKEN) as server:
        environ = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
        said = said_by_another_process(tmp_path, environ)

    assert said.startswith(str(tmp_path / "home" / "hub" / "models--org--base" / "blobs"))
    assert all(request.authorized for request in server.asked())
