"""Fetching from brokers of Kafka 0.8 and later."""
