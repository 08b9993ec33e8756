"""Pipeline parallelism: one model over several devices, stage by stage, micro-batch by micro-batch."""

from .pipeline import Pipeline, current_pipeline
from .remote import StageError, connect
from .schedule import Simulation, simulate
from .timeline import Timeline

__all__ = ["Pipeline", "Simulation", "StageError", "Timeline", "connect", "current_pipeline", "simulate"]
