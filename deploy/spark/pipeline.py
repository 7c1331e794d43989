"""Run a declared pipeline by spark-submit: the same steps as `consumerd spark run`.

    spark-submit deploy/spark/pipeline.py -c events.toml [--pipeline NAME] [land refine ...]

Master, resources and jars (`--packages`, for Avro) are spark-submit's; where Python runs this file without it, the jar
for Avro is fetched. The result is one JSON object on
standard output. The exit codes are those of the `consumerd` command.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.spark.packages import required_packages
from consumerd.spark.run import DEFAULT_STEPS, STEPS, run_pipeline
from consumerd.spark.session import build_session
from consumerd.spark.spec import load_spark


def main() -> int:
    """Run the steps; the exit code."""
    parser = argparse.ArgumentParser(description="Run the steps of a pipeline that a configuration file declares.")
    parser.add_argument("-c", "--config", type=Path, required=True, help="the TOML file")
    parser.add_argument("--pipeline", help="which pipeline, where the file declares several")
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}; all but compact if none is named"
    )
    arguments = parser.parse_args()
    try:
        spec = load_spark(arguments.config)
        pipeline = spec.pipeline(arguments.pipeline)
        needs = required_packages([pipeline], spec.config)
        spark = build_session(
            app_name=f"consumerd spark {pipeline.name}",
            config={**spec.config, **needs.config},
            packages=needs.packages,  # too late under spark-submit, which has them by --packages
        )
        try:
            result = run_pipeline(spark, pipeline, arguments.steps or DEFAULT_STEPS)
        finally:
            spark.stop()
    except ConsumerdError as error:
        print(f"consumerd: {error}", file=sys.stderr)  # noqa: T201
        return int(error.exit_code)
    print(json.dumps(result.as_json(), default=str))  # noqa: T201
    reconciled = result.as_json().get("reconcile")
    return int(ExitCode.OK if reconciled is None or reconciled["clean"] else ExitCode.CHECK_FAILED)


if __name__ == "__main__":
    sys.exit(main())
