"""Pipeline parallelism: one model over several devices, stage by stage, micro-batch by micro-batch."""
