"""The only room with sockets, locks, threads and greenlets; everything in it waits through a handler."""
