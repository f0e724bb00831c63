"""The Hub's cache and settings as the client has them. Light: of the client, only its constants are imported."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from overlay.errors import InvalidUsage

try:
    from huggingface_hub import constants
except ValueError as error:
    raise InvalidUsage(
        f"a variable of the environment whose name begins with HF_ has no usable value: {error}",
        code="bad-environment",
        hint="unset it, or see the page on environment variables of huggingface_hub",
    ) from error

__all__ = ["BRANCH", "endpoint", "hub_cache", "is_offline", "storage_folder"]

BRANCH = "main"
"""The branch that a floating pin stands for."""


def hub_cache() -> Path:
    """The Hub's cache, whether it exists or not."""
    return Path(constants.HF_HUB_CACHE).expanduser().absolute()


def storage_folder(repo: str) -> Path:
    """The repo's folder in the Hub's cache, whether it exists or not."""
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` is set."""
    return constants.is_offline_mode()


def endpoint() -> str:
    """The endpoint in force, for messages: without user and password."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
