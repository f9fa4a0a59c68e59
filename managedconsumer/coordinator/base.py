"""The public names of :mod:`managedconsumer.group_coordinator`, where kafka-python has them."""

from __future__ import annotations

from managedconsumer.coordinator_metrics import GroupCoordinatorMetrics as GroupCoordinatorMetrics
from managedconsumer.group_coordinator import BaseCoordinator as BaseCoordinator
from managedconsumer.group_coordinator import HeartbeatTask as HeartbeatTask
