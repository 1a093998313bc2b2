"""An experiment of two cells, `first` and `second`, in a folder of its own."""

import json
from pathlib import Path

from gradveil.reproducing import Artefact, find_artefact


def tiny_artefact(folder: Path, spec: str) -> Artefact:
    """Write the experiment with a spec, and find it."""
    place = folder / "experiments" / "tiny"
    place.mkdir(parents=True)
    (place.parent / "catalogue.toml").write_text('[[spn]]\nname = "tiny"\ntitle = "a table"\n')
    (place / "spec.toml").write_text(spec)
    printed = [{"row": row, "column": "accuracy", "value": 0.5, "unit": ""} for row in ("first", "second")]
    (place / "expected.json").write_text(json.dumps({"paper": "spn", "table": "none", "rows": printed}))
    return find_artefact(place.parent, "tiny")
