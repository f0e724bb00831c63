"""The lock: writing what pins and builds were found to hold (``lock``), and holding builds and trees to it."""
