"""The decisions of ``consumer.run(handler)``: which message starts, which is finished, what may be committed. Pure."""
