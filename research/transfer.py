"""Does a policy transfer to deeper hosts than those of its training? Two families to train and to evaluate it on.

    esper-sanctum --task research/transfer.py:SHALLOW --envs 32 --rounds 60
    esper-sanctum evaluate --checkpoint last --task research/transfer.py:DEEP

The hosts of `SHALLOW` have two or three slots, and the host of `DEEP` has four. Both draw the settings of
`digits_family`, whose deepest host is that of `DEEP`.

The training of 60 rounds takes about an hour on one core, the evaluation minutes.
"""

from __future__ import annotations

from esper import Family
from esper.networks.tasks.builtin.digits_family import DIGITS_FAMILY, digits_host

MAX_TRAINING_SLOTS = 3

SHALLOW = Family(
    "shallow_digits",
    structures=[
        digits_host("short_1x1", (8, 16), kernel_size=1),
        *(host for host in DIGITS_FAMILY.structures if len(host.slots) <= MAX_TRAINING_SLOTS),
    ],
    settings=DIGITS_FAMILY.settings,
)
DEEP = Family(
    "deep_digits",
    structures=[host for host in DIGITS_FAMILY.structures if len(host.slots) > MAX_TRAINING_SLOTS],
    settings=DIGITS_FAMILY.settings,
)
