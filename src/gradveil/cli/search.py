"""`gradveil search`."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from gradveil import data
from gradveil.cli._device import chosen_device
from gradveil.cli._show import console, output
from gradveil.engine import Precision, Progress, Runtime
from gradveil.errors import SpecError
from gradveil.models import architectures
from gradveil.models.training import Training
from gradveil.policies import (
    SEMI_TRAINING,
    ScoredPolicy,
    SearchRecord,
    SearchSettings,
    contact_sheet,
    definitions,
    random_baseline,
    read,
    search_policies,
)
from gradveil.registry import convert, parse_settings
from gradveil.report import load_records
from gradveil.spec import build
from gradveil.storage import write_atomically
from gradveil.transforms import LONGEST, NO_POLICY, parse_policy

app = typer.Typer(invoke_without_command=True, help="Search for transformation policies, and look at one.")
DataDir = Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")]
_SHOWN = 10


@app.callback()
def run(
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help="digits, cifar100, folder:PATH, ...")] = "digits",
    model: Annotated[str, typer.Option(help="lenet, resnet20-4, ...")] = "resnet20-4",
    policies: Annotated[int | None, typer.Option(help="budget: policies to draw; 1500, none in a transfer")] = None,
    length: Annotated[int | None, typer.Option(help="operations of a policy at most; 3")] = None,
    top: Annotated[int, typer.Option(help="policies wanted")] = 10,
    method: Annotated[str, typer.Option(help="random or evolution")] = "random",
    variant: Annotated[str, typer.Option(help="of the scores: paper or reference")] = "reference",
    threshold: Annotated[float | None, typer.Option(help="accuracy score to pass; that of the variant")] = None,
    adversary: Annotated[str, typer.Option(help="plain, or aware: also who knows the policy")] = "plain",
    include: Annotated[list[str] | None, typer.Option(help="score these too, such as 3-1-7; repeat")] = None,
    singles: Annotated[bool, typer.Option("--singles", help="score all single operations too")] = False,
    transfer: Annotated[Path | None, typer.Option(help="score the best of this other search")] = None,
    earlier: Annotated[Path | None, typer.Option("--from", help="take over the scores of this earlier search")] = None,
    settings: Annotated[str, typer.Option(help="further ones: images=100,rounds=10,batch=16,...")] = "",
    training: Annotated[str, typer.Option(help="of the semi-trained network: epochs=50,lr=0.1,...")] = "",
    seed: Annotated[int, typer.Option()] = 0,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16")] = "tf32",
    chunk: Annotated[int | None, typer.Option(help="images at once; measured if not given")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; the same folder resumes")] = None,
    networks: Annotated[Path | None, typer.Option(help="where searches share their networks; else in OUT")] = None,
    data_dir: DataDir = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the record as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress")] = False,
) -> None:
    """Search for policies that hide images and leave enough to learn."""
    if context.invoked_subcommand:
        _check_order(context)
        return
    flags = {
        **_policies(policies, length, include or [], transfer), "top": top, "method": method, "variant": variant,
        "threshold": threshold, "adversary": adversary, "singles": singles, "seed": seed,
    }  # fmt: skip
    wanted = SearchSettings(**{**flags, **parse_settings(SearchSettings, settings, "the search")})
    build(architectures, model)
    try:
        recipe = dataclasses.replace(SEMI_TRAINING, **parse_settings(Training, training, "training"))
        runtime = Runtime(precision=convert(precision, Precision, "precision"), chunk=chunk)
    except ValueError as error:
        raise SpecError(str(error)) from error
    place, loaded = chosen_device(device), data.load(dataset, data_dir)
    folder = out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-search-{loaded.name}"
    with _display(quiet=quiet or as_json) as (progress, watch):
        record = search_policies(
            loaded,
            model,
            settings=wanted,
            folder=folder,
            networks=networks or _networks_of(earlier),
            device=place,
            training=recipe,
            runtime=runtime,
            progress=progress,
            watch=watch,
            earlier=read(earlier) if earlier else None,
        )
    _show(record, folder, as_json=as_json)


@app.command()
def show(
    policy: Annotated[str, typer.Argument(help="such as 3-1-7 or 3-1-7+43-18-18")],
    dataset: Annotated[str, typer.Option(help="digits, cifar100, folder:PATH, ...")] = "digits",
    images: Annotated[int, typer.Option(help="columns", min=1)] = 8,
    start: Annotated[int, typer.Option(help="index of the first test image", min=0)] = 0,
    longest: Annotated[int, typer.Option(help="operations of a policy at most", min=1)] = 3,
    seed: Annotated[int, typer.Option()] = 0,
    out: Annotated[Path | None, typer.Option(help="PNG file to write")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a contact sheet of what a policy does to images."""
    parsed = parse_policy(policy, longest=longest)
    chosen = data.load(dataset, data_dir).test.images[start : start + images]
    if not len(chosen):
        raise SpecError(f"start must be the index of a test image, got {start}")
    file = out or Path(f"policy-{policy}.png")
    write_atomically(file, contact_sheet(parsed, chosen, seed=seed))
    for one in parsed.policies:
        output.print(f"{one}: {one.describe()}", highlight=False)
    output.print(f"contact sheet: {file}", highlight=False, soft_wrap=True)


