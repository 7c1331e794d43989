"""The report of a pipeline: one self-contained HTML page. `facts` says what is in it, `page` and `plots` show it."""

from consumerd.spark.report.writing import ReportResult, StepResult, write_report

__all__ = ["ReportResult", "StepResult", "write_report"]
