"""What happens around steps: checkpoints, exact resume, progress, profiles."""
