"""`gradveil vet`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer

from gradveil.cli._show import output
from gradveil.federated.vetting import Policy, fingerprint, read_state, vet
from gradveil.registry import convert


def command(
    model: Annotated[Path, typer.Argument(help="safetensors file that the server sent")],
    reference: Annotated[Path | None, typer.Option(help="a model of the federation that is trusted")] = None,
    policy: Annotated[str, typer.Option(help=f"{', '.join(get_args(Policy))}: what a finding leads to")] = "refuse",
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
) -> None:
    """Look at a model before training on it: imprint modules, trap weights, fishing heads, changes."""
    chosen: Policy = convert(policy, Policy, "policy")
    state = read_state(model)
    found = vet(state, None if reference is None else read_state(reference))
    if as_json:
        shown = {
            "verdict": found.verdict,
            "fingerprint": fingerprint(state),
            "findings": [asdict(item) for item in found.items],
        }
        output.print_json(json.dumps(shown))
    else:
        for item in found.items:
            output.print(str(item), markup=False, highlight=False, soft_wrap=True)
        words = f"{found.verdict}; fingerprint {fingerprint(state)}, compare it with the other clients' of this round"
        output.print(words, markup=False, highlight=False, soft_wrap=True)
    if chosen == "refuse" and found.verdict == "malicious":
        raise typer.Exit(1)
