"""GradVeil in a Flower federation: mods for any app, a strategy that records, and ready apps.

app = ClientApp(mods=[vet(), record("updates"), protect(["gaussian-noise:std=1e-3"])])
"""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("gradveil.flower needs flwr 1.41, which is not installed; install `gradveil[flower]`") from error

from gradveil.flower._apps import client_app, server_app
from gradveil.flower._averaging import Averaging
from gradveil.flower._guarding import GuardedStrategy, Turnout, guarded
from gradveil.flower._in_process import run_in_process
from gradveil.flower._planning import Plan
from gradveil.flower._protecting import protect
from gradveil.flower._recording import read_stated, record, recorded
from gradveil.flower._vetting import vet
from gradveil.flower._witnessing import witness

__all__ = [
    "Averaging",
    "GuardedStrategy",
    "Plan",
    "Turnout",
    "client_app",
    "guarded",
    "protect",
    "read_stated",
    "record",
    "recorded",
    "run_in_process",
    "server_app",
    "vet",
    "witness",
]
