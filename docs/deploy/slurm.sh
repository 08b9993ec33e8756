#!/bin/bash
# Trains on several machines of a Slurm cluster: one task is one worker, with one GPU.
#
#   sbatch docs/deploy/slurm.sh train.py --epochs 10
#   CONTAINER="apptainer exec --nv unisono.sif" sbatch docs/deploy/slurm.sh train.py
#
# The tasks of a node divide its GPUs among themselves: `--ntasks-per-node=1` makes one worker with all GPUs of the node.
# The script calls unisono.distribute.auto_strategy(), which reads Slurm's variables; nothing else has to be set.
# The backup directory must be one that every node sees.
#SBATCH --job-name=unisono
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120   # two minutes before the end: all workers save at the same step and stop
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -euo pipefail

attempts=${SLURM_RESTART_COUNT:-0}
echo "attempt $attempts on $SLURM_JOB_NODELIST"

# srun returns the highest status. It must not end the others when one fails, because tasks that it ends have status 143 too:
# workers notice a lost one themselves.
status=0
srun --kill-on-bad-exit=0 --wait=120 --label \
    env UNISONO_TIMEOUT="${UNISONO_TIMEOUT:-60}" PYTHONUNBUFFERED=1 ${CONTAINER:-} python "$@" || status=$?

# A node that is lost does not run even this.
lost_node() {
    ! timeout 60 srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true
}

# The job is queued again, and continues from its last backup, where a signal asked it to save and stop (status 143) or a node
# was lost. An error of the program is the same in the next attempt, and so are damaged
# backups (65): the job ends.
if ((attempts < 20)) && ((status != 65)) && { ((status == 143)) || { ((status != 0)) && lost_node; }; }; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
