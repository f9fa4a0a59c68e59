"""The fetch path by verb: plan (what to ask whom), buffer (what has come), collect (the next message), resets."""
