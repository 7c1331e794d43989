"""What every room may use: errors and exit codes, names, clock, files, credentials, instruments of metrics (ring 0)."""
