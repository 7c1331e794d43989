"""The command line: one thin module per command, imported only when it is called.

Easy to miss:

- Python returns exit code 0 for a child that another wait has taken away. An orphan looks the same, so the first
  process of a container waits for nothing but its one child and the orphans (`cli.init`).
"""
