"""Metrics: the counts on the way of a message, their names, and their form for Prometheus.

Strategy: numbers are plain attributes of the objects that count them (`Histogram` here, integers elsewhere), and cost
an addition each. Nothing is pushed: a reader asks for `Reading`s when it needs them, and there are three readers of the
same ones: Prometheus (`consumerd.base.metrics.exposition`, the extra `metrics`), `/status.json`, and the summary in the
log. The list of all metrics is in one place (`consumerd.base.metrics.catalogue`), and the documentation is checked
against it.

In: counts of the other rooms. Out: readings by the names of the catalogue, as text of Prometheus or data of OTLP.

Files in reading order: catalogue, histogram, own, exposition, otlp.
"""
