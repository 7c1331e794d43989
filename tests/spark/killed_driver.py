"""The driver that `test_process_kills.py` kills: the steps of a pipeline, as `consumerd spark run` performs them.

Arguments: the configuration, then the steps. Prints the results as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from consumerd.spark.run import run_pipeline
from consumerd.spark.session import build_session
from consumerd.spark.spec import load_spark

if __name__ == "__main__":
    spec = load_spark(Path(sys.argv[1]))
    session = build_session(spec.master, config=spec.config)
    result = run_pipeline(session, spec.pipeline(), sys.argv[2:])
    sys.stdout.write(json.dumps(result.as_json()) + "\n")
    sys.stdout.flush()
    session.stop()
