"""The demo: a whole cluster on loopback, members that come, die and leave, and a count of every message."""

from consumerd.embedded.demo.play import Demo
from consumerd.embedded.demo.result import DemoOptions, DemoResult
from consumerd.embedded.demo.view import PlainView, TerminalView, View, pipeline_table

__all__ = ["Demo", "DemoOptions", "DemoResult", "PlainView", "TerminalView", "View", "pipeline_table"]
