"""Resolve, check, fuse and prove model overlays."""

__version__ = "0.1.0"
