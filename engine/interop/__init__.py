"""What others read and write: run folders as batches for a platform. Light: no torch."""
