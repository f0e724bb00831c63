"""Taking what a server built itself: found, held against its inputs, linked into the cache."""

from __future__ import annotations
