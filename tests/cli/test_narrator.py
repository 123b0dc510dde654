"""The narrator: a run as plain sentences, for screen readers."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from msgspec import structs

from esper.cli.console import MAX_SENTENCES_PER_SECOND, Narrator
from esper.cli.options import NarrationDetail
from esper.common.domain import StageName
from esper.recordings import events as ev
from esper.recordings.events.sentences import to_ascii
from esper.recordings.state.state import Keyframe, Record, RunState
from tests.factory import env_stepped, example_run, run_started, stamp
from tests.recordings.files.recordings import fold


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def narrate(records: list[Record], stream: io.StringIO | None = None, detail: NarrationDetail = "all") -> list[str]:
    stream = stream or io.StringIO()
    Narrator(stream, detail).run(records)
    return stream.getvalue().splitlines()


def sentences_after_step_3(*events: ev.AnyEvent) -> list[str]:
    """Narrate events that follow step 3 of round 1 of a run of two envs."""
    earlier = [run_started(2), ev.RoundStarted(round=1), env_stepped(0, 1, 3), env_stepped(1, 1, 3)]
    return narrate([*stamp([*earlier, *events])])[1:]


def seed(after: StageName) -> ev.SeedMoved:
    return ev.SeedMoved(
        round=1, step=4, env=1, slot="mid", before="dormant", after=after, blueprint="norm", reason="op germinate"
    )


ANOMALY = ev.AnomalyFound(
    rule="stalled env",
    severity="warning",
    where="env 1",
    env=1,
    value=0.1,
    threshold=0.5,
    text="env 01: 0.1 is below 0.5",
)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (seed("germinated"), "env 01 mid norm planted, at round 1 step 4"),
        (seed("fossilized"), "env 01 mid norm fossilized, at round 1 step 4"),
        (seed("culled"), "env 01 mid norm culled, at round 1 step 4"),
        (ANOMALY, "warning: env 01: 0.1 is below 0.5, at round 1 step 3"),
        (ev.AnomalyEnded(rule="stalled env", where="env 1", env=1), "env 01: stalled env ended, at round 1 step 3"),
        (ev.AnomalyEnded(rule="KL spike", where="policy"), "policy: KL spike ended, at round 1 step 3"),
        (
            ev.CheckpointSaved(round=1, step=3, path="p", bytes=2**20, origin="keyboard"),
            "checkpoint at round 1 step 3 (keyboard), 1.0 MiB",
        ),
        (ev.ControlRequested(kind="pause", origin="keyboard"), "pause requested (keyboard), at round 1 step 3"),
        (ev.Paused(round=1, step=3, origin="keyboard"), "paused at round 1 step 3 (keyboard)"),
        (
            ev.Paused(round=1, step=3, origin="engine", reason="the disk is full"),
            "error: paused at round 1 step 3 (engine): the disk is full",
        ),
        (ev.Resumed(round=1, step=2, origin="keyboard", checkpoint="c"), "resumed at round 1 step 2 from c (keyboard)"),
        (ev.Logged(severity="warning", text="no room"), "warning: no room"),
        (ev.RunEnded(outcome="failed", reason="out of memory"), "error: run failed: out of memory"),
    ],
)
def test_notable_events_produce_dated_sentences(event: ev.AnyEvent, sentence: str) -> None:
    assert sentences_after_step_3(event) == [sentence]


def test_routine_events_produce_no_sentence() -> None:
    step_timed = ev.PhaseTimed(round=1, step=4, wall=0.1, phases={})
    assert sentences_after_step_3(env_stepped(0, 1, 4), step_timed, seed("training")) == []


def test_narrator_covers_a_whole_run() -> None:
    run = example_run()
    state = fold(run)

    lines = narrate([*run])

    assert lines[0] == "run digits_impaired-20261121-015300: ppo on digits_impaired, 4 envs on cpu:0 x2, cpu:1 x2"
    assert lines[-1] == "run done"
    assert [line for line in lines if line.startswith("round ")] == [
        f"round {number}/2: median accuracy {median:.1%} ({minimum:.1%} to {maximum:.1%}), "
        "mean return +0.600, KL 0.0120, entropy 0.90"
        for number, (minimum, _, median, _, maximum) in enumerate(state.scores_by_round, start=1)
    ]
    assert "error: env 01: the gradient of the host is NaN at round 1 step 3" in lines


def test_narrator_prints_plain_ascii_on_a_terminal() -> None:
    stream = Terminal()
    run = stamp([run_started(), ev.Logged(severity="info", text="größer ≠ 1\x1b[2J\nnext · –")])

    lines = narrate([*run], stream)

    assert lines[1:] == [r"gr\xf6\xdfer \u2260 1\x1b[2J\nnext - -"]
    assert stream.getvalue().isascii()


def test_narrator_continues_from_a_keyframe() -> None:
    """Viewers that attach later start from a keyframe, and so does the output after a restored checkpoint."""
    run = example_run()
    lines = narrate([*run])

    later = narrate([Keyframe.from_state(fold(run[:36])), *run[36:]])

    assert 1 < len(later) < len(lines)
    assert later == lines[-len(later) :]


def test_narrator_gives_no_step_before_the_first_round() -> None:
    requested = ev.ControlRequested(kind="stop", origin="signal")
    assert narrate([Keyframe.from_state(RunState()), *stamp([run_started(), requested])])[1:] == [
        "stop requested (signal)"
    ]


@pytest.mark.parametrize("text", ["plain", 'it\'s "so" \\ so', "~ !"])
def test_ascii_text_is_unchanged(text: str) -> None:
    assert to_ascii(text) == text


def test_summary_narration_has_rounds_anomalies_checkpoints_and_faults() -> None:
    lines = narrate([*example_run()], detail="summary")

    assert [line.partition(":")[0] for line in lines if line.startswith("round ")] == ["round 1/2", "round 2/2"]
    assert any("checkpoint" in line for line in lines)
    assert "error: env 01: the gradient of the host is NaN at round 1 step 3" in lines
    assert lines[-1] == "run done"
    assert not [line for line in lines if "planted" in line or " ended" in line]


def test_summary_narration_delays_sentences_beyond_two_a_second() -> None:
    faults = [ev.Logged(severity="warning", text=f"fault {number}") for number in range(5)]
    times = [100.0, 100.1, 100.2, 100.3, 100.4, 100.5, 101.2, 102.3]
    events = [run_started(), *faults, ev.RoundStarted(round=1), ev.RoundStarted(round=2)]
    run = [structs.replace(event, time=time) for event, time in zip(stamp(events), times, strict=True)]
    stream = io.StringIO()
    narrator = Narrator(stream, "summary")

    printed: list[int] = []

    def watched() -> Iterator[Record]:
        for record in run:
            yield record
            printed.append(len(stream.getvalue().splitlines()))

    narrator.run(watched())

    assert printed == [1, 2, 2, 2, 2, 2, 4, 6]
    assert MAX_SENTENCES_PER_SECOND == 2
    assert [line for line in stream.getvalue().splitlines() if "fault" in line] == [
        f"warning: fault {number}" for number in range(5)
    ]


@pytest.mark.parametrize(
    "last",
    [ev.Logged(severity="error", text="the disk is full"), ev.Paused(round=1, step=3, origin="keyboard")],
)
def test_summary_narration_holds_nothing_back_before_an_error_or_a_pause(last: ev.AnyEvent) -> None:
    """No record follows while a run is held, so nothing may wait for one."""
    warnings = [ev.Logged(severity="warning", text=f"warning {number}") for number in range(3)]
    run = [structs.replace(event, time=100.0) for event in stamp([run_started(), *warnings, last])]
    stream, printed = io.StringIO(), list[int]()

    def watched() -> Iterator[Record]:
        yield from run
        printed.append(len(stream.getvalue().splitlines()))

    Narrator(stream, "summary").run(watched())

    assert printed == [5]
