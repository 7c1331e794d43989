"""A member of a group: what was handled (`offsets`), what is read (`fetch`), and the members themselves (`consumer`).

In: assigned partitions and a handler. Out: handled messages and committed offsets. Begin with `consumer`, which calls
the other two; none of them imports it.
"""
