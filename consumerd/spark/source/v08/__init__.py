"""Reading brokers of Kafka 0.8 and later from Spark."""
