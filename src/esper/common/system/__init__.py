"""The system: files on disk, this process, its signals, and the other ranks."""
