"""Java's regular expressions, as far as topic filters need them, in time linear in the topic's name.

Imported with the first filter: it takes 1 MiB, and most members name their topics.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.wire.registry.regex.matcher import MAX_STEPS, matches
    from consumerd.wire.registry.regex.parser import parse
    from consumerd.wire.registry.regex.program import MAX_INSTRUCTIONS, Program, size
    from consumerd.wire.registry.regex.re2 import require_re2
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.wire.registry.regex.matcher": "MAX_STEPS matches",
            "consumerd.wire.registry.regex.parser": "parse",
            "consumerd.wire.registry.regex.program": "MAX_INSTRUCTIONS Program size",
            "consumerd.wire.registry.regex.re2": "require_re2",
        },
    )

__all__ = ["MAX_INSTRUCTIONS", "MAX_STEPS", "Program", "matches", "parse", "require_re2", "size"]
