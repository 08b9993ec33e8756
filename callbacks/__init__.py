"""What happens around steps: checkpoints, exact resume, Keras' callbacks, progress, profiles."""

from keras.callbacks import (
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

from .backup.backup_and_restore import BackupAndRestore
from .backup.files.container import BackupMismatchError, DamagedFileError, NewerFormatError
from .backup.files.store import BackupInfo, latest_backup, list_backups, read_backup
from .callback import Callback
from .diagnosis.anomaly_report import AnomalyReport, AnomalyWarning
from .monitoring.json_lines import JSONLines
from .monitoring.profiler import Profiler
from .monitoring.progress import ProgressBar
from .monitoring.tensorboard import TensorBoard
from .report.page import compare_reports
from .report.training_report import TrainingReport
from .safe_file import SaveError
from .saving.checkpoint_files import verify_checkpoint
from .saving.model_checkpoint import ModelCheckpoint

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
    "SaveError",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
    "TrainingReport",
    "compare_reports",
    "latest_backup",
    "list_backups",
    "read_backup",
    "verify_checkpoint",
]


def __dir__() -> list[str]:
    return sorted(__all__)
