"""What a command line returned."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from consumerd.base.errors import ExitCode


class Done(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """Lines of a pipe, split at tabs."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """The object of a command that ended as commands do that have something to say."""
        assert self.code in (0, ExitCode.REFUSED, ExitCode.CHECK_FAILED), self
        return json.loads(self.out)
