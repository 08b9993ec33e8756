"""The page that says what one training, or several, did: made from the JSON lines that `TrainingReport` writes."""

from .charts import check_installed as check_installed
from .comparison import compare_reports as compare_reports
from .comparison import write_page as write_page
from .page import PAGE as PAGE
from .page import render as render
from .runs import Run as Run
from .runs import find_runs as find_runs
from .runs import read_run as read_run
