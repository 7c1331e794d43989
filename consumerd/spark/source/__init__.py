"""The data source: partitions of live 0.7 brokers and of archives as rows of a DataFrame.

What executors load are `columns`, `split`, `rows`, `reading` and the modules that these import: of consumerd they take
`wire` and `storage` alone. Whatever plans in the driver stands beside them and is not imported from here.
"""
