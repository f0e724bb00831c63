"""The contract: what an overlay needs to hold of its inputs, checked from metadata, headers and small files alone."""
