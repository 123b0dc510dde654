"""Step numbers: rounds and steps from 1, and steps since the start of the run."""

from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import StepNumber


@given(st.integers(0, 5), st.integers(1, 4), st.data())
def test_step_number_counts_the_steps_from_the_start_of_the_run(rounds: int, length: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(0, length - 1))
    assert StepNumber.from_completed(rounds, steps, length).steps_done(length) == rounds * length + steps
