"""Small checkpoints in the published layout, for the demo, for tests and for trying the program out."""
