"""Virtual runs of torch learners: they train as they would alone, each on its own chance, and resume to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from support.virtual_site import Site
from unlockstep import runlog
from unlockstep import tape as tapes
from unlockstep.cli.assembly import Text, load_text, new_backend
from unlockstep.cli.evaluator import Examiner
from unlockstep.config import RunConfig, apply
from unlockstep.core.events import Event, StepReported
from unlockstep.launch.casting import cast
from unlockstep.launch.local import Ending
from unlockstep.learners.torch_backend import TorchBackend
from unlockstep.report.accounting import account
from unlockstep.virtual.ring import own_tape

SMALL = (
    "run.steps=40",
    "model.spec=support.tiny_lm:tied_lm",
    "data.sequence_length=16",
    "data.validation_share=0.2",
    "inner.batch_size=2",
    "inner.warmup_steps=4",
    "protocol.fragments=2",
    "protocol.interval_steps=4",
    "evaluation.interval_s=1",
    "evaluation.batches=1",
    "evaluation.batch_size=2",
    "local.learners=3",
    "virtual.enabled=true",
    "virtual.jitter=0.1",
)

TAPE = tapes.loads(
    """
    name = "trouble"
    learners = ["a", "b", "c"]
    action = [
        { at_s = 0.7, do = "kill", target = "a" },
        { at_s = 0.9, do = "slow", target = "b", factor = 3.0 },
        { at_s = 1.2, do = "cut", target = "c" },
        { at_s = 1.5, do = "restart", target = "a" },
        { at_s = 1.6, do = "heal", target = "c" },
        { at_s = 2.0, do = "kill", target = "syncer" },
        { at_s = 2.3, do = "restart", target = "syncer" },
        { at_s = 2.5, do = "slow", target = "b", factor = 1.0 },
    ]
    """,
    "toml",
)


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    """Nobody else's chance depends on these tests."""
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "corpus.txt"
    file.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(400)))
    return f"data.source={file}"


def site(folder: Path, config: RunConfig, tape: tapes.Tape) -> Site:
    text = load_text(config)

    def make(shard: int, shard_count: int) -> TorchBackend:
        return new_backend(config, shard, shard_count, text, is_alone=False)

    return Site(folder, config, tape, make, lambda: Examiner(config, text), text=text.training)


def events(of: Site) -> list[Event]:
    return list(runlog.read(of.files.run_log)[1])


def losses(of: Site, learner: str) -> list[float]:
    return [event.loss for event in events(of) if isinstance(event, StepReported) and event.learner == learner]


def plain(config: RunConfig, shard: int, shards: int, text: Text, steps: int) -> list[float]:
    """Training without any protocol, in a process of its own for all it knows."""
    backend = new_backend(config, shard, shards, text)
    return [backend.inner_step(step).loss for step in range(steps)]


def test_until_the_first_round_each_learner_trains_as_it_would_alone(corpus: str, tmp_path: Path) -> None:
    """Parameters, data, rates and dropout: the same bits, whatever the other learners in this process do meanwhile."""
    config = apply(RunConfig(), [*SMALL, corpus, "protocol.interval_steps=1000", "protocol.fragments=1"])
    run = site(tmp_path / "run", config, own_tape(apply(config, ["local.kill_share=0"])))
    assert run.run().ending is Ending.FINISHED
    for shard in range(3):
        trained = losses(run, f"learner-{shard}")
        assert len(trained) >= 35
        assert trained == plain(config, shard, 3, load_text(config), len(trained))


@pytest.mark.parametrize("deal", ["shards", "leases"])
def test_a_run_that_was_stopped_again_and_again_has_the_same_bits(deal: str, corpus: str, tmp_path: Path) -> None:
    """Tied weights stay tied, moments and dropout go on, data is trained on as it was granted."""
    leases: Sequence[str] = ("data.stock_sequences=8", "data.chunk_sequences=4") if deal == "leases" else ()
    config = cast(apply(RunConfig(), [*SMALL, corpus, f"data.deal={deal}", *leases]), TAPE)
    straight = site(tmp_path / "straight", config, TAPE)
    expected = straight.run()
    assert expected.ending is Ending.FINISHED
    cut = site(tmp_path / "cut", config, TAPE)
    while (outcome := cut.run(happenings=311)).ending is Ending.INTERRUPTED:
        torch.manual_seed(0)  # Another process has other generators.
    assert outcome == expected
    assert cut.left_behind == straight.left_behind
    assert {type(event).__name__ for event in events(cut)} >= {"LearnerAway", "SyncerResumed", "EvaluationReported"}


def test_a_run_on_leases_ends_when_every_sequence_is_trained(corpus: str, tmp_path: Path) -> None:
    """As often as any other, although a learner dies with some of them in its hands."""
    settings = ("data.deal=leases", "data.epochs=1", "data.stock_sequences=8", "data.chunk_sequences=4")
    config = cast(apply(RunConfig(), [*SMALL, corpus, *settings]), TAPE)
    run = site(tmp_path / "run", config, TAPE)
    assert run.run().ending is Ending.FINISHED
    accounting = account(events(run), config.protocol)
    data = accounting.data
    assert data is not None and accounting.data_balance == 0
    assert data.epoch == 1.0
    assert data.reached == data.sequences
