"""Which commands there are, and what becomes of their errors.

Decides names and order of the commands, and that an error the user can mend is one sentence without a traceback. What a
command does is in the module of its name; exit codes are in ``exits``; what becomes of one whose output nobody takes is
in ``streams``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from unlockstep.cli import exits
from unlockstep.cli.certs import certs
from unlockstep.cli.chaos import chaos
from unlockstep.cli.doctor import doctor
from unlockstep.cli.evaluator import evaluator
from unlockstep.cli.learner import learner
from unlockstep.cli.replay import replay
from unlockstep.cli.report import report
from unlockstep.cli.simulate import simulate
from unlockstep.cli.status import status
from unlockstep.cli.stop import stop
from unlockstep.cli.streams import Stream, outlasting_streams
from unlockstep.cli.syncer import syncer
from unlockstep.cli.tape import tape
from unlockstep.cli.train import train
from unlockstep.core.errors import LocalProtocolError, Unanswered, UnlockstepError, UsageError
from unlockstep.core.foreign_text import printable
from unlockstep.files import DISK_FULL

BadArguments: type[Any] = typer.BadParameter.__mro__[2]
"""Base of what typer raises for a command line it cannot read; the one class of its it does not export."""

WATCHED = frozenset({"train", "chaos", "syncer", "learner", "evaluator"})
"""Commands that take part in a run: what they print is to be watched, what comes of them is in files and at others."""

app = typer.Typer(
    name="unlockstep",
    help="Train one model on many independent groups of machines that never wait for each other.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    if isinstance(context.obj, Stream):
        context.obj.is_result = context.invoked_subcommand not in WATCHED
    if version:
        from unlockstep import __version__

        typer.echo(__version__)
        raise typer.Exit()


for _command in (train, syncer, learner, evaluator, status, stop, doctor, report, replay, chaos):
    app.command(_command.__name__)(_command)
app.add_typer(simulate, name="simulate")
app.add_typer(tape, name="tape")
app.add_typer(certs, name="certs")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command line, without the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    with outlasting_streams() as output:
        code = _run(arguments, output)
    return code or exits.FAILED if output is not None and output.is_lost else code


def _run(arguments: Sequence[str] | None, output: Stream | None) -> int:
    try:
        code = app(arguments, standalone_mode=False, obj=output)
        return code if isinstance(code, int) else exits.DONE
    except BadArguments as error:
        error.show()
        return exits.USAGE
    except Unanswered as error:
        return _say(error, exits.UNANSWERED)
    except UsageError as error:
        return _say(error, exits.USAGE)
    except LocalProtocolError:
        traceback.print_exc()
        return exits.BUG
    except UnlockstepError as error:
        return _say(error, exits.FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return exits.INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_FULL:
            traceback.print_exc()
            return exits.BUG
        return _say(UnlockstepError(f"what was to be written does not fit ({error}); free some space"), exits.FAILED)
    except Exception:
        traceback.print_exc()
        return exits.BUG


def _say(error: Exception, code: int) -> int:
    print(f"error: {printable(str(error))}", file=sys.stderr)
    return code
