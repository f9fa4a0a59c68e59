"""The name under which plans of simulated schedules were first published; they are in ``simulation.plan``."""

from __future__ import annotations

from managedconsumer.testing.simulation.plan import KINDS as KINDS
from managedconsumer.testing.simulation.plan import Plan as Plan
from managedconsumer.testing.simulation.plan import make_plan as make_plan
