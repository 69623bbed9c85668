"""``unlockstep report``: the summary of a run from its folder, the verdict on it, and what is said of a damaged one."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import msgspec
import pytest

from support.logs import GOOD, changed, event, until, without
from support.reports import CONFIG, folder_of
from unlockstep import config as run_config
from unlockstep import tape as tapes
from unlockstep.checkers import RULES
from unlockstep.cli import app, exits
from unlockstep.core.events import FragmentAdopted, FragmentCommitted, RoundOpened, SyncerResumed
from unlockstep.core.syncer import SyncerCore
from unlockstep.keeper import Snapshot, take_up
from unlockstep.runlog import Header, Mark, RunLogWriter
from unlockstep.store.place import LocalPlace
from unlockstep.store.run_store import RunStore

COMMITTED = event(FragmentCommitted)
BAD = changed(COMMITTED, version=2)


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_run_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["report", str(folder_of(tmp_path, GOOD))]) == exits.DONE
    out = shown(capsys)
    assert "night: finished after 5 steps and 100 tokens" in out
    assert "kept" not in out


@pytest.mark.parametrize(
    ("length", "of"), [({"steps": 2000}, "5 of 2000 steps"), ({"steps": 5, "tokens": 101}, "100 of 101 tokens")]
)
def test_a_run_that_was_stopped_early_has_not_finished(
    length: dict[str, int], of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = msgspec.structs.replace(CONFIG, run=run_config.RunSection(**length))
    folder = str(folder_of(tmp_path, GOOD, config, config))
    assert app.run(["report", folder]) == exits.DONE
    assert "night: stopped after 5 steps and 100 tokens" in shown(capsys)
    assert app.run(["report", folder, "--json"]) == exits.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["ending"], told["sentence"]) == ("stopped", f"the run was stopped at {of}")


def test_its_log_will_do_as_well_as_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, GOOD)
    assert app.run(["report", str(folder)]) == exits.DONE
    of_folder = capsys.readouterr().out
    assert app.run(["report", str(folder / "run.jsonl")]) == exits.DONE
    assert capsys.readouterr().out == of_folder


def test_a_good_run_keeps_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["report", str(folder_of(tmp_path, GOOD)), "--check"]) == exits.DONE
    out = shown(capsys)
    assert all(f"{rule} kept" in out for rule in RULES)


def test_a_broken_rule_is_told_and_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["report", str(folder_of(tmp_path, BAD)), "--check"]) == exits.FAILED
    written = capsys.readouterr()
    out = " ".join(written.out.split())
    assert "versions broken" in out and "weights kept" in out
    assert "versions, at 0.23 s: version 2 of fragment 0 is committed after version 0" in out
    assert written.err == f"error: the run breaks 2 of {len(RULES)} rules: staleness, versions\n"


def test_many_violations_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = [*until(300), *[event(FragmentAdopted)] * 50]
    assert app.run(["report", str(folder_of(tmp_path, log)), "--check"]) == exits.FAILED
    out = shown(capsys)
    assert out.count("adoption, at") == 20 and "and 30 more" in out


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, BAD)
    assert app.run(["report", str(folder), "--json"]) == exits.DONE
    plain = json.loads(capsys.readouterr().out)
    assert plain["ending"] == "finished" and "checks" not in plain
    assert app.run(["report", str(folder), "--json", "--check"]) == exits.FAILED
    checked = json.loads(capsys.readouterr().out)
    assert checked.pop("checks")["versions"][0] == {
        "rule": "versions",
        "at_ns": 230_000_000,
        "sentence": "version 2 of fragment 0 is committed after version 0",
    }
    assert checked == plain


@pytest.mark.parametrize("at", [0, 200, 215, 500])
def test_a_run_that_goes_on_is_judged_as_far_as_it_went(
    at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["report", str(folder_of(tmp_path, until(at))), "--check"]) == exits.DONE
    assert "night: unfinished" in shown(capsys)


def test_a_last_line_cut_short_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = folder_of(tmp_path, GOOD) / "run.jsonl"
    log.write_bytes(log.read_bytes()[:-7])
    assert app.run(["report", str(tmp_path), "--check"]) == exits.DONE
    out = shown(capsys)
    assert "night: unfinished" in out and "was cut short and counts for nothing" in out


def test_how_a_run_ended_is_in_the_words_of_whoever_watched_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, GOOD)
    (folder / "summary.json").write_bytes(msgspec.json.encode({"ending": "interrupted", "sentence": "Ctrl-C"}))
    assert app.run(["report", str(folder)]) == exits.DONE
    assert "night: interrupted" in shown(capsys)


def test_a_log_that_contradicts_itself_is_still_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, without(event(RoundOpened)))
    assert app.run(["report", str(folder)]) == exits.USAGE
    assert "contradicts itself and cannot be summed up; --check says where" in capsys.readouterr().err
    assert app.run(["report", str(folder), "--check"]) == exits.FAILED
    assert "rounds broken" in shown(capsys)


def test_of_several_runs_each_is_headed_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one name."""
    monkeypatch.chdir(tmp_path)  # The page of several runs is written there.
    for name in ("one", "two"):
        folder_of(tmp_path / name, GOOD)
    assert app.run(["report", "one", "two"]) == exits.DONE
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    heads = [above for above, line in itertools.pairwise(lines) if line.startswith("night: finished")]
    assert heads == ["one", "two"]


