"""Where bytes come from: the Hub through its own client, or folders of this host in its place.

Importing this package imports nothing of the network; neither does reading what is cached and pinned.
"""

from __future__ import annotations

from overlay.hub.check import check_digests
from overlay.hub.folder import FolderRepo
from overlay.hub.hub_repo import HubRepo
from overlay.hub.inventory import Inventory, open_repo, take_inventory
from overlay.hub.repo import Progress, Repo
from overlay.hub.traffic import Traffic

__all__ = [
    "FolderRepo",
    "HubRepo",
    "Inventory",
    "Progress",
    "Repo",
    "Traffic",
    "check_digests",
    "open_repo",
    "take_inventory",
]
