"""What all tables of the configuration have in common."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from pydantic import BaseModel, ConfigDict

Seconds = Annotated[float, Gt(0)]
Bytes = Annotated[int, Gt(0)]


class Section(BaseModel):
    """A table of the file. Unknown keys are errors."""

    # What is wrong may be a password.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
