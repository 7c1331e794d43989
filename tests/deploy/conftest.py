"""The members that are deployed here are of a cluster of the kill tests."""

from __future__ import annotations

from tests.kill.conftest import cluster

__all__ = ["cluster"]
