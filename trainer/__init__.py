"""Model.fit: what a step computes, how it is compiled, how epochs run."""

from . import replacements as replacements
from .model import Model as Model
from .model import Sequential as Sequential
from .model import adopt as adopt
from .model import clone_model as clone_model
from .model import load_model as load_model
from .step.global_loss import rowwise as rowwise
