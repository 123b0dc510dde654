"""`research/growth_search.py`: answers are chosen on fresh hosts, and compared on hosts that chose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from research.growth_search import STEPS, Job, Played, choose_answer, measure
from research.growth_statistics import BEST_CONSTANT, EVALUATION_HOSTS, FRESH_HOSTS, POLICY, SEARCH_HOST, answer_key

from esper.common.configuration.config import Config
from esper.common.system.disk import write_replaced
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.candidates.candidates import BARE_HOST
from esper.recordings.events.codec import encode_json
from research import growth_search, growth_statistics

GOOD = "1:conv_light@early 2:conv_light@mid"
"""The only plan that is better than the bare host on every host."""
LUCKY = "1:depthwise@early"
"""The best plan on the host of the search, and nowhere else."""


class Game:
    """Plays candidates by a formula, and counts the episodes."""

    def __init__(self) -> None:
        self.played: Counter[Job] = Counter()

    def play(self, jobs: Sequence[Job]) -> list[Played]:
        """Return an episode of each job."""
        self.played.update(jobs)
        return [self._episode(name, host) for name, host in jobs]

    def _episode(self, name: str, host: int) -> Played:
        value = {BARE_HOST: 0.5, GOOD: 0.7}.get(name, 0.4) + 0.01 * host
        if name == LUCKY and host == SEARCH_HOST:
            value = 0.9
        steps = 3 if name.startswith("norm") else STEPS  # these break down
        return Played([value * (step + 1) / STEPS for step in range(steps)], "", 0.1)


def test_a_cell_compares_answers_on_hosts_that_chose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth_search, "COUNTS", (8, 16))
    prepared = prepare_task(Config(task="digits_impaired", steps=STEPS, policy="pretrained"))
    game = Game()
    cell = measure(prepared, 1, game.play)
    assert cell.answers[BEST_CONSTANT] == cell.answers[answer_key("guided", 8)] == GOOD
    assert (cell.answers[BARE_HOST], cell.answers[POLICY]) == (BARE_HOST, "pretrained")
    assert cell.returns[BEST_CONSTANT] == pytest.approx([0.7 + 0.01 * host for host in EVALUATION_HOSTS])
    assert {host for _, host in game.played} == {SEARCH_HOST, *FRESH_HOSTS, *EVALUATION_HOSTS}
    guided = [result for result in cell.searches if result.kind == "guided"]
    assert [result.trials for result in guided] == [8, 16]
    finals = 4 * len(FRESH_HOSTS)
    assert finals < guided[0].episodes <= 8 + finals < guided[1].episodes <= 16 + finals
    assert guided[0].fresh_return == pytest.approx(0.73)
    path = tmp_path / f"{cell.task}-1.json"
    for seed in (1, 2):
        write_replaced(path.with_name(f"{cell.task}-{seed}.json"), encode_json(cell))
    results = growth_statistics.read_results(tmp_path, [cell.task], [1, 2, 3])
    assert results.by_cell("guided 8", BARE_HOST) == pytest.approx([0.2, 0.2])
    monkeypatch.setattr(growth_statistics, "PAIRS", (("guided 16", "random 8"), ("guided 8", BARE_HOST)))
    monkeypatch.setattr(growth_statistics, "SHOWN", (BARE_HOST, "guided 8"))
    growth_statistics.print_tables(tmp_path, [cell.task], [1, 2, 3])
    printed = capsys.readouterr().out
    assert "| guided 8 − bare host | +0.200 [+0.200, +0.200] | +0.200 | 2, 0, 0 | +0.200 (digits_impaired) |" in printed
    assert "+0.785 | +0.200 [+0.200, +0.200] | 0 of 2 |" in printed


def test_a_plan_that_is_lucky_on_one_host_is_not_the_answer() -> None:
    assert choose_answer([BARE_HOST, LUCKY], Game().play)[0] == BARE_HOST
    assert choose_answer([BARE_HOST, LUCKY, GOOD], Game().play)[0] == GOOD
