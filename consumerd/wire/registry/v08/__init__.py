"""Names and values of znodes as Kafka 0.8 and later writes them: JSON."""
