"""A deterministic simulation of consumer groups: the real membership machine in a modelled world, from one seed."""

from consumerd.embedded.simulator.client import Weather
from consumerd.embedded.simulator.member import Handling, SimulatedMember
from consumerd.embedded.simulator.schedule import Outcome, Profile, Schedule
from consumerd.embedded.simulator.world import SimulationError

__all__ = ["Handling", "Outcome", "Profile", "Schedule", "SimulatedMember", "SimulationError", "Weather"]
