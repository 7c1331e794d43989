"""Process lifecycle: configuration, logging, signals, service notification."""
