"""Fetching from brokers of Kafka 0.6 and 0.7."""
