"""`gradveil obscure`."""

import io
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image
from rich.table import Table
from torch import Tensor

from gradveil import data, obscuring
from gradveil.cli._device import chosen_device
from gradveil.cli._show import output, progress_bar
from gradveil.data import Dataset
from gradveil.defenses import Loda, defenses
from gradveil.engine import Precision, Progress, Runtime
from gradveil.errors import DataError, SpecError
from gradveil.models.training import Training
from gradveil.obscuring import RETRAINING, Study, StudyRow
from gradveil.record import about_this_run
from gradveil.registry import convert, parse_settings
from gradveil.spec import build
from gradveil.storage import TensorFolder, refuse_another, write_atomically

app = typer.Typer(no_args_is_help=True, help="Obscure private images once (LODA), and study what it costs and hides.")
Private = Annotated[str, typer.Option("--dataset", help="private images: digits, cifar10, folder:PATH, ...")]
Public = Annotated[str, typer.Option("--public", help="images to start from, such as cifar100; noise if not given")]
Defense = Annotated[str, typer.Option(help="such as loda:extractor=PATH,variant=loda2")]
Out = Annotated[Path, typer.Argument(help="folder for the record and what is kept; the same folder resumes")]
Settings = Annotated[str, typer.Option(help="of training, over the published ones: epochs=60,lr=0.1,...")]
Images = Annotated[int, typer.Option(help="first so many training images; 0 for all", min=0)]
Seed = Annotated[int, typer.Option()]
PrecisionName = Annotated[str, typer.Option("--precision", help="of obscuring: float32, tf32 or bf16")]
DataDir = Annotated[Path | None, typer.Option(help="where data sets lie; else GRADVEIL_DATA")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress bar")]
AsJson = Annotated[bool, typer.Option("--json", help="print the record")]
_SHOWN = 32


@app.command("images")
def images(
    out: Out,
    dataset: Private = "digits",
    public: Public = "",
    defense: Defense = "loda",
    count: Images = 0,
    seed: Seed = 0,
    precision: PrecisionName = "bf16",
    data_dir: DataDir = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Obscure the training images of a data set, and write them with a sheet to look at and a record."""
    wanted = _Wanted(
        out=out, dataset=dataset, public=public, defense=defense, settings="", count=count, seed=seed,
        precision=precision, data_dir=data_dir, device=device,
    )  # fmt: skip
    with progress_bar(quiet=quiet) as bar:
        study = wanted.study(bar)
        refuse_another(out / "obscured.json", _about(study, wanted))
        seen, made = obscuring.obscure_and_measure(study)
    shown = obscuring.sheet(study.private.train.inputs(range(min(_SHOWN, len(seen)))), seen.inputs()[:_SHOWN])
    write_picture(shown, out / "sheet.png")
    TensorFolder(out).save("obscured", {"images": seen.images, "labels": seen.labels})
    record = {**_about(study, wanted), **asdict(made)}
    write_atomically(out / "obscured.json", json.dumps(record, indent=2).encode())
    output.print(f"{len(seen)} images: {out / 'obscured.safetensors'}, sheet: {out / 'sheet.png'}", soft_wrap=True)
    output.print(
        f"in {made.run.seconds['obscuring']:.1f} s; the objective fell for {100 * made.lowered:.2f} % of them; "
        f"mean PSNR {made.mean_psnr:.4g} dB, worst {made.worst_psnr:.4g}; record: {out / 'obscured.json'}",
        soft_wrap=True,
    )


@app.command("weights")
def weights(
    out: Out,
    c: Annotated[list[float] | None, typer.Option("--c", help="weights to try; repeat")] = None,
    model: Annotated[str, typer.Option(help="to train")] = "resnet18",
    dataset: Private = "digits",
    public: Public = "",
    defense: Defense = "loda",
    settings: Settings = "",
    count: Images = 0,
    seed: Seed = 0,
    precision: PrecisionName = "bf16",
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train on images obscured with several weights c, and measure on clean test images."""
    wanted = _Wanted(
        out=out, dataset=dataset, public=public, defense=defense, settings=settings, count=count, seed=seed,
        precision=precision, data_dir=data_dir, device=device,
    )  # fmt: skip
    chosen = list(dict.fromkeys(c or [10.0, 20.0, 30.0, 40.0, 50.0]))
    if not all(0 <= weight < math.inf for weight in chosen):
        raise SpecError(f"weights c must be finite and at least 0, got {', '.join(map(str, chosen))}; correct --c")
    with progress_bar(quiet=quiet or as_json) as bar:
        study = wanted.study(bar)
        refuse_another(out / "study.json", _about_study(study, wanted))
        rows = obscuring.study_weights(study, model, chosen)
    _finish(rows, study, wanted, as_json=as_json)


@app.command("models")
def models(
    out: Out,
    model: Annotated[list[str] | None, typer.Option(help="to train; repeat")] = None,
    dataset: Private = "digits",
    public: Public = "",
    defense: Defense = "loda",
    settings: Settings = "",
    count: Images = 0,
    seed: Seed = 0,
    precision: PrecisionName = "bf16",
    data_dir: DataDir = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train several architectures on images obscured once, and measure on clean test images."""
    wanted = _Wanted(
        out=out, dataset=dataset, public=public, defense=defense, settings=settings, count=count, seed=seed,
        precision=precision, data_dir=data_dir, device=device,
    )  # fmt: skip
    chosen = list(dict.fromkeys(model or ["resnet18", "resnet34", "vgg16", "densenet121"]))
    with progress_bar(quiet=quiet or as_json) as bar:
        study = wanted.study(bar)
        refuse_another(out / "study.json", _about_study(study, wanted))
        rows = obscuring.study_architectures(study, chosen)
    _finish(rows, study, wanted, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What the commands have in common, as it was typed."""

    out: Path
    dataset: str
    public: str
    defense: str
    settings: str
    count: int
    seed: int
    precision: str
    data_dir: Path | None
    device: str | None

    def study(self, progress: Progress) -> Study:
        """Load and check everything."""
        made = build(defenses, self.defense)
        if not isinstance(made, Loda):
            raise SpecError(f"images are obscured by loda, got '{self.defense}'; write loda:field=value,...")
        try:
            training = replace(RETRAINING, **parse_settings(Training, self.settings, "training"))
        except ValueError as error:
            raise SpecError(str(error)) from error
        private = data.load(self.dataset, self.data_dir)
        if self.count:
            private = replace(private, train=private.train.select(range(min(self.count, len(private.train)))))
        runtime = Runtime(
            precision=convert(self.precision, Precision, "precision"),
            store=TensorFolder(self.out / "kept"),
            progress=progress,
            name="obscuring",
        )
        return Study(
            private=private,
            defense=made,
            pool=_pool(private, self.public, self.data_dir),
            training=training,
            seed=self.seed,
            runtime=runtime,
            device=chosen_device(self.device),
            progress=progress,
            folder=self.out,
        )


def _pool(private: Dataset, public: str, data_dir: Path | None) -> Tensor | None:
    if not public:
        return None
    other = data.load(public, data_dir)
    if other.input_shape != private.input_shape:
        shapes = f"{private.input_shape} like the private ones, but {public} has {other.input_shape}"
        raise DataError(f"public images must be {shapes}; name another data set")
    return other.train.inputs()


def _finish(rows: list[StudyRow], study: Study, wanted: _Wanted, *, as_json: bool) -> None:
    """Write the record, beside what earlier runs of the same study put there, and show it."""
    rows = _with_earlier(wanted.out / "study.json", rows)
    seconds = {f"{row.architecture} {row.c}": row.seconds for row in rows}
    record = {
        **_about_study(study, wanted),
        "rows": [asdict(row) for row in rows],
        "run": asdict(about_this_run(seconds=seconds, chunk=0, device=torch.device(study.device))),
    }
    write_atomically(wanted.out / "study.json", json.dumps(record, indent=2).encode())
    if as_json:
        output.print_json(json.dumps(record))
        return
    table = Table("model", "c", "accuracy", "mean PSNR", "worst PSNR")
    for row in rows:
        table.add_row(row.architecture, _number(row.c), f"{100 * row.accuracy:.2f} %", *_decibels(row))
    output.print(table)
    output.print(f"record: {wanted.out / 'study.json'}", markup=False, highlight=False, soft_wrap=True)


def _with_earlier(file: Path, rows: list[StudyRow]) -> list[StudyRow]:
    """Return the rows of a record, if there is one, with these in their places or after them."""
    there = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    both = (*(StudyRow(**each) for each in there), *rows)
    return list({(row.architecture, row.c): row for row in both}.values())


def _about_study(study: Study, wanted: _Wanted) -> dict[str, Any]:
    return {**_about(study, wanted), "training": asdict(study.training)}


def _about(study: Study, wanted: _Wanted) -> dict[str, Any]:
    return {
        "dataset": wanted.dataset,
        "public": wanted.public,
        "images": len(study.private.train),
        "seed": wanted.seed,
        "precision": wanted.precision,
        "defense": defenses.describe(study.defense),
        "extractor": obscuring.mark_of([study.defense]),
    }


def _decibels(row: StudyRow) -> tuple[str, str]:
    return _number(row.mean_psnr), _number(row.worst_psnr)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def write_picture(sheet: Tensor, path: Path) -> None:
    """Write (C, H, W) in [0, 1] as a PNG file."""
    pixels: Any = sheet.mul(255).round().byte().movedim(0, -1).squeeze(-1).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
