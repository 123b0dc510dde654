"""digits_family with the rent drawn from five values: the policy learns to read it."""

from esper.tasks.digits_family import DIGITS_FAMILY
from esper.tasks.family import RENT, Family, Setting

task = Family(
    "digits_rents",
    structures=list(DIGITS_FAMILY.structures),
    settings={**DIGITS_FAMILY.settings, RENT: Setting([0.0005, 0.001, 0.002, 0.004, 0.008])},
)
