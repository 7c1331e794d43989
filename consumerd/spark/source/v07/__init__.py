"""Logs of Kafka 0.7, on live brokers and in segment files: planned in the driver, read by executors."""
