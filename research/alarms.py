"""Which anomalies do the rules of this version find in recorded runs, compared with those recorded?

    python -m research.alarms telemetry/RUN telemetry/demo-faults

Takes seconds for each run. Thresholds are those of the recording, else the defaults.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from esper.recordings import events as ev
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.history.history import open_history

_ANOMALY_EVENTS = (ev.AnomalyFound, ev.AnomalyJoined, ev.AnomalyLeft, ev.AnomalyEnded)


def compare(run: Path) -> None:
    """Print the anomalies of a recording, recorded and found, by rule."""
    recorded, found, joined = Counter[str](), Counter[str](), Counter[str]()
    detector, rounds, steps = AnomalyDetector(), 0, 0
    for event in open_history(run).events():
        if isinstance(event, ev.AnomalyFound):
            recorded[event.rule] += 1
        if isinstance(event, _ANOMALY_EVENTS):
            continue
        if isinstance(event, ev.RunStarted):
            detector = AnomalyDetector(Thresholds.from_recording(event))
        rounds += isinstance(event, ev.RoundStarted)
        steps += isinstance(event, ev.PhaseTimed)
        for finding in detector.check(event):
            found[finding.rule] += isinstance(finding, ev.AnomalyFound)
            joined[finding.rule] += isinstance(finding, ev.AnomalyJoined)
            if isinstance(finding, ev.AnomalyFound):
                print(f"  {finding.text}")
    print(f"{run}: {rounds} rounds, {steps} steps")
    print(f"{'rule':24}{'recorded':>10}{'found':>10}{'joined':>10}")
    for rule in sorted({*recorded, *found}):
        print(f"{rule:24}{recorded[rule]:10}{found[rule]:10}{joined[rule]:10}")
    print(f"{'all':24}{recorded.total():10}{found.total():10}{joined.total():10}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compare(Path(name))
