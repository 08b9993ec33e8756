"""`keras.models` by Unisono: the same names, for programs that write `models.Sequential` or `models.load_model`."""

from keras.models import save_model as save_model

from .trainer import Model as Model
from .trainer import Sequential as Sequential
from .trainer import adopt as adopt
from .trainer import clone_model as clone_model
from .trainer import load_model as load_model
