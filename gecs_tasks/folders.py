"""Folders that files will be written to later."""

from __future__ import annotations

import tempfile
from pathlib import Path


def make_writable(folder: Path) -> None:
    """Make a folder where it does not exist and write to it once, so that a wrong one is an error before it is needed.

    :raises OSError: where it cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
