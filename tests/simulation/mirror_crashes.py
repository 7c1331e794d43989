"""The mirror with a fault at one chosen request to the target, or at one of its awaits.

Strategy: as in `tests.simulation.copy_crashes`. Those messages may be on the target twice whose confirmation the mirror
had not got when the connection ended, or that were not committed when the mirror was killed.
"""

from __future__ import annotations

from typing import Literal

from consumerd.producer import ProducerSettings
from tests.simulation.copy_crashes import CopySteps, MemberFault, disturb_copy
from tests.simulation.mirror_world import MirrorWorld

#: What happens at a request to the target.
TargetFault = Literal["cut", "broker restarts", "broker leaves"]


def disturb_mirror(
    number: int, fault: TargetFault | MemberFault, steps: CopySteps = "requests", seed: int = 0, *, verify: bool = False
) -> str | None:
    """Let `fault` happen before step `number`, and tell its name; None if there are fewer.

    Raises SimulationError as `disturb_copy`. While a broker is not in its cluster, partitions have other places.
    """

    def make() -> MirrorWorld:
        return MirrorWorld(seed, ProducerSettings(verify=verify))

    return disturb_copy(make, number, fault, steps, places_kept=fault != "broker leaves")
