"""The Hub's cache as a way of serving wants it: filled for a server that is given a name, or without the source."""

from __future__ import annotations
