"""Support code for the tests and benchmarks of consumerd itself, which is in no wheel.

Brokers of other projects, fetched with Maven (`jafka`, `kafka`, `kafka_cluster`), and clients of theirs
(`jafka_clients`); a disk in memory that forgets what was not synced (`forgetful_disk`). What the tests of users need,
too, is in `consumerd.testing`.
"""
