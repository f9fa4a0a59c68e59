"""The fetch path, by verb: plan (what to ask whom), buffer (what has come), collect (one message to the user), resets."""