@app.command("definitions")
def show_definitions(
    runs: Annotated[list[Path], typer.Argument(help="run folders of audits")],
    epsilon: Annotated[float, typer.Option(help="PSNR in dB")] = 15.0,
    plain_accuracy: Annotated[float | None, typer.Option(help="of the unprotected network, 0 to 1")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Read the (epsilon, delta) and (epsilon, delta, gamma) of the paper off the records of audits."""
    records = [record for run in runs for _, record in load_records(run)]
    rows = definitions(records, epsilon=epsilon, plain_accuracy=plain_accuracy)
    if as_json:
        output.print_json(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    columns = ("audit", "images", "attack: delta", "policy: delta", "policy, private: delta", "gamma")
    table = Table(*columns, title=f"epsilon {epsilon:g} dB; delta at most, at 95 %", title_justify="left")
    for row in rows:
        deltas = (row.attack, row.policy, row.policy_private)
        shares = [f"{each.share:.3f} (≤ {each.upper:.3f})" for each in deltas]
        table.add_row(row.title, str(row.images), *shares, "" if row.gamma is None else f"{row.gamma:.4f}")
    output.print(table)


@app.command("baseline")
def show_baseline(
    runs: Annotated[list[Path], typer.Argument(help="run folders of audits of random-policy:seed=0, seed=1, ...")],
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Average the audits of random policies, the baseline of the paper."""
    rows = random_baseline([record for run in runs for _, record in load_records(run)])
    if as_json:
        output.print_json(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    for row in rows:
        table = Table("", "private", "protected", title=f"{row.attack}, {row.model}: {row.policies} random policies")
        for name, private in row.private.items():
            protected = row.protected[name]
            table.add_row(
                name, _with_error(private.mean, private.error, 3), _with_error(protected.mean, protected.error, 3)
            )
        for view, found in row.identified.items():
            table.add_row(f"found first, {view}", _with_error(found.mean, found.error, 3))
        if row.accuracy:
            table.add_row("accuracy", _with_error(row.accuracy.mean, row.accuracy.error, 4))
        output.print(table)


def _check_order(context: typer.Context) -> None:
    """Refuse flags of a search before another command, which would not hear of them."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise SpecError(f"{given[0]} stands before {context.invoked_subcommand}, which takes its own; write it behind")


def _policies(policies: int | None, length: int | None, include: list[str], transfer: Path | None) -> dict[str, Any]:
    """Return what to score; a transfer adds the best of another search, and draws nothing unless told to."""
    best = _best_of(transfer) if transfer else []
    longest = max((len(policy.split("-")) for policy in best), default=0)
    return {
        "policies": policies if policies is not None else 0 if transfer else SearchSettings().policies,
        "length": length if length is not None else max(LONGEST, longest),
        "include": tuple(dict.fromkeys([*include, *best])),
    }


def _best_of(run: Path) -> list[str]:
    """List the best policies of another search, those of its hybrid first."""
    found = read(run)
    if not found.hybrid:
        raise SpecError(f"no policy passes in {run}, so none can be transferred; search with a lower --threshold there")
    return [*found.hybrid.split("+"), *(entry.policy for entry in found.best)]


def _networks_of(run: Path | None) -> Path | None:
    """Find the networks that an earlier search keeps in its own folder."""
    own = (run if run.is_dir() else run.parent) / "models" if run else None
    return own if own and own.is_dir() else None


def _show(record: SearchRecord, folder: Path, *, as_json: bool) -> None:
    if as_json:
        output.print_json(json.dumps(dataclasses.asdict(record)))
        return
    output.print(to_table(record))
    for line in (_summary(record), _timings(record), f"record: {folder / 'search.json'}"):
        output.print(line, highlight=False, soft_wrap=True)


def to_table(record: SearchRecord) -> Table:
    """Show the best policies so far, and beneath them no policy, with which they are compared."""
    drawn = any(entry.origin != "given" for entry in record.scored)
    passing = f", {100 * record.passed:.0f} % of the drawn pass {record.threshold:g}" if drawn else ""
    aware = any(entry.aware is not None for entry in record.best)
    columns = ("policy", "operations", "S_pri", *(("S_aware", "undone") if aware else ()), "S_acc")
    table = Table(
        *columns, title=f"{len(record.scored)} policies scored{_details(record)}{passing}", title_justify="left"
    )
    for entry in record.best[:_SHOWN]:
        operations = parse_policy(entry.policy, longest=len(entry.policy)).policies[0].describe()
        table.add_row(entry.policy, operations, *_cells(entry, aware=aware))
    table.add_section()
    for entry in (one for one in record.scored if one.policy == str(NO_POLICY)):
        table.add_row("none", "no policy", *_cells(entry, aware=aware))
    return table


def _cells(entry: ScoredPolicy, *, aware: bool) -> list[str]:
    privacy, accuracy = (
        _with_error(entry.privacy, entry.privacy_error, 4),
        _with_error(entry.accuracy, entry.accuracy_error, 2),
    )
    undone = "" if entry.undone is None else f"{100 * entry.undone:.0f} %"
    informed = [_with_error(entry.aware, entry.aware_error, 4), undone] if aware else []
    return [privacy, *informed, accuracy]


def _timings(record: SearchRecord) -> str:
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in record.seconds.items())
    return f"{len(record.scored)} policies{_details(record)} in {sum(record.seconds.values()):.1f} s: {stages}"


def _details(record: SearchRecord) -> str:
    """Say how many policies were taken over, and how many an informed adversary looked at, where there are any."""
    looked_at = sum(entry.aware is not None for entry in record.scored)
    counts = {"taken over": record.taken_over, "looked at by an informed adversary": looked_at}
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f" ({told})" if told else ""


def _with_error(value: float | None, error: float | None, digits: int) -> str:
    shown = "" if value is None else f"{value:.{digits}f}"
    return shown if error is None else f"{shown} ± {error:.{digits}f}"


def _summary(record: SearchRecord) -> str:
    if record.hybrid:
        return f"hybrid: {record.hybrid}  (use it as --defense {record.defense})"
    best = max(entry.accuracy for entry in record.scored)
    return f"no policy passes {record.threshold:g}; the highest accuracy score is {best:.2f}: lower --threshold"


@contextlib.contextmanager
def _display(*, quiet: bool) -> Iterator[tuple[Progress, Callable[[SearchRecord], None]]]:
    """Show one line of progress above the best policies so far; nothing if quiet."""
    if quiet:
        yield lambda task, done, total: None, lambda record: None  # noqa: ARG005
        return
    shown: dict[str, Any] = {"line": "", "table": ""}
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def progress(task: str, done: int, total: int) -> None:
            shown["line"] = f"{task}: {done} of {total}"
            live.update(Group(shown["line"], shown["table"]))

        def watch(record: SearchRecord) -> None:
            shown["table"] = Group(to_table(record), _timings(record))

        yield progress, watch
