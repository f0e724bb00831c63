"""Formats: safetensors headers and layouts, checkpoints, model indexes, overlay manifests. No torch, no network."""
