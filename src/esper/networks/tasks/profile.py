"""TaskProfile: the properties of a task that its probe found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from esper.networks.seeds.blueprints import BLUEPRINTS
from esper.networks.seeds.site import SlotSite
from esper.networks.tasks.task import Chance


@dataclass(frozen=True, kw_only=True)
class TaskProfile:
    """The properties of a task that its dry runs found.

    Attributes:
        sites: Places of the slots in use, in the order of the forward pass.
        blueprints: Blueprints that the policy can select, in the order of its head.
        shares_prefix: True if counterfactuals can share the part of the forward pass before a slot.
        prefix_problem: Reason why they cannot; empty if they can.
        channels_last: True if the model runs in the channels-last memory format.
        host_parameters: Number of parameters of the model.
        kernel_size: Largest kernel size of the model's convolutions; 1 without any.
        chance: Loss and score of a constant output.
        warnings: Probable faults of the task, one sentence each.
        structures: Properties of each structure of a family; empty for another task. The sites are then those of the
            structure with the most slots, and the blueprints those of all structures.
    """

    sites: tuple[SlotSite, ...]
    blueprints: tuple[str, ...]
    shares_prefix: bool
    prefix_problem: str = ""
    channels_last: bool
    host_parameters: int = 0
    kernel_size: int = 1
    chance: Chance
    warnings: tuple[str, ...] = ()
    structures: tuple[TaskProfile, ...] = ()

    def of_structure(self, index: int) -> TaskProfile:
        """Return the properties of one structure."""
        return self.structures[index] if self.structures else self

    def with_shared_prefix(self, shares_prefix: bool) -> TaskProfile:
        """Return the profile with the way of computing counterfactuals that a checkpoint used."""
        structures = tuple(replace(structure, shares_prefix=shares_prefix) for structure in self.structures)
        return replace(self, shares_prefix=shares_prefix, structures=structures)

    @property
    def is_causal(self) -> bool:
        """True if no output of the model depends on later positions of the input."""
        return any(site.is_causal for site in self.sites)


def combine_profiles(profiles: Sequence[TaskProfile]) -> TaskProfile:
    """Return the profile of a family, whose structures share the order of the blueprints and the data."""
    names = [name for name in BLUEPRINTS if any(name in profile.blueprints for profile in profiles)]
    blueprints = tuple(dict.fromkeys([*max(profiles, key=lambda profile: len(profile.blueprints)).blueprints, *names]))
    shares_prefix = all(profile.shares_prefix for profile in profiles)
    channels_last = all(profile.channels_last for profile in profiles)
    structures = tuple(
        replace(profile, blueprints=blueprints, shares_prefix=shares_prefix, channels_last=channels_last)
        for profile in profiles
    )
    largest = max(structures, key=lambda profile: len(profile.sites))
    warnings = tuple(warning for profile in profiles for warning in profile.warnings)
    return replace(largest, warnings=warnings, structures=structures)
