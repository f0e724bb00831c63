"""Fingerprints: digests of content, always written ``algorithm:hex``."""
