"""The page of a run: what it holds, that nothing a log says becomes markup, and that it loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from support.logs import GOOD, joined, live, step, until
from support.reports import CONFIG, folder_of, view_in
from unlockstep import __version__
from unlockstep import tape as tapes
from unlockstep.config import RunSection
from unlockstep.core.events import BytesMoved, EvaluationReported, Event, LearnerJoined, RoundClosed, StepReported
from unlockstep.core.status import Score
from unlockstep.report.comparison import comparison
from unlockstep.report.page import page
from unlockstep.report.run_view import RunView
from unlockstep.report.sheet import DEFINITIONS
from unlockstep.report.summary import SHARE_WORDS
from unlockstep.report.timeline import KINDS
from unlockstep.tape import Kill, Restart, Tape

MS = 1_000_000

RICH: tuple[Event, ...] = (
    *until(300),
    BytesMoved(300 * MS, "a", 1, 5_000_000, 1_000_000),
    EvaluationReported(300 * MS, "evaluator", 3, 2.0, 1.5, (1, 0)),
    *GOOD[len(until(300)) :],
    EvaluationReported(600 * MS, "evaluator", 5, 1.0, 0.75, (2, 2), (Score("digits", 0.5, 0.9),)),
)


class Structure(HTMLParser):
    """Elements of a page: what is opened is closed, in order."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(written: str) -> Structure:
    structure = Structure()
    structure.feed(written)
    structure.close()
    assert structure.open == []
    return structure


def page_of(folder: Path, events: tuple[Event, ...] | list[Event] = RICH) -> str:
    return page(view_in(folder_of(folder, events)))


def test_a_page_holds_every_section_and_its_figures(tmp_path: Path) -> None:
    said = read(page_of(tmp_path)).said
    for heading in ("Where the time went", "Timeline", "Loss", "Learners", "Tokens", "Bandwidth", "Rounds", "Words"):
        assert heading in said
    assert "night: finished" in said and "0.7500 nats/byte at step 5" in said
    assert "Goodput 90.0 %" in said and "5 MB" in said


def test_a_page_is_called_after_its_folder_and_says_how_the_run_was_set_up(tmp_path: Path) -> None:
    written = page(view_in(folder_of(tmp_path / "mine", RICH), "mine"))
    assert "<title>mine: report of run night</title>" in written and "<h1>mine: finished</h1>" in written
    said = read(written).said
    assert "model llama-tiny" in said and "fragments (P) 2" in said and "quorum (K) 1" in said
    assert f"report written by unlockstep {__version__}" in said and "class=marked" not in written


def test_every_word_for_what_became_of_time_and_tokens_is_said_what_it_means(tmp_path: Path) -> None:
    meant = {word.lower() for words, _ in DEFINITIONS for word in words.split(", ")}
    shown = {*SHARE_WORDS.values(), *KINDS, "round", "fragment", "version", "quorum", "grace window", "donor"}
    assert shown - {"merged", "computing"} <= meant and "nats/byte" in meant
    assert all(meaning.endswith(".") for _, meaning in DEFINITIONS)
    said = read(page_of(tmp_path)).said
    assert all(meaning in said for _, meaning in DEFINITIONS)


def test_a_loss_that_is_not_a_number_is_a_cross_and_said_to_be(tmp_path: Path) -> None:
    assert "A cross" not in read(page_of(tmp_path / "sound")).said
    diverged = (*RICH, EvaluationReported(700 * MS, "evaluator", 6, float("nan"), float("nan"), (3, 3)))
    view = view_in(folder_of(tmp_path / "diverged", diverged))
    for written, runs in ((page(view), 1), (comparison([view, view]), 2)):
        assert "A cross: not a finite number." in read(written).said
        assert written.count('class="mark cross"') == 3 * runs


def test_why_a_run_ended_is_said_behind_what_kind_of_run_it_is(tmp_path: Path) -> None:
    """A reason may begin with the name of a learner or of a setting: it is no beginning of a sentence."""
    assert "night: finished A real run: the run has finished." in read(page_of(tmp_path / "real")).said
    simulated = view_in(folder_of(tmp_path / "simulated", RICH, simulated=True))
    assert "night: finished A simulated run: the run has finished." in read(page(simulated)).said


def test_only_tokens_that_were_reported_are_said_to_be_accounted_for(tmp_path: Path) -> None:
    said = read(page_of(tmp_path)).said
    assert "every token that was reported" in said and "did not live to report, nobody can count" in said


def test_up_and_down_and_columns_of_words_say_what_they_are(tmp_path: Path) -> None:
    written = page_of(tmp_path)
    assert ">up, per second</text>" in written and ">down, per second</text>" in written
    assert '<th scope="col" class=name>weights</th>' in written


def test_every_chart_has_marks_and_a_name(tmp_path: Path) -> None:
    pictures = re.findall(r"<svg role=\"img\" aria-label=\"([^\"]+)\".*?</svg>", page_of(tmp_path), re.DOTALL)
    assert len(pictures) == 16
    assert {"Timeline of the run", "Where the time went", "Validation loss over steps (clock)"} <= set(pictures)
    drawn = re.findall(r"<svg .*?</svg>", page_of(tmp_path / "again"), re.DOTALL)
    assert all('class="mark' in each for each in drawn if "Names of the rows" not in each)


