"""What somebody does to groups, offsets and topics of others (admin), and the move to another cluster (migrate)."""
