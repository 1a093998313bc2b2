"""Fetching published files: streamed, checked, and either wholly there or not at all."""

import errno
import gzip
import hashlib
import http.client
import secrets
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from gradveil.data._base import PublishedFile
from gradveil.errors import DataError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all; 0 in all means that nobody knows."""

_BLOCK: Final = 1 << 18
_TIMEOUT: Final = 60.0


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


def fetch(
    file: PublishedFile, root: Path, *, progress: Progress = no_progress, base_url: str | None = None
) -> tuple[Path, ...]:
    """Download one published file into the data folder, check it, and unpack it if it is an archive.

    A broken, short or wrong download leaves nothing behind.

    Args:
        file: what to fetch.
        root: the data folder; made if it does not exist.
        progress: called after every block.
        base_url: a mirror that holds the file under its own name; None takes the published address.

    Returns:
        The path of the file, or of everything that it unpacks to.
    """
    url = file.url if base_url is None else f"{base_url.rstrip('/')}/{PurePosixPath(file.path).name}"
    target = root / file.path
    with _writing(target) as part:
        digest = _stream(url, part, size=file.size, progress=progress)
        if file.sha256 and digest != file.sha256:
            advice = "the download was damaged or the published file has changed; try again later"
            raise DataError(f"{url} must have the SHA-256 {file.sha256}, got {digest}; {advice}")
        return unpack(part, root, file.members) if file.members else (part.replace(target),)


def unpack(archive: Path, root: Path, members: tuple[str, ...]) -> tuple[Path, ...]:
    """Take the named files, and nothing else, out of a tar archive.

    Args:
        archive: the tar file, compressed or not.
        root: the folder that the names are relative to.
        members: names of plain files, all of which must be there.
    """
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpack-") as folder:
        try:
            _extract(archive, Path(folder), members)
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DataError(f"the archive cannot be unpacked ({error}); it is not the published one") from error
        for name in members:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).replace(root / name)
    return tuple(root / name for name in members)


def _extract(archive: Path, folder: Path, members: tuple[str, ...]) -> None:
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar if m.isfile() and m.name in members]
        missing = set(members) - {m.name for m in wanted}
        if missing:
            raise DataError(f"the archive has no file {min(missing)}; it is not the published one")
        tar.extractall(folder, members=wanted, filter="data")


@contextmanager
def _writing(target: Path) -> Iterator[Path]:
    """Offer a temporary path beside the target, gone at the end, and explain why a disk refuses."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        advice = "choose another data folder with GRADVEIL_DATA"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            message = f"the disk is full: {target} could not be written; free some space or {advice}"
            raise DataError(message) from error
        raise DataError(f"{target} cannot be written ({error}); {advice}") from error


def _stream(url: str, part: Path, *, size: int, progress: Progress) -> str:
    """Copy a web file to disk block by block and return its SHA-256."""
    digest = hashlib.sha256()
    done = 0
    with _opened(url) as response, part.open("xb") as file:
        total = size or response.length or 0
        while block := _read(response, url):
            file.write(block)
            digest.update(block)
            done += len(block)
            if total and done > total:
                break
            progress(done, total)
    if total and done != total:
        came = f"more than {total}" if done > total else str(done)
        raise DataError(f"{url} must hold {total} bytes, got {came}; the connection broke or it is another file")
    return digest.hexdigest()


@contextmanager
def _opened(url: str) -> Iterator[http.client.HTTPResponse]:
    """Open an http or https address; a redirection cannot leave these two either."""
    with _network(url):
        scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in {"http", "https"}:
        raise DataError(f"only http and https addresses can be downloaded, got '{url}'")
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    with _network(url):
        response = opener.open(urllib.request.Request(url, headers={"User-Agent": "gradveil"}), timeout=_TIMEOUT)  # noqa: S310
    assert isinstance(response, http.client.HTTPResponse)
    with response:
        yield response


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    with _network(url):
        return response.read(_BLOCK)


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Say what went wrong on the way to a server."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url} cannot be downloaded: the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        advice = "check the connection or place the file by hand"
        raise DataError(f"{url} cannot be downloaded: {cause}; {advice}") from error
