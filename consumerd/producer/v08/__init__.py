"""The producer for brokers of Kafka 0.8 and later."""
