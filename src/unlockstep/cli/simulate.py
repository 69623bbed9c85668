"""``unlockstep simulate``: questions that a simulation answers in seconds and a run would not in a year.

Decides names and flags of the questions about fleets. What they do is in ``simulate_goodput``, ``sim.bandwidth`` and
``sim.advise``; what they print is in ``simulate_tables``. ``swarm`` and ``tape``, which play the protocol itself, are
whole commands in ``simulate_swarm`` and ``simulate_tape``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from unlockstep.cli.simulate_swarm import swarm
from unlockstep.cli.simulate_tape import tape as play_tape

simulate = typer.Typer(
    help="Answer by simulation. A run would take too long, or too many chips.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def whole(text: str | int) -> int:
    """A whole number, which may be written 2400000, 2_400_000 or 2.4e6."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise typer.BadParameter(f"{text!r} is not a whole number")


def _whole(*names: str, what: str) -> Any:
    return typer.Option(*names, help=what, parser=whole, metavar="INTEGER")


Chips = Annotated[int | None, _whole("--chips", what="Chips of the whole fleet.")]
Learners = Annotated[int | None, _whole("--learners", what="M; 1 is elastic data-parallel. [default: 8]")]
SliceChips = Annotated[int | None, _whole("--slice", what="Chips that leave and return together. [default: 256]")]
MtbiYears = Annotated[
    float | None, typer.Option(help="Mean time between interruptions of one chip, years. [default: 1]")
]
MtbiS = Annotated[float | None, typer.Option("--mtbi-s", help="The same in seconds.")]
Config = Annotated[Path | None, typer.Option(help="Settings of the fleet as TOML, by their names; flags win.")]
Failures = Annotated[int, _whole("--failures", what="Failures to simulate for each fleet.")]
Seed = Annotated[int, typer.Option(help="Of the simulation: the same seed gives the same numbers.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

Rigid = Annotated[bool | None, typer.Option("--rigid/--elastic", help="Without elasticity: every failure restarts.")]


def _seconds(what: str, default: int) -> Any:
    """The default is that of ``Fleet``, which would load NumPy for a mere ``--help``."""
    return typer.Option(help=f"{what} [default: {default}]")


Notice = Annotated[float | None, _seconds("Training between a chip's failure and its notice, seconds.", 2)]
Downscale = Annotated[float | None, _seconds("Elastic: stall of a learner that loses a slice.", 22)]
Upscale = Annotated[float | None, _seconds("Elastic: stall of a learner that takes slices back.", 12)]
MergeWait = Annotated[float | None, _seconds("Elastic: a returned slice waits so long for another stall to join.", 90)]
Return = Annotated[float | None, _seconds("Mean time until a failed slice is back.", 300)]
ReturnShape = Annotated[float | None, typer.Option(help="Shape of the Weibull law of returns. [default: 1.5]")]
ReturnPower = Annotated[float | None, typer.Option(help="Exponent of that law. [default: 1]")]
Restart = Annotated[float | None, _seconds("Rigid: stall until it runs again.", 81)]
Checkpoint = Annotated[float | None, _seconds("Rigid: stall for each checkpoint.", 0)]
CheckpointInterval = Annotated[float | None, _seconds("Rigid: time between them; 0: the optimum.", 0)]
Spares = Annotated[int | None, typer.Option(help="Rigid: slices kept idle as replacements. [default: 0]")]
Swap = Annotated[float | None, _seconds("Rigid: stall while a spare takes over.", 30)]
SpeedSpread = Annotated[float | None, typer.Option(help="Coefficient of variation of the chips' speeds. [default: 0]")]

Table = Annotated[str | None, typer.Option(help="paper: the 30 cells of the paper's table, beside its own.")]
Sweeps = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="FIELD=VALUES", help="a,b,c or start:stop:count (in the logarithm); up to twice."),
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure (.png, .pdf or .svg); needs the extra plots.")]
TapeFile = Annotated[Path | None, typer.Option("--tape", help="Write what happens to the learners as an event tape.")]
Duration = Annotated[float | None, typer.Option(help="Length of the tape, seconds.")]


@simulate.command()
def goodput(
    context: typer.Context,
    chips: Chips = None,
    learners: Learners = None,
    rigid: Rigid = None,
    mtbi_years: MtbiYears = None,
    interruption_s: MtbiS = None,
    slice_chips: SliceChips = None,
    notice_s: Notice = None,
    downscale_s: Downscale = None,
    upscale_s: Upscale = None,
    merge_wait_s: MergeWait = None,
    return_s: Return = None,
    return_shape: ReturnShape = None,
    return_power: ReturnPower = None,
    restart_s: Restart = None,
    checkpoint_s: Checkpoint = None,
    checkpoint_interval_s: CheckpointInterval = None,
    spares: Spares = None,
    swap_s: Swap = None,
    speed_spread: SpeedSpread = None,
    config: Config = None,
    table: Table = None,
    sweeps: Sweeps = None,
    plot: Plot = None,
    tape: TapeFile = None,
    duration_s: Duration = None,
    failures: Failures = 30_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How much of their time chips train. What counts is the share that chips that fail spend on progress."""
    from unlockstep.cli import simulate_goodput
    from unlockstep.cli.simulate_fleet import FLAGS

    request = simulate_goodput.Request(
        flags={name: context.params[name] for name in FLAGS},
        config=config,
        table=table,
        sweeps=tuple(sweeps or ()),
        plot=plot,
        tape=tape,
        duration_s=duration_s,
        failures=failures,
        seed=seed,
        as_json=as_json,
    )
    simulate_goodput.goodput(request)


Params = Annotated[float, typer.Option(help="Parameters of the model, e.g. 5e9.")]
StepS = Annotated[float, typer.Option(help="Seconds of an inner step.")]


@simulate.command()
def bandwidth(
    params: Params,
    step_s: StepS = 1.0,
    learners: Annotated[int, typer.Option(help="M: sites.")] = 8,
    interval_steps: Annotated[int, typer.Option(help="H")] = 24,
    fragments: Annotated[int, typer.Option(help="P")] = 24,
    overlap_steps: Annotated[int, typer.Option(help="tau")] = 2,
    link_gbit: Annotated[
        float | None, typer.Option(help="Also say how busy the chips are on such a link, Gbit/s each way.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What each method needs between sites. In Gbit/s, for each number format."""
    from unlockstep.cli import simulate_tables
    from unlockstep.cli.output import print_json
    from unlockstep.sim.bandwidth import UTILISATIONS, Workload, compare, published

    workload = Workload(
        params=params,
        step_s=step_s,
        learners=learners,
        interval_steps=interval_steps,
        fragments=fragments,
        overlap_steps=overlap_steps,
    )
    rows, beside = compare(workload, link_gbit), published()
    if as_json:
        print_json({"workload": workload, "utilisations": UTILISATIONS, "rows": rows, "published": beside})
    else:
        simulate_tables.show(*simulate_tables.bandwidth_view(workload, rows, beside))


AdviseLearners = Annotated[
    str | None,
    typer.Option(
        metavar="M[,M...]",
        help="Choose among these numbers of learners alone; one fixes it, as where every site is a learner. "
        "[default: 2, 4, 8, ... up to --learners-max, and the learners of --config]",
    ),
]
LearnersMax = Annotated[int | None, typer.Option(help="Largest M to consider without --learners. [default: 16]")]


@simulate.command()
def advise(
    context: typer.Context,
    params: Params,
    step_s: StepS,
    link_gbit: Annotated[float, typer.Option(help="Gbit/s each way between a learner and the syncer.")],
    chips: Chips = None,
    learners: AdviseLearners = None,
    mtbi_years: MtbiYears = None,
    interruption_s: MtbiS = None,
    slice_chips: SliceChips = None,
    config: Config = None,
    syncer_gbit: Annotated[
        float | None, typer.Option(help="Gbit/s each way of all the syncer's links. [default: what is needed]")
    ] = None,
    syncer_cores: Annotated[int, typer.Option(help="Cores that merge.")] = 16,
    round_trip_s: Annotated[float, typer.Option(help="Between a learner and the syncer.")] = 0.05,
    tensors: Annotated[int, typer.Option(help="Tensors of the model: at most so many fragments.")] = 256,
    tokens_per_step: Annotated[int, _whole("--tokens-per-step", what="Of all learners together; 0: unknown.")] = 0,
    learners_max: LearnersMax = None,
    failures: Failures = 30_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Which M, H, P, K and codec to use, and why. They are for these chips, failures, model and links."""
    from unlockstep.cli import simulate_fleet, simulate_tables
    from unlockstep.cli.output import print_json
    from unlockstep.sim import advise as adviser

    flags = {name: context.params[name] for name in ("chips", "mtbi_years", "interruption_s", "slice_chips")}
    fleet, counts = simulate_fleet.advised(simulate_fleet.settings(config, flags), learners, learners_max)
    question = adviser.Question(
        fleet=fleet,
        learners=counts,
        params=params,
        step_s=step_s,
        link_gbit=link_gbit,
        syncer_gbit=syncer_gbit,
        syncer_cores=syncer_cores,
        round_trip_s=round_trip_s,
        tensors=tensors,
        tokens_per_step=tokens_per_step,
    )
    advice = adviser.advise(question, failures=failures, seed=seed)
    if as_json:
        print_json(simulate_tables.advice_record(question, advice))
    else:
        simulate_tables.show(*simulate_tables.advice_view(question, advice))


simulate.command("swarm")(swarm)
simulate.command("tape")(play_tape)
