"""`python -m benchmarks [NAME ...] [OPTION ...]`: run all benchmarks, or the named ones, one after the other.

Every module here with a `main(arguments)` is a benchmark. Options go to the benchmarks that are named; without a name
all run with their defaults. The exit code is 1 when one of them says that a promise is broken.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

#: Modules that benchmarks share.
SHARED = {"__init__", "__main__", "kafka_clients", "race"}


def main(arguments: list[str]) -> int:
    """Run them."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)
    if arguments and arguments[0] in {"-h", "--help"}:
        print(f"usage: python -m benchmarks [NAME ...] [OPTION ...]\n\nNAME: {', '.join(known)} (default: all)")
        return 0
    names = []
    while arguments and not arguments[0].startswith("-"):
        names.append(arguments.pop(0))
    unknown = sorted(set(names) - set(known))
    if unknown or (arguments and not names):
        what = f"no benchmark is called {', '.join(unknown)}" if unknown else "options need the name of a benchmark"
        print(f"{what}; there is {', '.join(known)}", file=sys.stderr)
        return 2
    failed = False
    for name in names or known:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"== {name}", file=sys.stderr, flush=True)
        failed |= bool(module.main(list(arguments)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
