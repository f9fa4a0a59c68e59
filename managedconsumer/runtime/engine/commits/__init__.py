"""The commits of one consumer: one worker carries them out, in order."""
