"""Keeping pins up to date: what moved upstream, which newer commits belong together, and what a new entry says."""
