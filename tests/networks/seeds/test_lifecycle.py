import math

import pytest

from esper.networks.seeds.lifecycle import GateConfig, GateResult, gate_g1, gate_g2, gate_g3, gate_g5

CONFIG = GateConfig(training_epochs=2, max_grad_norm=10.0)


def failed(result: GateResult) -> list[str]:
    assert result.passed == (not [check for check in result.checks if not check.passed])
    return [check.name for check in result.checks if not check.passed]


def test_gate_g1_requires_one_epoch() -> None:
    assert failed(gate_g1(0)) == ["epochs germinated"]
    assert not failed(gate_g1(1))


@pytest.mark.parametrize(
    ("epochs", "grad_norm", "expected"),
    [
        (2, 0.5, []),
        (2, 0.0, []),
        (1, 0.5, ["epochs in training"]),
        (2, None, ["gradient measured"]),
        (2, math.nan, ["gradient finite", "gradient not exploding"]),
        (2, math.inf, ["gradient finite", "gradient not exploding"]),
        (2, 10.1, ["gradient not exploding"]),
        (0, None, ["epochs in training", "gradient measured"]),
    ],
)
def test_gate_g2_names_failed_checks(epochs: int, grad_norm: float | None, expected: list[str]) -> None:
    assert failed(gate_g2(epochs, grad_norm, CONFIG)) == expected


def test_gate_g2_reports_passed_checks_with_values() -> None:
    checks = {check.name: check for check in gate_g2(1, 3.0, CONFIG).checks}
    assert checks["gradient not exploding"].passed
    assert checks["gradient not exploding"].value == 3.0
    assert checks["gradient not exploding"].threshold == 10.0


def test_gate_g3_compares_exactly() -> None:
    assert not failed(gate_g3(0.7, 0.7))
    assert failed(gate_g3(0.6999999, 0.7)) == ["alpha at target"]


def test_gate_g5_requires_measurement() -> None:
    assert failed(gate_g5(None, CONFIG)) == ["dependence measured"]
    assert not failed(gate_g5(-0.5, CONFIG))


def test_gate_g5_without_measurement_requirement_passes() -> None:
    assert not failed(gate_g5(None, GateConfig(require_dependence=False)))
