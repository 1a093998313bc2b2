"""Runs commands of gradveil side by side on one GPU, each as soon as what it waits for is done.

python benchmarks/side_by_side.py benchmarks/loda.toml --at-once 6

A plan has one table `jobs.NAME` per command: `run`, its words; `after`, names of jobs that must be done first; `share`,
how much of the GPU it takes (1 if not said), where shares of at most `--at-once` run together; `alone = true` waits for
all others to end and lets none begin. What was done is not run again; what failed is tried again by the next call.
Where many processes share a GPU, `nvidia-cuda-mps-control -d` lets their kernels run together and not in turns.
"""

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gradveil.storage import write_atomically


@dataclass
class Job:
    """One command, and its state: `waiting`, `running`, `done`, `failed` or `left`, since what it waits for failed."""

    run: str
    after: tuple[str, ...] = ()
    share: float = 1.0
    alone: bool = False
    state: str = "waiting"
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    began: float = 0.0

    def start(self, log: IO[bytes]) -> None:
        words = [sys.executable, "-m", "gradveil", *self.run.split()]
        self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - gradveil alone
        self.state, self.began = "running", time.monotonic()

    def look(self) -> None:
        """Note whether it has ended."""
        if self.process is None or self.state != "running":
            return
        self.seconds = round(time.monotonic() - self.began, 1)
        code = self.process.poll()
        if code is not None:
            self.state = "failed" if code else "done"


class Bench:
    """The jobs of a plan, and a folder that remembers them.

    Args:
        jobs: by name, in the order in which they are wanted.
        folder: of the logs and of `state.json`.
        at_once: sum of the shares that run together.
    """

    def __init__(self, jobs: Mapping[str, Job], folder: Path, at_once: float) -> None:
        self.jobs, self.folder, self.at_once = dict(jobs), folder, at_once
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "state.json"
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for name, job in self.jobs.items():
            held = before.get(name, {})
            if held.get("state") == "done" and held["run"] == job.run:
                job.state, job.seconds = "done", held["seconds"]

    def turn(self) -> bool:
        """Look at what runs and begin what may; return whether anything is left to wait for."""
        for job in self.jobs.values():
            job.look()
            if job.state == "waiting" and any(self.jobs[name].state in {"failed", "left"} for name in job.after):
                job.state = "left"
        for name, job in self.jobs.items():
            if job.state != "waiting" or any(self.jobs[other].state != "done" for other in job.after):
                continue
            if self._has_room(job):
                with (self.folder / f"{name}.log").open("ab") as log:
                    job.start(log)
            elif job.alone:
                break  # or those behind it would never let it begin
        states = {
            name: {k: v for k, v in vars(job).items() if k not in {"process", "began"}}
            for name, job in self.jobs.items()
        }
        write_atomically(self.folder / "state.json", json.dumps(states, indent=1).encode())
        return any(job.state == "running" for job in self.jobs.values())

    def _has_room(self, job: Job) -> bool:
        running = [one for one in self.jobs.values() if one.state == "running"]
        if not running or job.alone or any(one.alone for one in running):
            return not running
        return sum(one.share for one in running) + job.share <= self.at_once


def read(plan: Path) -> dict[str, Job]:
    """Read the jobs of a plan, and see that each waits for those that there are."""
    tables = tomllib.loads(plan.read_text(encoding="utf-8"))["jobs"]
    jobs = {name: Job(**{**table, "after": tuple(table.get("after", ()))}) for name, table in tables.items()}
    for name, job in jobs.items():
        for other in job.after:
            if other not in jobs:
                raise SystemExit(f"the job {name} waits for {other}, which is not in {plan}")
    return jobs


def main() -> int:
    """Run a plan to its end; 1 if a job failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/side-by-side"), help="logs and what was done")
    parser.add_argument("--at-once", type=float, default=4.0)
    given = parser.parse_args()
    bench = Bench(read(given.plan), given.out, given.at_once)
    while bench.turn():
        time.sleep(0.5)
    for name, job in bench.jobs.items():
        print(f"{job.state:8} {job.seconds:8.1f} s  {name}")
    return 0 if all(job.state == "done" for job in bench.jobs.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
