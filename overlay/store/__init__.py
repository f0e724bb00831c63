"""A store that hosts share: what one of them built, the others fetch and prove.

Layout, below the URL that names it; nothing in it is ever changed::

    v1/chunks/<2 hex>/<sha256>              16 MiB of a file at most
    v1/objects/<algorithm>/<hex>.json       which chunks a file is made of
    v1/actions/<key>.json                   which file an action gave
    v1/trees/<tree>.json                    the record of a materialization, and the actions it is made of
    v1/models/<model>/<pins>/<location>.json    which tree a model is, as its registry pins it

Each is written after all that it names, so whatever can be read is whole. Nothing is believed: a chunk is held against
its name, a file against its digest, a tree against its record. Who may write to a store is trusted to be honest about
what a model's pins give; a lock (``registry.lock``) that expects an output takes even that trust away.
"""

from overlay.store.bucket import Bucket, open_bucket
from overlay.store.documents import StoredObject, StoredTree
from overlay.store.store import Store, open_store

__all__ = ["Bucket", "Store", "StoredObject", "StoredTree", "open_bucket", "open_store"]
