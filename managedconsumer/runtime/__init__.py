"""The only package with sockets, locks, threads and greenlets; all of its code waits through a handler."""
