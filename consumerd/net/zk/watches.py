"""The watch table: callbacks for paths that may have changed.

Strategy: level-triggered. A watcher is notified that its reading may be stale and reads again, which arms the server's
one-shot watch again; it is never notified of the change itself. Server watches die with their connection, so after
every reconnect all watchers are notified. Nothing is ever re-armed in bulk: with thousands of watches that request
would be larger than the server accepts (and aiozk never recovers from a connection that breaks during it).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class WatchTable:
    """Callbacks by absolute path."""

    def __init__(self) -> None:
        self._by_path: dict[str, dict[object, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def add(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Register a watcher; the returned function unregisters it and may be called twice."""
        token = object()
        self._by_path.setdefault(path, {})[token] = changed

        def remove() -> None:
            watchers = self._by_path.get(path)
            if watchers and watchers.pop(token, None) and not watchers:
                del self._by_path[path]

        return remove

    def fire(self, path: str) -> None:
        """Call the watchers of one path."""
        for changed in list(self._by_path.get(path, {}).values()):
            self._call(changed, path)

    def fire_all(self) -> None:
        """Call all watchers: their readings from before the reconnect may be stale."""
        for path in list(self._by_path):
            self.fire(path)

    def _call(self, changed: Callable[[], None], path: str) -> None:
        try:
            changed()
        except Exception:  # one watcher's defect must not stop the others, or the session
            log.exception("zookeeper_watcher_failed", path=path)