def test_a_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    structure = read(page_of(tmp_path))
    for tag, attributes in structure.tags:
        for name in ("src", "href", "action", "srcset", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
    (policy,) = (each.get("content") for tag, each in structure.tags if "http-equiv" in each and tag == "meta")
    assert policy is not None and policy.startswith("default-src 'none';")


HOSTILE = "</title></script></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def hostile() -> list[Event]:
    """The same run, where everything that is a text is an attack."""
    events: list[Event] = []
    for event in RICH:
        if hasattr(event, "learner"):
            event = msgspec.structs.replace(event, learner=HOSTILE)
        if isinstance(event, RoundClosed):
            event = msgspec.structs.replace(event, sentence=HOSTILE, participants=(HOSTILE,))
        if hasattr(event, "weights"):
            event = msgspec.structs.replace(event, weights={HOSTILE: 1.0})
        events.append(event)
    return events


def test_nothing_that_a_log_says_becomes_markup(tmp_path: Path) -> None:
    plain = read(page_of(tmp_path / "plain"))
    folder = folder_of(tmp_path / "hostile", hostile(), run=HOSTILE)
    view = view_in(folder, label=HOSTILE)
    for written in (page(view), comparison([view, view])):
        structure = read(written)
        assert {tag for tag, _ in structure.tags} <= {tag for tag, _ in plain.tags} | {"h3"}
        assert sum(tag == "script" for tag, _ in structure.tags) == 1
        assert all(not name.startswith("on") for _, attributes in structure.tags for name in attributes)
        assert "alert(1)" in structure.said


@pytest.mark.parametrize("at", [-1, 0, 100, 200, 215, 460, 510])
def test_a_run_has_a_page_however_far_it_has_gone(at: int, tmp_path: Path) -> None:
    assert "night: unfinished" in read(page_of(tmp_path, until(at))).said


def test_a_run_in_which_nobody_takes_a_step_has_a_page(tmp_path: Path) -> None:
    assert "Nobody has begun a step" in read(page_of(tmp_path, [joined(0, "a")])).said


def test_many_learners_are_drawn_as_far_as_there_is_room(tmp_path: Path) -> None:
    events: list[Event] = []
    names = [f"learner-{number:03}" for number in range(100)]
    events += [joined(0, name) for name in names]
    for name in names:
        events += [live(100, name), step(100, name, 1)]
    said = read(page_of(tmp_path, events)).said
    assert "Not drawn: 40 learners." in said and "Of 100 learners, the first 30" in said


def test_of_many_rounds_the_first_and_the_last_are_in_the_table(tmp_path: Path) -> None:
    opened, rest = RICH[:7], [event for event in RICH[7:] if getattr(event, "round", None) == 0]
    events: list[Event] = list(opened)
    for round_ in range(0, 1400, 2):
        for event in rest:
            changes = {"round": round_, "at_ns": event.at_ns + round_ * 100 * MS}
            if hasattr(event, "version"):
                changes["version"] = round_ // 2 + 1
            events.append(msgspec.structs.replace(event, **changes))
    written = page_of(tmp_path, events)
    assert written.count('<tr><th scope="row" data-value=') == 500
    assert f"the first and the last of 700 rounds, 500 in all; the others are in {tmp_path / 'run.jsonl'}" in (
        read(written).said.lower().replace(str(tmp_path).lower(), str(tmp_path))
    )


# ------------------------------------------------------------------------------------------- several runs


def test_runs_are_compared_side_by_side(tmp_path: Path) -> None:
    views = [view_in(folder_of(tmp_path / name, events), name) for name, events in (("one", RICH), ("two", until(470)))]
    said = read(comparison(views)).said
    assert "2 runs one, two" in said
    assert "goodput 90.0 %" in said and "ended finished unfinished" in said
    assert "Simulated against real" not in said


def trained(tmp_path: Path, name: str, tokens: int, loss: float | None = 1.5) -> RunView:
    """A run of that many tokens, and the loss at its end."""
    told = [msgspec.structs.replace(step(at, "a", number), tokens=number * tokens // 5)
            for number, at in enumerate(range(100, 600, 100), start=1)]  # fmt: skip
    end = [] if loss is None else [EvaluationReported(600 * MS, "evaluator", 5, loss, loss, ())]
    return view_in(folder_of(tmp_path / name, [joined(0, "a"), live(100, "a"), *told, *end]), name)


def test_runs_that_have_trained_unlike_numbers_of_tokens_are_said_to(tmp_path: Path) -> None:
    calm, storm = trained(tmp_path, "calm", 1_000_000, 1.5), trained(tmp_path, "storm", 900_000, 1.509)
    said = read(comparison([calm, storm])).said
    sentence = "calm has trained 1,000,000 tokens, storm 900,000: losses at the end are those of runs of unlike length."
    assert said.index(sentence) < said.index("One column a run.")
    assert "Give each of them --tokens 1000000 to make them alike." in said
    assert "validation loss, nats/byte 1.5000 1.5090 +0.60%" in said and "tokens 1M 900,000 -10.0%" in said
    alike = trained(tmp_path, "alike", 985_000)
    assert "unlike length" not in read(comparison([calm, alike])).said
    said = read(comparison([storm, alike, calm])).said
    assert "Of these runs, calm has trained most, 1,000,000 tokens, and storm least, 900,000: losses" in said
    assert "difference" not in said


def test_runs_without_losses_are_told_no_more_than_how_many_tokens_they_have_trained(tmp_path: Path) -> None:
    views = [trained(tmp_path, name, tokens, None) for name, tokens in (("one", 100), ("two", 200))]
    assert "two has trained 200 tokens, one 100. One column a run." in read(comparison(views)).said


def test_a_simulated_run_is_held_against_the_real_one_with_the_same_tape(tmp_path: Path) -> None:
    tape = Tape(name="dawn", learners=("a", "b"), actions=(Kill(at_ns=1, target="b"), Restart(at_ns=2, target="b")))
    real = msgspec.structs.replace(view_in(folder_of(tmp_path / "real", RICH), "real"), tape=tape)
    other = view_in(folder_of(tmp_path / "simulated", until(470), simulated=True), "simulated")
    assert other.simulated
    said = read(comparison([real, msgspec.structs.replace(other, tape=tape)])).said
    assert "Simulated against real" in said and "Tape dawn: real (real) and simulated (simulated)" in said
    assert "points" in said
    assert "Simulated against real" not in read(comparison([real, other])).said


def test_settings_that_differ_are_marked(tmp_path: Path) -> None:
    other = msgspec.structs.replace(CONFIG, run=RunSection(steps=5, seed=7))
    views = [
        view_in(folder_of(tmp_path / "one", RICH), "one"),
        view_in(folder_of(tmp_path / "two", RICH, other), "two"),
    ]
    written = comparison(views)
    assert re.findall(r'<tr class=marked><th scope="row" class="name">([^<]+)', written) == ["seed"]
    assert "<title>one, two: report of 2 runs</title>" in written


def test_a_copy_of_another_length_and_pace_is_compared_over_what_both_have(tmp_path: Path) -> None:
    """The real run lasts 490 ms, 390 of them on the tape; the copy 300 ms, with steps of half the length."""
    kill = Kill(at_ns=150 * MS, target="b")
    tape = Tape(name="dawn", learners=("a", "b"), actions=(kill, Restart(at_ns=360 * MS, target="b")))
    half = [msgspec.structs.replace(event, step_ns=50 * MS) if isinstance(event, StepReported) else event
            for event in until(300)]  # fmt: skip
    folders = folder_of(tmp_path / "real", RICH), folder_of(tmp_path / "copy", half, simulated=True)
    tapes.write(tape, folders[0] / "tape.jsonl")
    tapes.write(msgspec.structs.replace(tape, actions=(kill,)), folders[1] / "tape.jsonl")
    real, copy = view_in(folders[0], "real"), view_in(folders[1], "copy")
    said = read(comparison([real, copy])).said
    assert "The real run lasted until 0.39 s of the tape, the simulated one until 0.3 s" in said
    assert "Tape dawn, until 0.3 s of it" in said
    assert "--set virtual.step_s=0.1." in said and "--steps 5." in said
    tapes.write(tape, folders[1] / "tape.jsonl")
    said = read(comparison([real, view_in(folders[1], "copy")])).said
    assert "Of 2 actions of the tape, 1 came after the end of the simulated run and was not played." in said


def test_what_it_takes_to_start_a_process_is_named_where_two_runs_differ_in_it(tmp_path: Path) -> None:
    """b is started again at 200 ms of the tape, and joins 300 ms later, in the copy at once."""
    actions = (Kill(at_ns=150 * MS, target="b"), Restart(at_ns=200 * MS, target="b"))
    tape = Tape(name="dawn", learners=("a", "b"), actions=actions)
    begun = [joined(0, "a"), joined(0, "b"), step(100, "a", 1), step(100, "b", 1)]
    views = []
    for name, at, simulated in (("real", 600, False), ("copy", 201, True)):
        again = [joined(at, "b", 2), live(at + 100, "b"), step(at + 100, "b", 1), step(1000, "a", 2)]
        folder = folder_of(tmp_path / name, [*begun, *again], simulated=simulated)
        tapes.write(tape, folder / "tape.jsonl")
        views.append(view_in(folder, name))
    said = read(comparison(views)).said
    assert "From its start to its joining a process took 0.3 s in the real run and 0.001 s in the simulated one" in said
    assert "--set virtual.start_s=0.3." in said


def test_a_learner_that_rejoins_many_times_fills_a_row_and_not_the_page(tmp_path: Path) -> None:
    events: list[Event] = []
    for start in range(400):
        at = start * 1000
        events += [LearnerJoined(at * MS, "a", start + 1, False), live(at + 100, "a"), step(at + 100, "a", 1)]
    assert len(page_of(tmp_path, events)) < 200_000
