"""Run an app on Flower's own engines on this machine, and end every process that was started for it."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradveil.errors import GradVeilError

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
_GRACE = 15.0
_RUN_LOG, _LIST_LOG = "run.log", "list.log"
_COMPLETED = "finished:completed"


class LaunchError(GradVeilError):
    """A SuperLink, SuperNode or run that did not come up or did not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What a SuperLink shows of itself under TLS, as PEM files.

    Args:
        authority: the certificate of who signed; SuperNodes and `flwr run` trust it alone.
        certificate: of the SuperLink, for the name or address by which it is reached, here 127.0.0.1.
        key: of that certificate.
    """

    authority: Path
    certificate: Path
    key: Path

    def shown(self) -> list[str]:
        """Return the flags of the SuperLink."""
        files = {"ca-certfile": self.authority, "certfile": self.certificate, "keyfile": self.key}
        return [word for name, file in files.items() for word in (f"--ssl-{name}", str(file))]

    def trusted(self) -> list[str]:
        """Return the flags of a SuperNode."""
        return ["--root-certificates", str(self.authority)]


def run_simulated(
    app: Path | str,
    *,
    clients: int,
    config: Mapping[str, str | int | float | bool] | None = None,
    timeout: float = 300.0,
) -> str:
    """Run an app in Flower's simulation, on Ray, and return its log.

    Args:
        app: folder with a pyproject.toml that names the apps.
        clients: virtual ones.
        config: over the run config of the app; its keys must be there.
        timeout: seconds for the whole run.
    """
    if importlib.util.find_spec("ray") is None:
        raise LaunchError("a simulation runs on Ray, which is not installed; install gradveil[flower]")
    with Engine.start() as engine:
        engine.open_link("--simulation")
        federation = f"num-supernodes={clients} client-resources-num-cpus=1"
        return engine.submit(Path(app), config or {}, timeout, "--federation-config", federation)


def run_deployed(
    app: Path | str,
    *,
    clients: int,
    config: Mapping[str, str | int | float | bool] | None = None,
    timeout: float = 300.0,
    certificates: Certificates | None = None,
) -> str:
    """Run an app as a deployment on loopback, a SuperLink and one SuperNode per client, and return its log.

    Args:
        app: folder with a pyproject.toml that names the apps.
        clients: SuperNodes to start.
        config: over the run config of the app; its keys must be there.
        timeout: seconds for the whole run.
        certificates: to speak TLS with; None sends everything in the open, which does not leave this machine.
    """
    with Engine.start(certificates) as engine:
        engine.open_link()
        for number in range(clients):
            engine.open_node(number, clients)
        return engine.submit(Path(app), config or {}, timeout)


@dataclass(frozen=True, slots=True)
class Engine:
    """The processes of one run; all of them on free ports of loopback, with a private home."""

    home: Path
    port: int
    certificates: Certificates | None = None
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def start(cls, certificates: Certificates | None = None) -> Iterator["Engine"]:
        """Make a home, and end whatever was started when the run is over."""
        with tempfile.TemporaryDirectory(prefix="gradveil-flower-") as folder:
            engine = cls(Path(folder), free_port(), certificates)
            address = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{engine.port}"\n'
            trust = (
                f"root-certificates = {json.dumps(str(certificates.authority))}" if certificates else "insecure = true"
            )
            (engine.home / "config.toml").write_text(f"{address}{trust}\n", encoding="utf-8")
            try:
                yield engine
            finally:
                for process in reversed(engine.running):
                    end(process)

    def open_link(self, *flags: str) -> None:
        """Start the SuperLink and wait until it listens."""
        name = "flower-superlink"
        rest = ["--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"]
        secrecy = self.certificates.shown() if self.certificates else ["--insecure"]
        process = self._spawn(name, [*secrecy, *rest, *flags], "superlink.log")
        _wait(lambda: _listens(self.port), process, self.home / "superlink.log")

    def open_node(self, number: int, clients: int) -> None:
        """Start the SuperNode of one client."""
        port = free_port()
        settings = f"partition-id={number} num-partitions={clients}"
        place = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(port)]
        log = f"supernode-{number}.log"
        secrecy = self.certificates.trusted() if self.certificates else ["--insecure"]
        process = self._spawn("flower-supernode", [*secrecy, *place, "--node-config", settings], log)
        _wait(lambda: _listens(port), process, self.home / log)

    def submit(self, app: Path, config: Mapping[str, str | int | float | bool], timeout: float, *flags: str) -> str:
        """Run the app and follow its log to the end."""
        process, log = self.begin(app, config, *flags), self.home / _RUN_LOG
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"the run did not end in {timeout:g} seconds; its log ends: {_tail(log)}") from error
        if code:
            raise LaunchError(f"flwr run ended with {code}; its log ends: {_tail(log)}")
        status = self._status()  # of a run that fails `flwr run` says nothing
        if status != _COMPLETED:
            raise LaunchError(f"the run ended as {status}, not {_COMPLETED}; its log ends: {_tail(log)}")
        return log.read_text(encoding="utf-8", errors="replace")

    def _status(self) -> str:
        """Ask how the run ended; its log may be whole a moment before the SuperLink has noted the end."""
        limit, status = time.monotonic() + _GRACE, "unknown"
        while not status.startswith("finished") and time.monotonic() < limit:
            process = self._spawn("flwr", ["list", "here", "--format", "json"], _LIST_LOG)
            if process.wait(_GRACE) == 0:
                (run,) = json.loads((self.home / _LIST_LOG).read_text(encoding="utf-8"))["runs"]
                status = str(run["status"])
        return status

    def begin(self, app: Path, config: Mapping[str, str | int | float | bool], *flags: str) -> subprocess.Popen[bytes]:
        """Start a run of the app, and return the process that follows it."""
        override = self.home / "run.toml"
        override.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()), encoding="utf-8"
        )
        given = ["--run-config", str(override)] if config else []
        return self._spawn("flwr", ["run", str(app), "here", "--stream", *given, *flags], _RUN_LOG)

    def _spawn(self, name: str, arguments: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        tools = Path(sys.executable).parent  # the tools of the environment that runs this
        path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, **_QUIET, "FLWR_HOME": str(self.home), "PATH": path}
        with (self.home / log).open("wb") as file:
            process = subprocess.Popen(  # noqa: S603
                [str(tools / name), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.running.append(process)
        return process


def free_port() -> int:
    """Return a port of loopback that nobody listens on.

    Example:
        >>> 1024 < free_port() < 65536
        True
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started, by their ids, also what has left its session."""
    ours = [process.pid, *descendants(process.pid)]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        ours = [pid for pid in {*ours, *(found for pid in ours for found in descendants(pid))} if _signal(pid, sign)]
        limit = time.monotonic() + _GRACE
        while ours and time.monotonic() < limit:
            process.poll()
            ours = [pid for pid in ours if pid in _parents()]
            time.sleep(0.1)
    process.wait(_GRACE)


def descendants(pid: int) -> list[int]:
    """List the processes that a process started, and those that they started.

    Example:
        >>> descendants(os.getpid() + 10**7)
        []
    """
    parents = _parents()
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, above in parents.items() if above == parent]
        found += children
        waiting += children
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every living process; one that is dead but not yet fetched is not living."""
    with subprocess.Popen(["ps", "-eo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as listing:  # noqa: S607
        rows = [line.split() for line in listing.communicate()[0].splitlines()]
    living = {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}
    return {pid: parent for pid, parent in living.items() if pid != listing.pid}


def _signal(pid: int, sign: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)
        return True
    return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 120.0) -> None:
    began = time.monotonic()
    while not ready():
        if process.poll() is not None or time.monotonic() - began > seconds:
            raise LaunchError(f"{Path(str(process.args[0])).name} did not come up; its log ends: {_tail(log)}")  # type: ignore[index]
        time.sleep(0.2)


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
