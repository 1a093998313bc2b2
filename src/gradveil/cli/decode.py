"""`gradveil decode`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gradveil import obscuring
from gradveil.attacks import decoders
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.cli.obscure import write_picture
from gradveil.decoding import Decoded
from gradveil.decoding_run import FILE, DecodingSpec, fitting_decoder, run_decoding
from gradveil.grid import Settings
from gradveil.spec import spec_from

Many = list[str] | None
_KNOWLEDGE = ["labels", "defenses", "auxiliary"]
_SHOWN = 32


def command(
    out: Annotated[Path, typer.Argument(help="folder for the record")],
    dataset: Annotated[str, typer.Option(help="digits, cifar10, folder:PATH, ...")] = "digits",
    defense: Annotated[str, typer.Option(help="mixup:k=2, instahide:k=4,mean=0.5, loda:extractor=PATH, ...")] = "mixup",
    decoder: Annotated[str, typer.Option(help="decode-mixing:images=20,k=4, decode-loda, ...")] = "decode-mixing",
    attack: Annotated[str, typer.Option(help="recovers encodings from gradients; else the true ones are given")] = "",
    rounds: Annotated[int, typer.Option(help="how often every image is encoded")] = 10,
    images: Annotated[int, typer.Option(help="private images that are decoded together")] = 20,
    groups: Annotated[int, typer.Option(help="independent groups of them")] = 1,
    knowledge: Annotated[Many, typer.Option(help="labels, defenses, auxiliary, encoding (for the oracle)")] = None,
    auxiliary: Annotated[str, typer.Option(help="public images: train, test, a data set; else like the private")] = "",
    model: Annotated[str, typer.Option(help="that is trained on encodings, for an attack")] = "lenet",
    state: Annotated[str, typer.Option(help="untrained, trained, checkpoint:PATH")] = "untrained",
    seed: Annotated[int, typer.Option()] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")] = None,
    search: Annotated[bool, typer.Option("--search", help="weight and steps of decode-loda, on public images")] = False,
    redact: Annotated[bool, typer.Option("--redact", help="keep no private pictures")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the record")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
) -> None:
    """Decode what a data defense makes of private images, from many encodings of each."""
    table: dict[str, Any] = {
        "dataset": dataset, "defenses": defense, "models": model, "states": state, "victims": groups, "seed": seed,
        "batch_size": images, "knowledge": _KNOWLEDGE if knowledge is None else knowledge, "auxiliary": auxiliary,
        "adaptive": False, **({"attacks": attack} if attack else {}),
    }  # fmt: skip
    decoder = fitting_decoder(decoder, defense, images=images)
    wanted = DecodingSpec(
        audit=spec_from({"audit": table}), decoder=decoder, rounds=rounds, recovered=bool(attack), search=search
    )
    with progress_bar(quiet=quiet or as_json) as bar:
        settings = Settings(data_dir=data_dir, device=chosen_device(device), progress=bar)
        result = run_decoding(wanted, out, settings=settings)
    if not redact:
        pairs = (tensor.flatten(0, 1)[:_SHOWN].cpu() for tensor in (result.truth, result.guess))
        write_picture(obscuring.sheet(*pairs), out / "sheet.png")
    if as_json:
        output.print_json((out / FILE).read_text(encoding="utf-8"))
    else:
        _show(result, out)


def _show(result: Decoded, out: Path) -> None:
    table = Table("metric", "private images", "encodings given", *sorted(_nulls(result)))
    for name, scores in result.scores.items():
        cells = (scores.private, scores.protected, *(scores.nulls[null] for null in sorted(scores.nulls)))
        table.add_row(name, *(_mean(values) for values in cells))
    output.print(table)
    for view, found in result.identification.items():
        first = sum(rank < 0.5 for row in found.ranks for rank in row)
        total = sum(map(len, found.ranks))
        output.print(f"{view}: {first} of {total} nearest among {found.decoys} decoys", highlight=False)
    output.print(f"decoder: {decoders.describe(result.decoder)}", markup=False, highlight=False, soft_wrap=True)
    if result.oracle:
        output.print("an upper bound: this decoder was told what no adversary knows")
    output.print(f"record: {out / FILE}", markup=False, highlight=False, soft_wrap=True)


def _nulls(result: Decoded) -> set[str]:
    return {null for scores in result.scores.values() for null in scores.nulls}


def _mean(values: list[list[float]]) -> str:
    flat = [value for row in values for value in row]
    return f"{sum(flat) / len(flat):.3g}"
