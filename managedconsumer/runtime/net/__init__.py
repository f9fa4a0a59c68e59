"""Sockets, TLS, SASL, connections."""
