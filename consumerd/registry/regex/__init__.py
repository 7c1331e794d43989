"""Java's regular expressions, as far as topic filters need them, in time linear in the topic's name."""

from consumerd.registry.regex.matcher import MAX_STEPS, matches
from consumerd.registry.regex.parser import parse
from consumerd.registry.regex.program import MAX_INSTRUCTIONS, Program, size

__all__ = ["MAX_INSTRUCTIONS", "MAX_STEPS", "Program", "matches", "parse", "size"]
