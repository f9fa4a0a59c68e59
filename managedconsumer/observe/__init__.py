"""Metrics, lag, health, the rebalance recorder and its pictures."""
