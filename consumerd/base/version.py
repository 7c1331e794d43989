"""The version of the package: a file that imports nothing, for what sends or prints it."""

__version__ = "0.1.0"
