"""Process lifecycle: configuration, logging, signals, service notification.

In: a `Config`. Out: a process: its members, log_output, logs, answers to signals, HTTP and metrics.

Files in reading order: service, loop, members, signals, reload, notify, watchdog, monitor, subscription_monitor,
health, lag, lag_exporter, stalls, stacks, memory, log_output, logs, console, repeats, recent, readings, endpoints,
probes, status, status_page, group_view, checks, online_checks, permission_checks, dialect, telemetry,
telemetry_signals, otel, tracing, mirroring, forward_mirror, forwarding, broker_readings.

Easy to miss:

- uvloop installs its own wakeup descriptor for signals whenever it starts to run, and so does `add_signal_handler`.
- A signal that arrives between Python's last check for signals and a system call is not noticed before that call
  returns: a thread has to read the wakeup descriptor. A forked child shares the descriptor.
- C code that keeps the GIL stops every thread, and the handlers of signals. faulthandler's thread needs no GIL, but its
  clock runs on while the process is stopped, so that nothing is armed in advance that would end a process which was
  only frozen.
- An error that is raised again collects the frames of all that pass it on, libraries included: those of the handler are
  behind the last of our frames that call it.
- structlog adds local variables to tracebacks, which may contain passwords.
"""
