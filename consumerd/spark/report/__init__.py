"""The report of a pipeline: one self-contained HTML page. `facts` has its content, `page` and `plots` show it."""

from consumerd.spark.report.writing import ReportResult, write_report

__all__ = ["ReportResult", "write_report"]
