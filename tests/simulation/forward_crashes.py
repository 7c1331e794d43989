"""Daemons with the handler `forward`, with a fault at one chosen PRODUCE request, or at one await of the first daemon.

Strategy: as in `tests.simulation.copy_crashes`: a daemon drains when it is stopped and when a second one joins, and the
next owner of a partition continues. Messages that were not committed when a daemon was killed may be on the target
twice, unless the handler continues after what the target has; a fault of the target repeats nothing, as the brokers
know the producer's batches. What was forwarded from another cluster, and stands behind a daemon's own messages when it
is killed, does not mislead the next one.
"""

from __future__ import annotations

from typing import Literal

from consumerd.handlers.forward.settings import ForwardResume
from tests.simulation.copy_crashes import CopySteps, MemberFault, disturb_copy
from tests.simulation.forward_world import ForwardWorld

#: What happens at a PRODUCE request.
ClusterFault = Literal["cut", "broker stops", "leader moves", "refused"]


def disturb_forwarding(
    number: int,
    fault: ClusterFault | MemberFault,
    resume: ForwardResume,
    steps: CopySteps = "requests",
    seed: int = 0,
) -> str | None:
    """Let `fault` happen before step `number`, and tell its name; None if there are fewer.

    Raises SimulationError as `disturb_copy`.
    """
    return disturb_copy(lambda: ForwardWorld(seed, resume), number, fault, steps)
