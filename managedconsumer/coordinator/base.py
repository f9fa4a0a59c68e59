"""The public names of :mod:`managedconsumer.consumers.group_coordinator`, where kafka-python has them."""

from __future__ import annotations

from managedconsumer.consumers.coordinator_metrics import GroupCoordinatorMetrics as GroupCoordinatorMetrics
from managedconsumer.consumers.group_coordinator import BaseCoordinator as BaseCoordinator
from managedconsumer.consumers.group_coordinator import HeartbeatTask as HeartbeatTask
