"""The checkpoint of a learner that trains: when it is written, and what a new process takes from whose file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from support.resume_story import Story
from unlockstep.core.adoption import Adoption
from unlockstep.integrations.learner_checkpoint import LearnerCheckpoint
from unlockstep.learners import checkpoint
from unlockstep.learners.backend import State
from unlockstep.learners.checkpoint import previous_of


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


class Place:
    """A data loader, as far as a checkpoint is concerned."""

    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.position = state_dict["position"]


class Bench:
    """A learner with a checkpoint, and a clock that is a number."""

    def __init__(self, path: Path, interval_s: float = 30.0, position: int = 0) -> None:
        self.now_s = 0.0
        self.story = Story(Adoption.CARRY, "float32")
        self.data = Place(position)
        backend = self.story.backend
        self.optimizer = backend.optimizer
        self.checkpoint = LearnerCheckpoint(
            path,
            interval_s,
            backend.model,
            [self.optimizer],
            {"recipe": backend, "data": self.data},
            lambda: self.now_s,
        )

    def steps(self, first: int, end: int) -> list[float]:
        return [page.loss for page in self.story.steps(first, end)]

    def take(self) -> None:
        self.checkpoint.take(self.story.loop, [spec.name for spec in self.story.backend.tensors()])

    @property
    def moments(self) -> list[list[float]]:
        return [s["exp_avg"].flatten().tolist() for s in self.optimizer.state.values()]


def change(path: Path, **facts: Any) -> None:
    """Other facts about the learner that wrote the file."""
    state = checkpoint.load(path).state
    checkpoint.save(path, State(state.tensors, {**state.facts, "learner": {**state.facts["learner"], **facts}}))


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Bench]:
    """A file as of step 5, and who wrote it."""
    bench = Bench(tmp_path / "a", position=7)
    bench.steps(0, 5)
    bench.checkpoint.write(bench.story.loop)
    bench.checkpoint.wait()
    return tmp_path / "a", bench


def test_a_young_process_writes_often_and_an_old_one_every_interval(tmp_path: Path) -> None:
    """A step takes a second."""
    path = tmp_path / "a"
    bench = Bench(path)
    saved = []
    for step in range(95):
        bench.now_s += 1
        bench.story.loop.finish_step(bench.story.backend.inner_step(step))
        bench.checkpoint.step(bench.story.loop)
        bench.checkpoint.wait()
        saved.append(checkpoint.load(path).state.facts["learner"]["steps"])
    assert sorted(set(saved)) == [1, 2, 4, 8, 16, 32, 62, 92]


def test_an_interval_of_zero_leaves_it_to_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a", interval_s=0)
    bench.now_s = 1e9
    bench.checkpoint.step(bench.story.loop)
    bench.checkpoint.wait()
    assert not checkpoint.exists(tmp_path / "a")


def test_the_file_holds_everything(written: tuple[Path, Bench]) -> None:
    path, _ = written
    state = checkpoint.load(path).state
    assert {name.partition(".")[0] for name in state.tensors} == {"model", "optimizer", "anchor", "random"}
    assert {name for name in state.tensors if name.startswith("anchor.")} == {"anchor.0", "anchor.1"}
    facts = state.facts["learner"]
    assert (facts["learner"], facts["run_id"], facts["incarnation"], facts["steps"]) == ("a", "id", 1, 5)
    assert [fragment["version"] for fragment in facts["fragments"]] == [1, 0]


def test_a_learner_that_returns_takes_all_but_the_parameters(
    written: tuple[Path, Bench], caplog: pytest.LogCaptureFixture
) -> None:
    path, before = written
    caplog.set_level(logging.INFO)
    bench = Bench(path)
    embedding, mean = bench.story.backend.model.embedding.weight.clone(), torch.rand_like(torch.empty(5))
    torch.rand(9)
    bench.take()
    assert bench.moments == before.moments
    assert bench.story.backend.state_dict() == {"steps": 5}
    assert bench.data.position == 7
    assert bench.checkpoint.steps_before == 5
    assert torch.equal(bench.story.backend.model.embedding.weight, embedding)
    tracked = [m.num_batches_tracked.item() for m in bench.story.backend.model.modules() if hasattr(m, "running_mean")]
    assert tracked == [10]  # two micro-batches a step; not synchronised, so it is the file's
    assert torch.equal(
        torch.get_rng_state(), torch.from_numpy(checkpoint.load(path).state.tensors["random.torch"].data)
    )
    assert not torch.equal(torch.rand(5), mean)
    assert [record.message for record in caplog.records] == [
        f"inner optimizer, random state and data position from {path} as of step 5; parameters from the syncer"
    ]


def test_another_learner_takes_the_optimizer_and_keeps_its_own_data(
    written: tuple[Path, Bench], caplog: pytest.LogCaptureFixture
) -> None:
    path, before = written
    caplog.set_level(logging.INFO)
    change(path, learner="b", steps_before=3)
    bench = Bench(path, position=1)
    random = torch.get_rng_state()
    bench.take()
    assert bench.moments == before.moments
    assert bench.story.backend.state_dict() == {"steps": 5}
    assert bench.data.position == 1
    assert bench.checkpoint.steps_before == 0
    assert torch.equal(torch.get_rng_state(), random)
    assert [record.message for record in caplog.records] == [
        f"inner optimizer from {path} as of step 8 of b, whose random state and data position are its own; "
        "parameters from the syncer"
    ]


def test_the_file_before_is_taken_if_the_newest_is_damaged_and_outlives_it(
    written: tuple[Path, Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """C41"""
    path, before = written
    caplog.set_level(logging.INFO)
    sound = path.read_bytes()
    previous_of(path).write_bytes(sound)
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    bench = Bench(path)
    bench.take()
    assert bench.moments == before.moments
    assert caplog.records[0].message == (
        f"inner optimizer, random state and data position from {previous_of(path)} as of step 5 (checkpoint {path} is "
        "damaged: its content is not what was written); parameters from the syncer"
    )
    bench.checkpoint.write(bench.story.loop)
    bench.checkpoint.wait()
    assert previous_of(path).read_bytes() == sound


def test_a_file_that_is_of_no_use_is_one_warning(written: tuple[Path, Bench], caplog: pytest.LogCaptureFixture) -> None:
    path, _ = written
    sound = checkpoint.load(path).state

    def spoil(how: str) -> None:
        path.unlink()
        previous_of(path).unlink(missing_ok=True)
        match how:
            case "of another run":
                checkpoint.save(path, sound)
                change(path, run_id="other")
                previous_of(path).unlink()
            case "is of other training":
                checkpoint.save(path, State({k: v for k, v in sound.tensors.items() if "embed" not in k}, sound.facts))
            case "is no learner's":
                checkpoint.save(path, State(sound.tensors, {"learner": {}}))
            case _:
                path.write_bytes(b"nothing")

    for how in ("of another run", "is of other training", "is no learner's", "cannot be read"):
        spoil(how)
        caplog.clear()
        bench = Bench(path)
        bench.take()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.message.startswith("goes on without a checkpoint: ")
        assert how in record.message and str(path) in record.message
        assert bench.moments == [] and bench.checkpoint.steps_before == 0


def test_no_file_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Bench(tmp_path / "a").take()
    assert caplog.records == []
