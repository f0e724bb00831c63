"""``python -m overlay``."""

from __future__ import annotations

from overlay.cli import main

if __name__ == "__main__":
    main()
