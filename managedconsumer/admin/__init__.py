"""Questions about a cluster without consuming: groups and their lag, topics, single messages, other offsets."""
