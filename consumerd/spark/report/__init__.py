"""The report of a pipeline: one self-contained HTML page. `facts` has its content, `page` and `plots` show it.

Files in reading order: facts, measure, groups, wording, plots, page, writing.
"""
