"""Your own PyTorch loop as a learner: four added lines, marked ``# +``.

    python examples/own_training_loop.py                                        starts a syncer of its own
    python examples/own_training_loop.py --syncer http://HOST:7077 --name a     joins one that runs: start several
    ... --syncer https://HOST:7077 --ca ca.pem --token-file a.token --name a    one that asks for a token, over TLS

The model learns to continue sine waves; model, optimizer and data are as plain as they come.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import unlockstep  # +

SETTINGS = ("run.steps=100", "protocol.fragments=4", "protocol.interval_steps=4")


def waves(batches: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """64 waves of random frequency and phase: 32 points of each, and the point that follows, float32."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        frequency, phase = torch.rand(2, 64, 1, generator=generator)
        points = torch.sin((0.1 + frequency) * torch.arange(33) + 6.3 * phase)
        yield points[:, :32], points[:, 32:]


def train(syncer: str, name: str | None, ca: Path | None = None, token: Path | None = None) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = waves(10_000, seed=torch.seed())  # A seed drawn anew: every learner needs data of its own.
    with unlockstep.Learner(model, optimizer, syncer=syncer, name=name, ca=ca, token=token) as learner:  # + joins
        for step, (inputs, targets) in enumerate(data):
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 20 == 0:
                print(f"step {step}, clock {learner.clock}, loss {loss:.4f}")
            if not learner.step(tokens=targets.numel(), loss=loss):  # + once per optimizer step
                break  # + the run is over
        print(f"{learner.name}: {learner.ended}, last loss {loss:.4f}")


@contextmanager
def own_syncer() -> Iterator[str]:
    """A syncer in a process of its own, as long as the block runs; its address."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "unlockstep",
            "syncer",
            "--listen",
            "127.0.0.1:0",
            "--run-dir",
            f"{folder}/run",
            *settings,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                print(line, end="")
                yield next(word.rstrip(",") for word in line.split() if word.startswith("http://"))
            finally:
                process.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", help="address of a running syncer, http://host:port")
    parser.add_argument("--name", help="name of this learner")
    parser.add_argument("--ca", type=Path, help="file of the certificate that vouches for the syncer's")
    parser.add_argument("--token-file", type=Path, help="file of the token that the syncer asks for")
    arguments = parser.parse_args()
    try:
        if arguments.syncer is not None:
            train(arguments.syncer, arguments.name, arguments.ca, arguments.token_file)
        else:
            with own_syncer() as url:
                train(url, arguments.name)
    except (unlockstep.UsageError, unlockstep.LearnerFailed) as error:
        raise SystemExit(f"error: {error}") from None
