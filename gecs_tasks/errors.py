"""Every error that a user can cause.

::

    GecsError                 one line for the user; the command line prints it without a traceback
    |-- DataError             a benchmark file is missing, unreadable or not what it should be
    |   |-- RowError          one row of a file cannot be parsed
    |   `-- FetchError        no source delivered a file
    |-- DrawError             too few rows for the negatives or pools that the protocol draws
    |-- RequestError          the harness asked a scorer for something that it cannot answer
    |-- ModelError            a model cannot be loaded, or is not of the kind that the backend needs
    |   `-- EncodingError     a model or server gave no usable answer for some text
    |-- SettingError          a model argument, task setting or command-line argument is wrong
    `-- MissingExtraError     an optional dependency is needed and not installed
"""

from __future__ import annotations

from pathlib import Path


class GecsError(Exception):
    """Base of all errors that the user can mend; its text says what was found, what was expected and how to mend it."""


class DataError(GecsError):
    """A benchmark file is missing, unreadable or not what it should be."""


class RowError(DataError):
    """One row of a benchmark file cannot be parsed; nothing of the file is used."""

    def __init__(self, path: Path, line: int, found: str, mend: str) -> None:
        super().__init__(f"{path}, line {line}: {found}. {mend}")
        self.path = path
        self.line = line


class FetchError(DataError):
    """No source delivered a file."""


class DrawError(GecsError):
    """Too few rows for the negatives or pools that the protocol draws."""


class RequestError(GecsError):
    """The harness asked a scorer for something that it cannot answer."""


class ModelError(GecsError):
    """A model cannot be loaded, or is not of the kind that the backend needs."""


class EncodingError(ModelError):
    """A model or server gave no usable answer for some text; the message names the text."""


class SettingError(GecsError):
    """A model argument, task setting or command-line argument is wrong."""


class MissingExtraError(GecsError):
    """An optional dependency is needed and not installed."""

    def __init__(self, needed_by: str, package: str, install: str) -> None:
        super().__init__(f"{needed_by} needs {package}, which is not installed: pip install {install}")
