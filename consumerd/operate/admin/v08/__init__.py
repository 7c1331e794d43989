"""Groups, offsets and topics of Kafka 0.8 and later, seen and changed from outside."""
