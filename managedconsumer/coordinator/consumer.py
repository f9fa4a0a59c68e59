"""The public names of :mod:`managedconsumer.consumers.consumer_coordinator`, where kafka-python has them."""

from __future__ import annotations

from managedconsumer.consumers.consumer_coordinator import AutoCommitTask as AutoCommitTask
from managedconsumer.consumers.consumer_coordinator import ConsumerCoordinator as ConsumerCoordinator
from managedconsumer.consumers.coordinator_metrics import ConsumerCoordinatorMetrics as ConsumerCoordinatorMetrics
