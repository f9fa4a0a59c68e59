"""What people ask of a cluster who do not consume: groups and their lag, topics, one message, other offsets."""
