"""Assigns envs to lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle


def deal_envs(hosts: Sequence[int], kinds: Sequence[str], speeds: Mapping[str, float]) -> list[int]:
    """Deal envs to lanes, and return the index of the lane of each env.

    On lanes of one kind, the envs are dealt round-robin. Otherwise whole hosts are dealt to the kinds, in proportion to
    the speed of their lanes, and then round-robin to the lanes of the kind: the envs of one host are compared with each
    other, and devices of different kinds round differently.

    Args:
        speeds: Speed of a lane of each kind, in any unit; not used if there is only one kind.
    """
    if len(set(kinds)) == 1:
        return [index % len(kinds) for index in range(len(hosts))]
    capacity = {kind: kinds.count(kind) * speeds[kind] for kind in kinds}
    envs = dict.fromkeys(capacity, 0)
    kind_of_host: dict[int, str] = {}
    for host, size in Counter(hosts).items():
        kind = min(capacity, key=lambda kind: (envs[kind] + size) / capacity[kind])
        kind_of_host[host] = kind
        envs[kind] += size
    turns = {kind: cycle([lane for lane, each in enumerate(kinds) if each == kind]) for kind in capacity}
    return [next(turns[kind_of_host[host]]) for host in hosts]