def test_a_folder_of_runs_is_told_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        folder_of(tmp_path / name, GOOD)
    assert app.run(["report", str(tmp_path)]) == exits.USAGE
    said = capsys.readouterr().err
    assert f"is a folder of 2 runs, and no run; name a run itself, such as {tmp_path}/" in said


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("nowhere", "there is no run log"),
        ("no log", "there is no run log"),
        ("no settings", "without the run's settings"),
        ("other settings", "is not the configuration that"),
        ("damaged", "line 3 is not an event"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(
    wrong: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = msgspec.structs.replace(CONFIG, run=run_config.RunSection(steps=7))
    folder = folder_of(tmp_path, GOOD, other if wrong == "other settings" else CONFIG, CONFIG)
    match wrong:
        case "nowhere":
            folder = tmp_path / "nowhere"
        case "no log":
            (folder / "run.jsonl").unlink()
        case "no settings":
            (folder / "config.toml").unlink()
        case "damaged":
            lines = (folder / "run.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "run.jsonl").write_bytes(b"".join([*lines[:2], b"{\n", *lines[2:]]))
    assert app.run(["report", str(folder), "--check"]) == exits.USAGE
    written = capsys.readouterr()
    assert written.out == "" and written.err.count("\n") == 1 and sentence in written.err


def saved_by(folder: Path, *marks: Mark) -> None:
    """What each life of a syncer saves: where its log ended."""
    for mark in marks:
        keeper, _ = take_up(RunStore(LocalPlace(folder / "store")), "night", "digest")
        state = SyncerCore("night", CONFIG.protocol, 5, 0, "id").saved(0)
        keeper.save(Snapshot(run=state, layout=None, kept={}, norms=(), log=mark))


@pytest.mark.parametrize(
    ("lives", "sentence"),
    [
        ([0], None),
        ([1], "run.jsonl was cut short: it has"),
        (
            [0, ("run.0002-0003.jsonl", 70)],
            "run.0002-0003.jsonl is missing, and the run was saved when it had 70 bytes",
        ),
        ([0, ("run.jsonl", 70)], "run.0002-0001.jsonl is missing, and the run was saved when it had 70 bytes"),
    ],
    ids=["all there", "cut short", "a part", "of a standby with a folder of its own"],
)
def test_a_log_whose_end_is_not_there_is_not_checked_in_silence(
    lives: list[int | tuple[str, int]], sentence: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, GOOD)
    size = (folder / "run.jsonl").stat().st_size
    saved_by(folder, *(Mark("run.jsonl", size + life) if isinstance(life, int) else Mark(*life) for life in lives))
    assert app.run(["report", str(folder)]) == exits.DONE
    out = " ".join(shown(capsys).split())
    assert ("The end of the log is not there" in out) == (sentence is not None)
    assert app.run(["report", str(folder), "--check"]) == (exits.DONE if sentence is None else exits.USAGE)
    written = capsys.readouterr()
    assert "kept" in written.out and (sentence or "") in written.err


def test_a_log_whose_beginning_is_elsewhere_says_what_to_bring_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C28: two syncers with folders of their own; the files of both are called run.jsonl."""
    parts = [tmp_path / name for name in ("leader", "standby", "both")]
    for folder in parts:
        folder.mkdir()
        (folder / "config.toml").write_text(run_config.dumps(CONFIG), encoding="utf-8")
    header = Header(run="night", config_digest=run_config.digest(CONFIG))
    with RunLogWriter(parts[0] / "run.jsonl", header) as log:
        log.write(GOOD[:1])
        mark = log.mark
    with RunLogWriter(parts[1] / "run.jsonl", header, life=3, continues=mark) as log:
        log.write([SyncerResumed(GOOD[0].at_ns, 3, 0, ())])
    assert app.run(["report", str(parts[1]), "--check"]) == exits.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "to have it checked, call it run.0003-0001.jsonl and put run.jsonl of that one beside it" in said
    (parts[0] / "run.jsonl").rename(parts[2] / "run.jsonl")
    (parts[1] / "run.jsonl").rename(parts[2] / "run.0003-0001.jsonl")
    assert app.run(["report", str(parts[2])]) == exits.DONE
    assert "syncer went on once from what it had saved" in shown(capsys)


# ------------------------------------------------------------------------------------------------- what is written


def test_a_page_is_written_into_the_run_folder_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "run", GOOD)
    assert app.run(["report", str(folder)]) == exits.DONE
    assert f"page written: {folder / 'report.html'}" in shown(capsys)
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_goes_where_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = folder_of(tmp_path / "run", GOOD), tmp_path / "page.html"
    assert app.run(["report", str(folder), "--html", str(page)]) == exits.DONE
    assert page.is_file() and not (folder / "report.html").exists()
    assert f"page written: {page}" in shown(capsys)


def test_with_json_a_page_is_written_only_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = folder_of(tmp_path / "run", GOOD), tmp_path / "page.html"
    assert app.run(["report", str(folder), "--json"]) == exits.DONE
    assert not (folder / "report.html").exists()
    assert app.run(["report", str(folder), "--json", "--html", str(page)]) == exits.DONE
    assert page.is_file()
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_where_no_page_can_be_written_the_summary_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "run", GOOD)
    (folder / "report.html").mkdir()
    assert app.run(["report", str(folder)]) == exits.DONE
    out = shown(capsys)
    assert "night: finished" in out
    assert "report.html cannot be written (Is a directory); choose a place you may write to with --html" in out
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "report.html", "run.jsonl"]


@pytest.mark.parametrize("flag", ["--html", "--trace"])
def test_a_file_that_was_asked_for_and_cannot_be_written_is_an_error(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "run", GOOD)
    nowhere = tmp_path / "nowhere" / "file"
    assert app.run(["report", str(folder), flag, str(nowhere)]) == exits.USAGE
    written = capsys.readouterr()
    assert "night: finished" in written.out
    assert written.err == (
        f"error: {nowhere} cannot be written (No such file or directory); choose a place you may write to with {flag}\n"
    )


@pytest.mark.parametrize("flag", ["--html", "--trace", "--tensorboard"])
@pytest.mark.parametrize(
    "name",
    [
        *("run.jsonl", "run.0002-0001.jsonl", "config.toml", "tape.jsonl", "summary.json", "checkpoint"),
        *("model/model.safetensors", "store/layout.json", "logs/syncer.log", "store/fragments/000", "audit.jsonl"),
        *("learners/a.safetensors", "chaos/a.json", "processes.json"),
    ],
)
def test_what_a_run_has_left_is_not_overwritten(
    name: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = folder_of(tmp_path / "run", GOOD), folder_of(tmp_path / "other", GOOD)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    target = other / ".." / "run" / name
    # That run's page, or another's.
    for runs in ([str(folder)], [str(other)], *([[str(other), str(folder)]] if flag != "--trace" else [])):
        assert app.run(["report", *runs, flag, str(target)]) == exits.USAGE
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err == f"error: {flag} {target} would overwrite a file of the run; choose another place\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_page_that_nobody_named_is_not_written_over_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "run", GOOD)
    assert app.run(["report", str(folder), "--trace", str(folder / "report.html")]) == exits.USAGE
    assert f"the page and --trace are both {folder / 'report.html'}; name two files" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--html", "--trace"])
def test_a_link_that_leads_to_itself_gives_way(flag: str, tmp_path: Path) -> None:
    folder, loop = folder_of(tmp_path / "run", GOOD), tmp_path / "loop"
    loop.symlink_to(loop)
    assert app.run(["report", str(folder), flag, str(loop)]) == exits.DONE
    assert loop.is_file() and not loop.is_symlink()


def test_a_page_and_a_trace_do_not_fit_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, both = folder_of(tmp_path / "run", GOOD), str(tmp_path / "both")
    assert app.run(["report", str(folder), "--html", both, "--trace", both]) == exits.USAGE
    assert capsys.readouterr().err == f"error: --html and --trace are both {both}; name two files\n"
    assert not Path(both).exists()


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "[").mkdir()
    folder = folder_of(tmp_path / "[" / "red]", GOOD)
    assert app.run(["report", str(folder)]) == exits.DONE
    assert str(folder / "run.jsonl") in "".join(capsys.readouterr().out.split())


def test_several_runs_are_shown_one_by_one_and_compared_in_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [str(folder_of(tmp_path / name, events)) for name, events in (("one", GOOD), ("two", until(470)))]
    monkeypatch.chdir(tmp_path)
    assert app.run(["report", *folders]) == exits.DONE
    out = shown(capsys)
    assert "night: finished" in out and "night: unfinished" in out and out.endswith("page written: report.html")
    assert "Side by side" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert app.run(["report", *folders, "--json"]) == exits.DONE
    told = json.loads(capsys.readouterr().out)
    assert [run["ending"] for run in told["runs"]] == ["finished", "unfinished"]


def test_one_of_several_runs_that_breaks_a_rule_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [str(folder_of(tmp_path / name, events)) for name, events in (("one", GOOD), ("two", BAD))]
    monkeypatch.chdir(tmp_path)
    assert app.run(["report", *folders, "--check"]) == exits.FAILED
    assert capsys.readouterr().err == f"error: the runs break 2 of {len(RULES)} rules: staleness, versions\n"


def test_a_trace_is_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, trace = str(folder_of(tmp_path / "run", GOOD)), tmp_path / "trace.json"
    assert app.run(["report", folder, "--trace", str(trace)]) == exits.DONE
    assert "ui.perfetto.dev" in shown(capsys)
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert app.run(["report", folder, folder, "--trace", str(trace)]) == exits.USAGE
    assert capsys.readouterr().err == f"error: --trace {trace} is of one run, and 2 are given; name one\n"


def test_without_tensorboard_its_flag_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    folder = str(folder_of(tmp_path / "run", GOOD))
    assert app.run(["report", folder, "--tensorboard", str(tmp_path / "scalars")]) == exits.USAGE
    assert 'pip install "unlockstep[tensorboard]"' in capsys.readouterr().err
    assert not (tmp_path / "scalars").exists()


def test_scalars_are_written_for_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard.summary")
    folder, scalars = str(folder_of(tmp_path / "run", GOOD)), tmp_path / "scalars"
    assert app.run(["report", folder, "--tensorboard", str(scalars)]) == exits.DONE
    assert f"scalars written: {scalars}" in shown(capsys)
    (file,) = scalars.iterdir()
    assert file.name.startswith("events.out.tfevents") and b"training loss/a" in file.read_bytes()


def test_a_tape_beside_the_log_is_taken_into_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "run", GOOD)
    tapes.write(tapes.Tape(name="dawn", learners=("a", "b", "c"), end_ns=10**9), folder / "tape.jsonl")
    assert app.run(["report", str(folder)]) == exits.DONE
    assert "33.3% down" in shown(capsys)
    (folder / "tape.jsonl").write_text("damaged", encoding="utf-8")
    assert app.run(["report", str(folder)]) == exits.USAGE
    assert "tape" in capsys.readouterr().err
