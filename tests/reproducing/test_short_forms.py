"""Short forms of specs stand for what they would be written out."""

from pathlib import Path

import pytest

from gradveil.errors import SpecError, UnknownNameError
from gradveil.reproducing import Plan, read_plan

BASE = """
[words]
steps = 5
model = "lenet"

[small]
victims = 3

[paper]
victims = 9
steps = 7

[each]
attacks = [{ attack = "dlg", title = "DLG" }, { attack = "idlg", title = "iDLG, $steps steps" }]
batches = [{ size = 1 }, { size = 4 }]

[shared.audit]
models = ["$model"]
victims = "$victims"

[parts.plain]
kind = "audit"

[parts."$attack-${size}x"]
each = ["attacks", "batches"]
kind = "audit"
checkpoint = "net-$size"

[parts."$attack-${size}x".audit]
batch_size = "$size"
attacks = ["$attack:steps=$steps"]

[columns.scores]
"PSNR, $size" = { take = "psnr.private.mean", unit = "dB" }
"SSIM, $size" = { take = "ssim.private.mean" }

[[values]]
each = ["attacks", "batches"]
part = "$attack-${size}x"
columns = "scores"
by = "attack"
where = { victims = "$victims" }
rows = { "$title" = "$attack*" }
"""


def plan(folder: Path, spec: str, name: str = "base", size: str = "small") -> Plan:
    """Read a spec that lies beside `base`."""
    for place, text in (("base", BASE), (name, spec)):
        (folder / place).mkdir(exist_ok=True)
        (folder / place / "spec.toml").write_text(text)
    return read_plan(folder / name / "spec.toml", size, out=Path("run"))  # type: ignore[arg-type]


def test_a_series_stands_for_a_part_per_combination(tmp_path: Path) -> None:
    made = plan(tmp_path, BASE)
    assert [part.name for part in made.parts] == ["plain", "dlg-1x", "dlg-4x", "idlg-1x", "idlg-4x"]
    last = made.parts[-1]
    assert last.checkpoint == "net-4"
    assert last.table("audit") == {"models": ["lenet"], "victims": 3, "batch_size": 4, "attacks": ["idlg:steps=5"]}


def test_a_set_of_columns_stands_for_a_number_each(tmp_path: Path) -> None:
    wanted = plan(tmp_path, BASE).wanted
    assert [(one.row, one.column, one.take, one.unit) for one in wanted if one.part == "idlg-4x"] == [
        ("iDLG, 5 steps", "PSNR, 4", "psnr.private.mean", "dB"),
        ("iDLG, 5 steps", "SSIM, 4", "ssim.private.mean", ""),
    ]
    assert len(wanted) == 8
    assert wanted[0].match == {"victims": 3, "attack": "dlg*"}


def test_a_size_may_say_other_words_than_all(tmp_path: Path) -> None:
    assert plan(tmp_path, BASE).words == {"steps": 5, "model": "lenet", "victims": 3}
    assert plan(tmp_path, BASE, size="paper").words == {"steps": 7, "model": "lenet", "victims": 9}


def test_a_spec_like_another_has_all_of_it_but_what_it_says_itself(tmp_path: Path) -> None:
    own = 'like = "base"\n[words]\nmodel = "mlp"\n[small]\nsteps = 2\n[parts.plain.audit]\nbatch_size = 8\n'
    base, made = plan(tmp_path, BASE), plan(tmp_path, own, "other")
    assert [part.name for part in made.parts] == [part.name for part in base.parts]
    assert len(made.wanted) == len(base.wanted)
    assert made.parts[0].table("audit") == {"models": ["mlp"], "victims": 3, "batch_size": 8}
    assert made.parts[-1].table("audit")["attacks"] == ["idlg:steps=2"]
    replaced = plan(tmp_path, own + '[each]\nbatches = [{ size = 2 }]\n[[values]]\npart = "idlg-2x"\n'
                    'column = "C"\ntake = "psnr"\nrows = { A = "idlg" }\n', "other")  # fmt: skip
    assert [part.name for part in replaced.parts] == ["plain", "dlg-2x", "idlg-2x"]
    assert [(one.row, one.column) for one in replaced.wanted] == [("A", "C")]


def test_a_spec_may_be_without_parts_and_their_numbers(tmp_path: Path) -> None:
    made = plan(tmp_path, 'like = "base"\nwithout = ["plain", "dlg-1x", "idlg-4x"]\n', "other")
    assert [part.name for part in made.parts] == ["dlg-4x", "idlg-1x"]
    assert {one.part for one in made.wanted} == {"dlg-4x", "idlg-1x"}


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ('like = "other"\n', SpecError, "like itself"),
        ('like = "missing"\n', SpecError, "no spec at"),
        ('like = "base"\nwithout = ["plane"]\n', UnknownNameError, "'plane'; did you mean plain"),
        ('like = "base"\n[parts.plain]\neach = "attack"\n', UnknownNameError, "series called 'attack'"),
        ('like = "base"\n[[values]]\npart = "plain"\ncolumns = "score"\nrows = {}\n', UnknownNameError, "columns"),
        ('like = "base"\n[columns.scores]\nC = { takes = "psnr" }\n', UnknownNameError, "did you mean take"),
        ('like = "base"\n[parts.plain.audit]\nattacks = ["$attack"]\n', UnknownNameError, "word of the size"),
    ],
)
def test_what_a_short_form_does_not_find_is_named(
    tmp_path: Path, spec: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        plan(tmp_path, spec, "other")
