"""Fetching files from a server on this machine."""

import errno
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_files import idx, pixels, tar_gz, write_cifar100, write_mnist

from gradveil import data
from gradveil.data import PublishedFile
from gradveil.data._download import fetch
from gradveil.data.cifar100 import Cifar100
from gradveil.data.mnist import Mnist
from gradveil.errors import DataError

BODY = pixels(700_000).tobytes()


class Shelf(http.server.BaseHTTPRequestHandler):
    """Serves what the test put on the shelf; some files in a broken way."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        if name.startswith("redirect/"):
            self.send_response(302)
            self.send_header("Location", name.removeprefix("redirect/"))
            self.end_headers()
            return
        if name.removeprefix("short-") not in self.files:
            self.send_error(404)
            return
        body = self.files[name.removeprefix("short-")]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if name.startswith("short-") else body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


class Server:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"file.bin": BODY}
        handler = type("Handler", (Shelf,), {"files": self.files})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def published(path: str, content: bytes, url: str = "http://unused", members: tuple[str, ...] = ()) -> PublishedFile:
    digest = hashlib.sha256(content).hexdigest()
    return PublishedFile(path=path, url=url, sha256=digest, size=len(content), members=members)


def left(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_a_file_arrives_whole_and_progress_is_told(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    file = published("deep/folder/file.bin", BODY, url=f"{server.url}/file.bin")
    (path,) = fetch(file, tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == BODY
    assert left(tmp_path) == ["deep/folder/file.bin"]
    assert steps[-1] == (len(BODY), len(BODY))
    assert len(steps) > 1
    assert steps == sorted(steps)


def test_a_size_that_nobody_published_is_asked_of_the_server(server: Server, tmp_path: Path) -> None:
    totals: set[int] = set()
    file = PublishedFile(path="file.bin", url=f"{server.url}/file.bin")
    fetch(file, tmp_path, progress=lambda done, total: totals.add(total))
    assert totals == {len(BODY)}


def test_a_download_can_be_read_by_others(server: Server, tmp_path: Path) -> None:
    (path,) = fetch(published("file.bin", BODY), tmp_path, base_url=server.url)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file.bin", "must have the SHA-256"),
        ("short-file.bin", "must hold 700000 bytes, got 350000"),
        ("absent.bin", "the server answered 404"),
        ("redirect/file:///etc/passwd", "cannot be downloaded"),
        ("redirect/ftp://127.0.0.1/x", "cannot be downloaded"),
    ],
)
def test_a_wrong_download_leaves_nothing(path: str, message: str, server: Server, tmp_path: Path) -> None:
    file = PublishedFile(path="file.bin", url=f"{server.url}/{path}", sha256="0" * 64, size=len(BODY))
    with pytest.raises(DataError, match=message):
        fetch(file, tmp_path)
    assert left(tmp_path) == []


def test_a_longer_file_than_published_is_cut_off(server: Server, tmp_path: Path) -> None:
    file = PublishedFile(path="file.bin", url=f"{server.url}/file.bin", size=1000)
    with pytest.raises(DataError, match="must hold 1000 bytes, got more than 1000"):
        fetch(file, tmp_path)
    assert left(tmp_path) == []


def test_a_failed_download_keeps_the_file_that_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"old")
    with pytest.raises(DataError):
        fetch(published("file.bin", b"else" * 175_000), tmp_path, base_url=server.url)
    assert (tmp_path / "file.bin").read_bytes() == b"old"


def test_an_interruption_leaves_nothing(server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(published("file.bin", BODY), tmp_path, base_url=server.url, progress=interrupt)
    assert left(tmp_path) == []


def test_a_server_that_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    server.http.socket.close()
    with pytest.raises(DataError, match=r"127\.0\.0\.1.*cannot be downloaded.*place the file by hand"):
        fetch(published("file.bin", BODY), tmp_path, base_url=server.url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "", "http://[bad/x"])
def test_only_web_addresses_are_opened(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"only http and https|cannot be downloaded"):
        fetch(PublishedFile(path="x", url=url), tmp_path)
    assert left(tmp_path) == []


def test_a_full_disk_is_told_and_the_rest_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def full(path: Path, *arguments: Any, **settings: Any) -> "Full":
        file = real(path, *arguments, **settings)
        file.write(b"the last free bytes")
        return Full(file.detach())

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=r"the disk is full.*free some space"):
        fetch(published("file.bin", BODY), tmp_path, base_url=server.url)
    monkeypatch.undo()
    assert left(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "MNIST").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(published("MNIST/raw/file.bin", BODY), tmp_path, base_url=server.url)


def test_archives_are_unpacked_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.files["a.tar.gz"] = tar_gz({"a/one": b"1", "a/two": b"2", "a/readme.html": b"x"})
    file = published("a.tar.gz", server.files["a.tar.gz"], members=("a/one", "a/two"))
    fetched = fetch(file, tmp_path, base_url=server.url)
    assert [path.read_bytes() for path in fetched] == [b"1", b"2"]
    assert left(tmp_path) == ["a/one", "a/two"]


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"../evil": b"x", "a/one": b"1"}, {}),
        ({"/tmp/gradveil-evil": b"x", "a/one": b"1"}, {}),  # noqa: S108
        ({"a/one": b"1"}, {"a": "../outside"}),
        ({}, {"a/one": "../../outside/secret"}),
        ({"a/two": b"2"}, {}),
        ({"../a/one": b"1"}, {}),
    ],
)
def test_archives_write_nothing_outside(
    files: dict[str, bytes], links: dict[str, str], server: Server, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    root = tmp_path / "root"
    server.files["a.tar.gz"] = tar_gz(files, links)
    file = published("a.tar.gz", server.files["a.tar.gz"], members=("a/one",))
    if files.get("a/one"):
        (path,) = fetch(file, root, base_url=server.url)
        assert path.read_bytes() == b"1"
        assert not path.is_symlink()
    else:
        with pytest.raises(DataError, match="no file a/one"):
            fetch(file, root, base_url=server.url)
    assert left(tmp_path) == ["outside/secret", *(["root/a/one"] if files.get("a/one") else [])]
    assert not Path("/tmp/gradveil-evil").exists()  # noqa: S108


def test_a_broken_archive_is_told(server: Server, tmp_path: Path) -> None:
    whole = tar_gz({"a/one": BODY})
    for broken in (whole[: len(whole) // 2], b"", b"no archive at all", gzip.compress(b"nor this")):
        server.files["a.tar.gz"] = broken
        with pytest.raises(DataError, match="archive"):
            fetch(published("a.tar.gz", broken, members=("a/one",)), tmp_path, base_url=server.url)
        assert left(tmp_path) == []


def test_downloads_what_is_missing_and_then_loads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "source")
    for path in (tmp_path / "source").rglob("*.gz"):
        server.files[path.name] = path.read_bytes()
    files = tuple(published(file.path, server.files[Path(file.path).name]) for file in Mnist.files)
    monkeypatch.setattr(Mnist, "files", files)

    steps: list[tuple[int, int]] = []
    root = tmp_path / "root"
    fetched = data.download(
        "mnist", root, progress=lambda done, total: steps.append((done, total)), base_url=server.url
    )
    assert len(fetched) == 4
    assert steps == sorted(steps)
    assert {total for _, total in steps} == {sum(file.size for file in files)} == {steps[-1][0]}
    assert len(data.load("mnist", root).train) == 6

    server.files.clear()
    assert data.download("mnist", root, base_url=server.url) == ()
    fetched[1].unlink()
    with pytest.raises(DataError, match="404"):
        data.download("mnist", root, base_url=server.url)


def test_downloads_and_unpacks_cifar(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path / "source")
    (archive,) = Cifar100.files
    members = {name: (tmp_path / "source" / name).read_bytes() for name in archive.members}
    server.files[archive.path] = tar_gz(members)
    file = published(archive.path, server.files[archive.path], members=archive.members)
    monkeypatch.setattr(Cifar100, "files", (file,))
    assert len(data.download("cifar100", tmp_path / "root", base_url=server.url)) == 3
    assert len(data.load("cifar100", tmp_path / "root").train) == 4


def test_another_file_than_the_published_one_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["train-images-idx3-ubyte.gz"] = gzip.compress(idx(np.zeros((1, 28, 28), dtype=np.uint8)))
    with pytest.raises(DataError, match="must hold 9912422 bytes"):
        data.download("mnist", tmp_path, base_url=server.url)
    assert left(tmp_path) == []


def test_celeba_must_be_got_by_a_person(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be downloaded by a program; `gradveil data explain celeba`"):
        data.download("celeba", tmp_path)


class Full:
    """A file on a disk that has no room left."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")
