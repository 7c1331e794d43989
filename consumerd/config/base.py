"""What all tables of the configuration have in common."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt, Le, Lt
from pydantic import AllowInfNan, BaseModel, ConfigDict

#: Thirty years: TOML has an infinity, which neither timers nor requests have.
Seconds = Annotated[float, AllowInfNan(False), Gt(0), Le(1_000_000_000)]
#: What goes to brokers as milliseconds of 32 bits.
WireSeconds = Annotated[float, AllowInfNan(False), Gt(0), Le(2_147_483)]
Bytes = Annotated[int, Gt(0)]
#: What goes to brokers as a size.
WireBytes = Annotated[int, Gt(0), Lt(1 << 31)]


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    # What is wrong may be a password.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
