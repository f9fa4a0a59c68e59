"""What ``consumer.run(handler)`` decides: which message starts, what is finished, what may be committed. Pure."""
