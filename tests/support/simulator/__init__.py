"""A deterministic simulation of consumer groups: the real membership machine in a modelled world, from one seed."""

from tests.support.simulator.client import Weather
from tests.support.simulator.member import Handling, SimulatedMember
from tests.support.simulator.schedule import Outcome, Profile, Schedule
from tests.support.simulator.world import SimulationError

__all__ = ["Handling", "Outcome", "Profile", "Schedule", "SimulatedMember", "SimulationError", "Weather"]
