"""Reports calls of the user's code that do not return, of this rank and of the others."""

from __future__ import annotations

from esper.common.system.ranks import RankGroup
from esper.recordings import events as ev
from esper.recordings.state.hub import EventHub
from esper.training.lanes.call_watch import LIMIT_S, CallSupervisor, OverdueCall


def report_calls(supervisor: CallSupervisor, hub: EventHub, ranks: RankGroup) -> None:
    """Let a supervisor report to the hub. Rank 0 also reports the calls of the ranks that it waits for."""

    def report_call(call: OverdueCall, seconds: float | None) -> None:
        if ranks.rank > 0:  # its events reach rank 0 after the step only
            ranks.put_note(supervisor.overdue)
        elif seconds is None:
            hub.emit(ev.CallOverdue(**call._asdict(), max_seconds=LIMIT_S))
        else:
            hub.emit(ev.CallEnded(env=call.env, seconds=seconds))

    def check_others() -> None:
        for rank, call in ranks.read_notes().items():
            supervisor.check(rank, call)

    supervisor.report = lambda text: hub.emit(ev.Logged(severity="warning", text=text))
    supervisor.report_call = report_call
    if ranks.rank == 0:
        ranks.while_waiting = check_others
