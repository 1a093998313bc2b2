"""A ClientApp and a ServerApp for any model and data, with every defense of GradVeil."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from gradveil.client import sent_model
from gradveil.defenses import defenses as known_defenses
from gradveil.engine import trainable
from gradveil.federated._central import central_dp
from gradveil.federated._measuring import measure
from gradveil.federated._participants import Returned, train_clients
from gradveil.federated._weights import Weights
from gradveil.federated.recorder import About
from gradveil.federated.round_log import append_row, write_tensorboard
from gradveil.flower._averaging import Averaging
from gradveil.flower._guarding import GuardedStrategy
from gradveil.flower._messages import (
    Memory,
    Randomness,
    client_of,
    read_arrays,
    round_of,
    to_arrays,
    to_state,
    without_randomness,
)
from gradveil.flower._planning import Plan
from gradveil.flower._recording import recorded
from gradveil.models import checkpoints
from gradveil.types import State

_log = logging.getLogger(__name__)
_SEED = "client-seed"


def client_app(plan: Plan | None = None, *, mods: Sequence[Mod] = ()) -> ClientApp:
    """Make the app of a client that trains through GradVeil's client step, with defenses of every kind.

    The client's noise comes from a seed that nobody else knows, unless `client-seed` gives one: in the SuperNode's
    node config it stays with the client; in the run config, for tests, the server knows it and can take the noise off.
    A folder `keep` in the node config keeps what the client must not lose over a restart, such as a secret head.

    Args:
        plan: of the federation; None reads it from the run config.
        mods: around the training, such as `vet(...)` and `record(...)`.
    """
    app = ClientApp(mods=list(mods))

    def train(message: Message, context: Context) -> Message:
        return _train(plan or Plan.read(context.run_config), message, context)

    app.train()(train)
    return app


def server_app(plan: Plan | None = None, *, strategy: Strategy | None = None) -> ServerApp:
    """Make the app of a server that averages, goes on without clients that fail, and resumes after a kill.

    Args:
        plan: of the federation; None reads it from the run config.
        strategy: in place of plain averaging.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        chosen = plan or Plan.read(context.run_config)
        _serve(chosen, strategy or _averaging(chosen, context), grid)

    app.main()(main)
    return app


def _train(plan: Plan, message: Message, context: Context) -> Message:
    memory = Memory("gradveil-client", _folder(context))
    kept, client, number = memory.load(context), client_of(context), round_of(message)
    own = Randomness.read(kept, seed=_given_seed(context)).turn(number)
    site = plan.site(client, clients=int(context.node_config.get("num-partitions", plan.clients)), seed=own.seed)
    sent = weights_of(read_arrays(message.content), sent_model(site.client))
    begun = {client: without_randomness(kept)} if kept else {}
    (returned,) = train_clients(site, own.label(number), [client], sent.expand(1), begun)

    memory.save(context, {**returned.kept, **own.write()})
    metrics = MetricRecord({"num-examples": returned.samples})
    content = RecordDict({"arrays": to_arrays(_after(plan, sent, returned)), "metrics": metrics})
    return Message(content, reply_to=message)


def _after(plan: Plan, sent: Weights, returned: Returned) -> State:
    """Return the weights that a client sends back: those it was sent, less its protected update."""
    federation = plan.federation
    # A client of FedSGD shares a gradient; sent as a step of the agreed rate it says the same.
    moved = sent.moved(returned.update, federation.local.lr if federation.algorithm == "fedsgd" else 1.0)
    moved = moved.with_buffers(returned.buffers) if federation.share_buffers else moved
    return {**moved.parameters, **moved.buffers}


def weights_of(arrays: State, model: nn.Module) -> Weights:
    """Read weights in the number formats of a model, since an average of whole numbers comes as fractions."""
    own = Weights.of(model)
    return replace(
        own,
        parameters={name: arrays[name].to(tensor) for name, tensor in own.parameters.items()},
        buffers={name: arrays[name].to(tensor) for name, tensor in own.buffers.items()},
    )


def _folder(context: Context) -> Path | None:
    keep = context.node_config.get("keep")
    return None if keep is None else Path(str(keep))


def _given_seed(context: Context) -> int | None:
    if _SEED in context.node_config:
        return int(context.node_config[_SEED])
    if _SEED not in context.run_config:
        return None
    _log.warning("the server gave client-seed and so knows this client's noise: for tests only")
    return int(context.run_config[_SEED])


def _averaging(plan: Plan, context: Context) -> Averaging:
    """Return plain averaging; a run whose clients were given their seed is a test, and repeats its noise too."""
    return Averaging(
        plan.federation,
        clients=plan.clients,
        central=central_dp(plan.defenses),
        trained=trainable(sent_model(plan.client())),
        noise_seed=plan.federation.seed if _SEED in context.run_config else None,
    )


def _serve(plan: Plan, strategy: Strategy, grid: Grid) -> None:
    folder = Path(plan.out) if plan.out else None
    model = sent_model(plan.client())
    inner = strategy
    if plan.record and folder is not None:
        inner = recorded(inner, folder / "updates", about=about_plan(plan))
    guard = GuardedStrategy(inner, None if folder is None else folder / "checkpoint")
    start = guard.resume(to_arrays({**Weights.of(model).parameters, **Weights.of(model).buffers}))
    left = plan.federation.rounds - guard.done
    if left > 0:
        evaluate = _evaluator(plan, model, guard, folder)
        start = guard.start(grid, start, num_rounds=left, timeout=plan.timeout, evaluate_fn=evaluate).arrays
    if folder is not None:
        words = " + ".join(map(known_defenses.describe, plan.defenses)) or "no defense"
        about = {"model": plan.model, "dataset": plan.data, "defenses": words, "federation": repr(plan.federation)}
        checkpoints.save(_filled(start, model), folder / "model.safetensors", about=about)


def _evaluator(
    plan: Plan, model: nn.Module, guard: GuardedStrategy, folder: Path | None
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return what Flower calls with the model before the first and after every round: measure it, and write it down."""
    test = plan.measured()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:
            return None
        turnout, found = guard.turnouts[-1], measure(_filled(arrays, model), test, plan.loss)
        counts = {"clients": len(turnout.used), "failed": len(turnout.failed), "update norm": turnout.norm}
        row = {**counts, "loss": found.loss, "accuracy": found.accuracy}
        if folder is not None:
            append_row(folder / "rounds.csv", {"round": turnout.round, **row})
            write_tensorboard(folder / "tensorboard", [(turnout.round, row)])
        return MetricRecord({name: value for name, value in row.items() if value is not None})

    return evaluate


def _filled(arrays: ArrayRecord, model: nn.Module) -> nn.Module:
    return weights_of(to_state(arrays), model).into(model)


def about_plan(plan: Plan) -> About:
    """Return what the server of a plan knows of its clients' training."""
    federation, normalization = plan.federation, plan.normalization()
    return About(
        model=plan.model,
        mean=normalization.mean,
        std=normalization.std,
        loss="cross-entropy",
        mode=federation.mode,
        optimizer=federation.local.optimizer,
        lr=federation.local.lr,
        momentum=federation.local.momentum,
        nesterov=federation.local.nesterov,
        weight_decay=federation.local.weight_decay,
        steps=1 if federation.algorithm == "fedsgd" else federation.local_steps,
        reduction=federation.local.reduction,
        shares="difference",
        defenses=" + ".join(map(known_defenses.describe, plan.defenses)),
    )
