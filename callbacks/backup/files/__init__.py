"""The files of backups: their content as bytes, the directory that has them, its owner, and the thread that writes."""
