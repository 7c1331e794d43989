"""The report of a pipeline: one self-contained HTML page. `facts` says what is in it, `page` and `plots` show it."""
