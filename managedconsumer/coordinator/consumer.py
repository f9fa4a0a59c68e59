"""The public names of :mod:`managedconsumer.consumer_coordinator`, where kafka-python has them."""

from __future__ import annotations

from managedconsumer.consumer_coordinator import ConsumerCoordinator as ConsumerCoordinator
from managedconsumer.coordinator_metrics import ConsumerCoordinatorMetrics as ConsumerCoordinatorMetrics
from managedconsumer.coordinator_workers import AutoCommitTask as AutoCommitTask
