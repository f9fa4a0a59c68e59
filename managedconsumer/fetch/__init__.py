"""The fetch path: plan (requests), buffer (fetched messages), collect (the next message), resets."""
