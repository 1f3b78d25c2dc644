"""Downloads from the benchmark's Zenodo record, verified against the record's own checksums."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gecs_tasks.benchmark import DOI
from gecs_tasks.errors import FetchError

if TYPE_CHECKING:
    import requests

logger = logging.getLogger(__name__)

# Seconds to connect, and seconds without a byte, after which a server counts as hanging.
TIMEOUT: tuple[float, float] = (10.0, 30.0)
# Further attempts after a broken or corrupt download; a hanging server or a refusal is not asked again.
RETRIES: int = 2
_CHUNK: Final = 65536


def download(filename: str, folder: Path, *, progress: bool = False) -> str:
    """Download one file of the record into a folder and hold it against the record's checksum.

    :param filename: the file's name in the record.
    :param folder: an existing folder of this download's own: an interrupted download leaves its remains there.
    :param progress: whether to show a progress bar on stderr.
    :return: the record's checksum, which the file matches, e.g. ``md5:9e107d9d372bb6826bd81d3542a419d6``.
    :raises FetchError: where the record cannot be read, does not list the file, or its download fails or differs
        from the checksum; the message is one clause that names the cause.
    :raises OSError: where the folder cannot be written.
    """
    # Here, and not above: only a download needs them, and they cost every start 0.1 s.
    import pooch
    import requests

    with _quiet(pooch.get_logger()):
        try:
            registry = pooch.create(path=folder, base_url=f"doi:{DOI}/", retry_if_failed=RETRIES)
            registry.urls[filename] = _register(filename, registry)
            logger.info("downloading %s from %s", filename, registry.urls[filename])
            registry.fetch(filename, downloader=_downloader(progress))
        except requests.RequestException as error:
            raise FetchError(_reason(error)) from error
        except OSError as error:
            # Without a number it is not the file system's, but requests' on its settings, say a missing CA bundle.
            if error.errno is None:
                raise FetchError(str(error)) from error
            raise
        except ValueError as error:
            # pooch's word for a file that differs from its checksum; its first sentence holds both digests.
            raise FetchError(str(error).split(" Deleted ")[0].strip(" .")) from error
    return str(registry.registry[filename])


def _register(filename: str, registry: Any) -> str:
    """Enter the record's files and checksums into pooch's registry and return the file's download address."""
    from pooch.downloaders import REQUESTS_HEADERS, doi_to_repository

    try:
        # The hook, because pooch reads the record's answer whatever its status.
        repository = doi_to_repository(
            DOI, headers=REQUESTS_HEADERS, timeout=TIMEOUT, hooks={"response": _raise_for_status}
        )
        repository.populate_registry(registry)
    except (AttributeError, KeyError, TypeError) as error:
        raise FetchError("the record's answer holds no list of files") from error
    if filename not in registry.registry:
        listed = ", ".join(sorted(registry.registry)) or "nothing"
        raise FetchError(f"the record does not hold {filename}; it lists {listed}")
    return str(repository.download_url(filename))


def _downloader(progress: bool) -> Callable[[str, str, Any], None]:
    """A pooch downloader that lets pooch try again only where that may help."""
    import requests
    from pooch.downloaders import REQUESTS_HEADERS, HTTPDownloader

    http = HTTPDownloader(progressbar=progress, chunk_size=_CHUNK, headers=REQUESTS_HEADERS, timeout=TIMEOUT)

    def attempt(url: str, output_file: str, registry: Any) -> None:
        try:
            http(url, output_file, registry)
        except requests.RequestException as error:
            if _timed_out(error) or _refused(error):
                raise FetchError(_reason(error)) from error
            logger.info("download broken: %s", _reason(error))
            raise

    return attempt


def _raise_for_status(response: requests.Response, *_args: object, **_kwargs: object) -> None:
    response.raise_for_status()


def _timed_out(error: requests.RequestException) -> bool:
    import requests
    from urllib3.exceptions import ReadTimeoutError

    # A server that stops in the middle of a body is a ConnectionError that holds urllib3's timeout.
    return isinstance(error, requests.Timeout) or any(isinstance(cause, ReadTimeoutError) for cause in error.args)


def _refused(error: requests.RequestException) -> bool:
    return error.response is not None and 400 <= error.response.status_code < 500


def _reason(error: requests.RequestException) -> str:
    """What went wrong, as one clause."""
    import requests

    host = urlsplit(str(error.request.url)).netloc if error.request is not None else "the server"
    if error.response is not None and error.response.status_code >= 400:
        return f"HTTP status {error.response.status_code} ({error.response.reason}) from {host}"
    if isinstance(error, requests.ConnectTimeout):
        return f"timeout, no connection to {host} within {TIMEOUT[0]:g} s"
    if _timed_out(error):
        return f"timeout, nothing from {host} for {TIMEOUT[1]:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the download broke off before its end"
    if isinstance(error, requests.ConnectionError):
        return f"no connection to {host} (offline?)"
    if isinstance(error, requests.exceptions.JSONDecodeError):
        return "the record's answer is not JSON"
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _quiet(pooch_logger: logging.Logger) -> Iterator[None]:
    """Keep pooch's own notes from stderr, where it writes them without being asked; warnings stay."""

    # A filter of each download's own: a level set and restored by two downloads at once could stay wrong.
    def warnings_only(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    pooch_logger.addFilter(warnings_only)
    try:
        yield
    finally:
        pooch_logger.removeFilter(warnings_only)
