"""Who may become a learner of this run: the checks a ``Join`` must pass.

Decides yes or no with a reason and a sentence for the person whose learner was turned away. Does not change anything.
"""

from __future__ import annotations

from unlockstep.core.errors import ConfigError
from unlockstep.core.ids import LEARNER_NAME_LENGTH_MAX, PROTOCOL_VERSION, is_learner_name, seconds
from unlockstep.core.layout import Layout, LayoutMethod, build_layout, explain_difference, require_describable
from unlockstep.core.membership import Member, Membership, MemberState
from unlockstep.core.messages import Join, JoinRefused
from unlockstep.core.options import ProtocolOptions
from unlockstep.core.reasons import JoinRefusal
from unlockstep.core.words import counted

DIFFERENCES_SHOWN_MAX = 8


def examine(
    join: Join,
    run_id: str,
    options: ProtocolOptions,
    members: Membership,
    layout: Layout | None,
    finished: bool,
    is_over: bool = False,
    now_ns: int = 0,
) -> Layout | JoinRefused:
    """The layout the learner and the run agree on, or why it may not join.

    Args:
        join: what the learner says of itself.
        run_id: which run this is.
        options: the run's protocol settings: how its parameters are cut.
        members: who is here already.
        layout: the run's layout; None while nobody has brought one, then this learner's is taken.
        finished: whether the run takes no more steps; then only who was here before is let in, for the last rounds.
        is_over: whether the last rounds are merged too; then nobody is.
        now_ns: time of the run.
    """
    if join.protocol_version != PROTOCOL_VERSION:
        return JoinRefused(
            JoinRefusal.PROTOCOL_VERSION,
            f"the learner speaks protocol {join.protocol_version}, the syncer {PROTOCOL_VERSION}; "
            "install the same version of unlockstep on both",
        )
    if not is_learner_name(join.learner):
        return JoinRefused(
            JoinRefusal.BAD_NAME,
            f"the learner's name is {join.learner[:LEARNER_NAME_LENGTH_MAX]!r}; use at most "
            f"{LEARNER_NAME_LENGTH_MAX} letters, digits, '_' and '-', the first a letter or digit",
        )
    if join.incarnation > 0 and join.run_id != run_id:
        return JoinRefused(
            JoinRefusal.UNKNOWN_PROCESS,
            f"the syncer does not know this process of {join.learner}: it was started anew and has lost the run's "
            "parameters; start the run anew",
        )
    member = members.get(join.learner)
    if join.incarnation > 0 and (member is None or not member.owns(join.incarnation)):
        return JoinRefused(JoinRefusal.SUPERSEDED, f"another process has joined under the name {join.learner}")
    if is_over or (finished and (member is None or not member.owns(join.incarnation))):
        return JoinRefused(JoinRefusal.RUN_FINISHED, "the run is over; start a new one")
    is_out = member is not None and member.state is MemberState.QUARANTINED
    # However many processes come and go under its name; and one that was shut out itself has to begin anew first.
    if member is not None and is_out and (join.incarnation > 0 or now_ns < member.out_until_ns):
        return _quarantined(member, members.retry_ns(member, now_ns))
    if (member is None or not member.is_present) and len(members.present()) >= (most := options.learners_max):
        return JoinRefused(
            JoinRefusal.TOO_MANY_LEARNERS,
            f"{counted(most, 'learner')} {'is' if most == 1 else 'are'} present; raise protocol.learners_max or stop "
            "one",
        )
    return _agree(join, options, layout)


def _quarantined(member: Member, retry_ns: int) -> JoinRefused:
    until = f"it may join again in {seconds(retry_ns)}" if retry_ns else "see the syncer's run log"
    return JoinRefused(
        JoinRefusal.QUARANTINED,
        f"contributions of {member.learner} were refused {counted(member.strikes, 'time')} in a row; {until}",
        retry_ns,
    )


def _agree(join: Join, options: ProtocolOptions, layout: Layout | None) -> Layout | JoinRefused:
    try:
        require_describable(join.tensors)
        if layout is None:
            layout = build_layout(join.tensors, options.fragments, LayoutMethod(options.layout))
    except ConfigError as error:
        return JoinRefused(JoinRefusal.LAYOUT_MISMATCH, str(error))
    if layout.digest == join.layout_digest:
        return layout
    differences = explain_difference(layout.specs(), join.tensors)
    shown = "; ".join(differences[:DIFFERENCES_SHOWN_MAX])
    if len(differences) > DIFFERENCES_SHOWN_MAX:
        shown += f"; and {len(differences) - DIFFERENCES_SHOWN_MAX} more"
    detail = shown or (
        "its tensors are the run's, but it cuts them differently; take protocol.fragments and protocol.layout "
        "from the syncer"
    )
    return JoinRefused(
        JoinRefusal.LAYOUT_MISMATCH, f"the model is not the run's (here: the run, there: this learner): {detail}"
    )
