"""What a given runtime expects on disk."""
