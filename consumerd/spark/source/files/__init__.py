"""What the daemon's `files` handler wrote: planned in the driver, read by executors."""
