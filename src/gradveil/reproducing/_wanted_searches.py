"""The search that a part asks for, and whether one that was run elsewhere tells all of it."""

from dataclasses import asdict, dataclass
from typing import Any

from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.models.training import Training
from gradveil.policies import SearchRecord, SearchSettings
from gradveil.reproducing.plans import Part
from gradveil.spec import spec_from

_CHOOSING = ("include", "singles", "policies", "top", "batch", "threshold")  # change no score


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSearch:
    """The search that a part asks for.

    Args:
        dataset: whose images are transformed.
        model: that scores.
        settings: of the search.
        training: of the network that scores.
    """

    dataset: str
    model: str
    settings: SearchSettings
    training: Training

    def told(self) -> dict[str, Any]:
        """Return it as records tell it."""
        settings = asdict(self.settings)
        return {
            "dataset": self.dataset,
            "model": self.model,
            "precision": Runtime().precision,
            "training": asdict(self.training),
            "search": {**settings, "include": list(self.settings.include)},
        }


def wanted_search(part: Part) -> WantedSearch:
    """Read what a part asks for off its tables `search`, where `dataset` and `model` stand too, and `training`."""
    table = part.table("search")
    dataset, model = str(table.pop("dataset", "digits")), str(table.pop("model", "lenet"))
    try:
        settings = SearchSettings(**{**table, "include": tuple(table.get("include", ()))})
    except TypeError as error:
        raise SpecError(f"[search]: {error}") from error
    training = spec_from({"training": part.table("training")}).training
    return WantedSearch(dataset=dataset, model=model, settings=settings, training=training)


def says_all(made: SearchRecord | None, wanted: WantedSearch) -> bool:
    """Tell whether a finished search scored all that is wanted, and as it is wanted; it may have scored more."""
    if made is None or made.status != "done":
        return False
    here, there = wanted.told(), made.spec
    if any(there.get(name) != here[name] for name in ("dataset", "model", "precision", "training")):
        return False
    ours, theirs = here["search"], there["search"]
    if any(theirs.get(name) != value for name, value in ours.items() if name not in _CHOOSING):
        return False
    drawn = ours["policies"] in (0, theirs["policies"])
    given = theirs["singles"] or not ours["singles"]
    return bool(drawn and given and set(ours["include"]) <= set(theirs["include"]))
