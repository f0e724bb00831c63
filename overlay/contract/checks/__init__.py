"""The checks: each yields what it finds, and leaves to the others what they say."""
