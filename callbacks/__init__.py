"""What happens around steps: checkpoints, exact resume, Keras' callbacks, progress, profiles."""

from keras.callbacks import (
    Callback,
    CallbackList,
    CSVLogger,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    OrbaxCheckpoint,
    ProgbarLogger,
    ReduceLROnPlateau,
    RemoteMonitor,
    SwapEMAWeights,
    TerminateOnNaN,
)

from .backup_and_restore import BackupAndRestore
from .backup_store import BackupInfo, latest_backup, list_backups, read_backup
from .container import DamagedFileError, NewerFormatError
from .diagnosis import Diagnosis, DiagnosisWarning, RetracingWarning, SlowInputWarning, StragglerWarning
from .diagnosis_anomaly import AnomalyReport, AnomalyWarning
from .fit_snapshot import BackupMismatchError
from .json_lines import JSONLines
from .model_checkpoint import ModelCheckpoint
from .profiler import Profiler
from .progress import ProgressBar
from .safe_file import SaveError
from .safe_file import verify_sum as verify_checkpoint
from .tensorboard import TensorBoard
from .training_report import TrainingReport

__all__ = [
    "AnomalyReport",
    "AnomalyWarning",
    "BackupAndRestore",
    "BackupInfo",
    "BackupMismatchError",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "DamagedFileError",
    "Diagnosis",
    "DiagnosisWarning",
    "EarlyStopping",
    "History",
    "JSONLines",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "NewerFormatError",
    "OrbaxCheckpoint",
    "Profiler",
    "ProgbarLogger",
    "ProgressBar",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "RetracingWarning",
    "SaveError",
    "SlowInputWarning",
    "StragglerWarning",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
    "TrainingReport",
    "latest_backup",
    "list_backups",
    "read_backup",
    "verify_checkpoint",
]
