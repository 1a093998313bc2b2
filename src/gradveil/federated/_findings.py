"""What vetting says."""

import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradveil.errors import GradVeilError

Kind: TypeAlias = Literal[
    "imprint", "trap-weights", "fishing", "loss", "isolation", "architecture", "change", "numbers", "different-models"
]
Policy: TypeAlias = Literal["refuse", "warn", "continue"]


class VettingError(GradVeilError):
    """A model that a client should not train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that an honest server would hardly send.

    Args:
        kind: of attack or change.
        severity: `malicious` where no honest training is known to lead there, else `suspicious`.
        where: name of the tensor or layer; empty for the whole model.
        reason: in words.
    """

    kind: Kind
    severity: Literal["malicious", "suspicious"]
    where: str
    reason: str

    def __str__(self) -> str:
        place = f" in {self.where}" if self.where else ""
        return f"{self.severity} ({self.kind}{place}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that vetting found; nothing is a good sign, not a proof.

    Args:
        items: the worst first.
    """

    items: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Literal["malicious", "suspicious", "clean"]:
        """The worst severity."""
        found = {item.severity for item in self.items}
        return "malicious" if "malicious" in found else "suspicious" if found else "clean"

    def enforce(self, policy: Policy) -> None:
        """Do what a client's policy says.

        Args:
            policy: `refuse` raises where something is malicious and warns of what is suspicious; `warn` warns of
                both; `continue` does nothing.
        """
        if policy not in {"refuse", "warn", "continue"}:
            raise ValueError(f"policy must be refuse, warn or continue, got '{policy}'")
        if policy == "continue" or not self.items:
            return
        reasons = "; ".join(map(str, self.items))
        if policy == "refuse" and self.verdict == "malicious":
            raise VettingError(f"the model was refused before training on it: {reasons}")
        warnings.warn(f"the model that the server sent is {self.verdict}: {reasons}", stacklevel=2)
