"""The names of `keras.models`, for programs that write `models.Sequential` or `models.load_model`."""

from keras.models import save_model

from .trainer import Model, Sequential, adopt, clone_model, load_model, model_from_json

__all__ = ["Model", "Sequential", "adopt", "clone_model", "load_model", "model_from_json", "save_model"]
