"""The status page: the status document (`consumerd.service.daemon.status`) as HTML.

Strategy: what somebody needs who was woken by it comes first: the state with its reasons and the names of their alerts,
then warnings, then figures, then partitions, those that need somebody before the others, a page of them at a time.

All of it is made here, so it is whole without script; then it reloads every ten seconds. With script (`page/status.js`)
the page fetches itself and takes over what differs, element by element, so that focus, selection and a click under way
survive. Text comes in through `escape` alone; styles and script are files, since the page's policy allows nothing
within it. Colours never say what words do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

#: Seconds between loads without script.
_RELOAD: Final = 10
_WIDTH, _HEIGHT = 240, 40
#: Partitions on one page.
_ROWS: Final = 100
#: Names that one cell lists.
_LISTED: Final = 12
#: Characters of a name that a line may end in.
_LONG: Final = 40

_REASONS: Final = {
    "starting": "it connects to ZooKeeper or a first broker",
    "joining": "it joins its group",
    "rebalancing": "it does not consume all of its partitions yet",
    "session_lost": "its session is lost or in doubt",
    "brokers_unreachable": "no broker is registered, or brokers of its partitions do not answer",
    "disk_full": "a disk is full",
    "handler_hung": "a handler makes no progress",
    "stopping": "it drains and leaves",
}
#: The alerts (deploy/prometheus) that are about a reason, besides that of a member that is not ready for long.
NOT_READY_ALERT: Final = "ConsumerdNotReady"
ALERTS: Final = {
    "brokers_unreachable": ("ConsumerdNoBrokers", "ConsumerdLagUnknown"),
    "disk_full": ("ConsumerdDiskFull",),
    "handler_hung": ("ConsumerdHandlerHung",),
}

#: States of a partition that need somebody.
_BAD: Final = frozenset({"hung", "blocked", "unreachable", "no broker", "session lost"})


class Choice(NamedTuple):
    """The partitions that the page shows, and which page of them, from 1 on."""

    #: Text that their names contain.
    named: str = ""
    #: Whether only those are shown that need somebody.
    needing: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Choice:
        """What the address of the page says. What it says wrongly counts as not said."""
        number = query.get("page", "1")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
        return cls(query.get("named", "")[:300], query.get("needing") == "1", max(1, page))

    def address(self, page: int) -> str:
        """The address of another page of the same choice."""
        fields = {"named": self.named, "needing": "1" if self.needing else "", "page": "" if page == 1 else str(page)}
        return "/?" + urlencode({name: value for name, value in fields.items() if value})


ALL: Final = Choice()


def asset(name: str) -> bytes:
    """The style sheet or the script."""
    return files("consumerd.service.daemon").joinpath("page", name).read_bytes()


def render(status: dict[str, Any], *, word: str | None, choice: Choice = ALL) -> bytes:
    """The page. `word` goes into the forms that pause and resume; without it there are none."""
    group, several = escape(status["group"]), len(status["subscriptions"]) > 1
    title = f"{'ready' if status['ready'] else 'not ready'}: {group}"
    body = "".join(
        (
            _head(status),
            _errors(status["errors"]),
            _figures(status),
            _subscriptions(status["subscriptions"]) if several else "",
            _partitions(status["partitions"], word, choice, several=several),
            *(_members(each, named=several) for each in _of_each_group(status["subscriptions"])),
            _rebalances(status["rebalances"], several=several),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title} - consumerd</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="/status.css">\n'
        f'<noscript><meta http-equiv="refresh" content="{_RELOAD}"></noscript>\n'
        '<script src="/status.js" defer></script>\n</head>\n<body>\n'
        '<a class="skip" href="#partitions">Skip to the partitions</a>\n'
        f'<main id="main">\n{body}</main>\n'
        '<p id="said" role="status" aria-live="polite"></p>\n'
        f"<footer>consumerd {escape(status['version'])}, started {_when(status['started'])}. "
        '<a href="/status.json">status.json</a></footer>\n</body>\n</html>\n'
    ).encode()


def _head(status: dict[str, Any]) -> str:
    ready = status["ready"]
    reasons = status["not_ready_because"]
    because = "; ".join(_REASONS.get(each, each) for each in reasons)
    alerts = [alert for each in reasons for alert in ALERTS.get(each, ())] + ([] if ready else [NOT_READY_ALERT])
    shown_alerts = f'<p class="quiet">Alerts about this: {", ".join(alerts)}</p>\n' if alerts else ""
    consumer = status["consumer_id"]
    return (
        f"<header>\n<h1>{escape(status['group'])}</h1>\n"
        f'<p id="state" class="{"good" if ready else "bad"}"><strong>{"Ready" if ready else "Not ready"}</strong>'
        f"{escape(f': {because}') if because else ''}</p>\n{shown_alerts}"
        f'<p class="quiet">{f"Member <code>{escape(consumer)}</code>" if consumer else "No member yet"}, '
        f"up {_span(status['uptime_seconds'])}, as of {_when(status['time'])}</p>\n</header>\n"
    )


def _figures(status: dict[str, Any]) -> str:
    totals, memory, history = status["totals"], status["memory"], status["history"]
    process = status["process_memory"]
    if totals is None:
        return ""
    rates, lags = history["messages_per_second"], history["lag"]
    units = {each["lag_unit"] for each in status["partitions"]}
    unit = units.pop() if len(units) == 1 else "messages"
    figures = [
        ("Handled", f"{totals['messages']:,}", "messages"),
        ("Failed attempts", f"{totals['handler_failures']:,}", ""),
        (
            "Dead letters",
            f"{totals['dead_lettered']:,}",
            f"{totals['skipped']:,} skipped, {totals['deferred']:,} deferred",
        ),
        ("Commits", f"{totals['commits']:,}", f"{totals['failed_commits']:,} failed"),
        ("Rebalances", f"{totals['rebalances']:,}", f"{totals['lost_partitions']:,} partitions lost"),
        ("Fetch buffer", _size(memory["used"]), f"of {_size(memory['limit'])}"),
        ("Process memory", "unknown" if process is None else _size(process), "resident"),
    ]
    tiles = "".join(
        f'<div><dt>{name}</dt><dd><span class="value">{value}</span> <span class="quiet">{note}</span></dd></div>\n'
        for name, value, note in figures
    )
    now, lag = rates[-1] if rates else 0.0, lags[-1] if lags else None

    def shown(amount: float) -> str:
        return f"{amount:,} {unit}" if unit == "messages" else _size(amount)

    seconds = history["seconds"]
    charts = _chart("Throughput", f"{now:,.0f} messages/s", rates, seconds, lambda rate: f"{rate:,.0f}") + _chart(
        "Lag", "unknown" if lag is None else shown(lag), lags, seconds, shown
    )
    return (
        '<section aria-labelledby="figures-title">\n<h2 id="figures-title">Figures</h2>\n'
        f'<div class="lines">{charts}</div>\n'
        f'<dl class="tiles">\n{tiles}</dl>\n</section>\n'
    )


def _chart(
    name: str, now: str, values: Sequence[float | None], seconds: Sequence[float], shown: Callable[[float], str]
) -> str:
    """A line from 0 to the largest value, with its scale in words; it has gaps where values are unknown."""
    known = [value for value in values if value is not None]
    top = max(known, default=0)
    step = _WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{at * step:.1f},{_HEIGHT - 1 - value / (top or 1) * (_HEIGHT - 2):.1f}")
    drawn = "".join(
        f'<polyline points="{" ".join(points)}" fill="none" vector-effect="non-scaling-stroke"/>'
        for points in lines
        if points
    )
    largest, since = shown(top), f"{_span(-seconds[0])} ago" if seconds and seconds[0] < 0 else "now"
    label = f"{name}: {now}; largest since {since}: {largest}"
    return (
        f'<figure><figcaption>{name} <strong class="value">{now}</strong></figcaption>'
        f'<div class="plot"><span class="scale"><span>{largest}</span><span>0</span></span>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f'{drawn}</svg></div><div class="scale"><span>{since}</span><span>now</span></div></figure>'
    )


def _subscriptions(subscriptions: list[dict[str, Any]]) -> str:
    rows = "".join(_subscription(each) for each in subscriptions)
    columns = ["Subscription", "State", "Group", "Topics", "Handler", "Member", ">Handled", ">Dead letters"]
    return _table("subscriptions", "Subscriptions", columns, rows, "None.")


def _subscription(each: dict[str, Any]) -> str:
    because = "; ".join(_REASONS.get(reason, reason) for reason in each["not_ready_because"])
    state = "<td>ready</td>" if each["ready"] else f'<td class="bad">not ready: {escape(because)}</td>'
    totals = each["totals"] or {}
    return (
        f'<tr id="subscription-{escape(each["name"], quote=True)}"><th scope="row">{escape(each["name"])}</th>{state}'
        f"<td>{escape(each['group'])}</td><td><code>{escape(each['topics'] or '')}</code></td>"
        f"<td>{escape(each['handler'])}</td><td><code>{escape(each['consumer_id'] or '')}</code></td>"
        f"{_number(totals.get('messages'))}{_number(totals.get('dead_lettered'))}</tr>\n"
    )


def _of_each_group(subscriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first subscription of each group, with which the group is shown; this process may have several members."""
    groups: dict[str, dict[str, Any]] = {}
    for each in subscriptions:
        first = groups.setdefault(each["group"], each)
        known = [(part["members"] or {}).get("live") for part in (first, each)]
        if first is not each and known[0] is not None and known[1] is not None:
            ours = {row["id"] for row in known[1] if row["this"]}
            live = [{**row, "this": row["this"] or row["id"] in ours} for row in known[0]]
            groups[each["group"]] = {**first, "members": {**first["members"], "live": live}}
    return [*groups.values()]


def _partitions(rows: list[dict[str, Any]], word: str | None, choice: Choice, *, several: bool) -> str:
    columns = [
        "Partition",
        *(["Subscription"] if several else []),
        "State",
        ">Position",
        ">Committed",
        ">Lag",
        ">Behind",
        ">Handled",
        "Last handled",
        ">In hand",
    ]
    ordered = sorted(rows, key=_needs_somebody, reverse=True)  # which keeps the order of equals
    needing = sum(map(_needs_somebody, rows))
    chosen = [
        row
        for row in (ordered[:needing] if choice.needing else ordered)
        if choice.named in f"{row['topic']}/{row['partition']}"
    ]
    pages = max(1, -(-len(chosen) // _ROWS))
    page = min(choice.page, pages)
    body = "".join(_partition(row, word, several=several) for row in chosen[(page - 1) * _ROWS : page * _ROWS])
    notes = _choosing(choice, len(rows), needing, len(chosen)) + _pages(choice, page, pages) if rows else ""
    nothing = "No partition matches." if rows else "None are owned now."
    return _table("partitions", "Owned partitions", columns + (["Action"] if word else []), body, nothing, notes)


def _needs_somebody(row: dict[str, Any]) -> bool:
    waits = row["state"] == "starting" and row["not_consumed_because"] is not None
    return row["state"] in _BAD or row["paused"] or waits


def _choosing(choice: Choice, count: int, needing: int, shown: int) -> str:
    some = "1 needs" if needing == 1 else f"{needing:,} need"
    return (
        '<form method="get" action="/" class="choice" role="search"><label>Name contains '
        f'<input name="named" type="search" value="{escape(choice.named, quote=True)}"></label> '
        f'<label><input name="needing" type="checkbox" value="1"{" checked" if choice.needing else ""}> '
        "only those that need attention</label> <button>Show</button> "
        f'<span class="quiet">{count:,} in all, {some} attention, {shown:,} match</span></form>\n'
    )


def _pages(choice: Choice, page: int, pages: int) -> str:
    if pages == 1:
        return ""
    links = [f'<span class="quiet">Page {page} of {pages}</span>']
    for name, to in (("Previous", page - 1), ("Next", page + 1)):
        if 1 <= to <= pages:
            links.append(f'<a href="{escape(choice.address(to), quote=True)}">{name}</a>')
    return f'<nav aria-label="Pages of partitions">{" ".join(links)}</nav>\n'


def _partition(row: dict[str, Any], word: str | None, *, several: bool) -> str:
    name = f"{row['topic']}/{row['partition']}"
    lag = row["lag"]
    shown = "unknown" if lag is None else _size(lag) if row["lag_unit"] == "bytes" else f"{lag:,}"
    bad = ' class="bad"' if row["state"] in _BAD else ' class="held"' if row["paused"] else ""
    busy = row["busy_seconds"]
    cells = [
        *([f"<td>{escape(row['subscription'])}</td>"] if several else []),
        f"<td{bad}>{_state(row)}{_log_change(row)}</td>",
        _number(row["position"]),
        _number(row["committed"]),
        f'<td class="number">{shown}{_held_back(row)}</td>',
        f'<td class="number">{_behind(row)}</td>',
        _number(row["handled"]),
        f"<td>{_when(row['last_handled']) if row['last_handled'] else 'not yet'}</td>",
        f'<td class="number">{"" if busy is None else f"for {_span(busy)}"}</td>',
    ]
    if word:
        cells.append(f"<td>{_action(row, name, word)}</td>")
    key = escape(f"{row['subscription']}-{name}" if several else name, quote=True)
    return f'<tr id="partition-{key}"><th scope="row">{_whole(name)}</th>{"".join(cells)}</tr>\n'


def _behind(row: dict[str, Any]) -> str:
    age = row["lag_seconds"]
    if age is None:
        return "unknown"
    return _span(age) if age else ""


def _held_back(row: dict[str, Any]) -> str:
    held, lag = row["lag_held_back"], row["lag"]
    if not held:
        return ""
    return f"{'' if held == lag else f', {held:,} of them'} held back by an open transaction"


def _log_change(row: dict[str, Any]) -> str:
    change = row["log_change"]
    if change is None:
        return ""
    gone = "" if change["messages_gone"] is None else f", {change['messages_gone']:,} messages are gone"
    former, now = (f" of {escape(each)}" if each else "" for each in (change["former"], change["now"]))
    return (
        f"<br>log {change['kind']} {_when(change['time'])}: was at {change['offset']:,}{former}, "
        f"continued at {change['continued_at']:,}{now}{gone}"
    )


def _state(row: dict[str, Any]) -> str:
    blocked = row["blocked"]
    if blocked is None:
        reason = row["not_consumed_because"]
        return str(row["state"]) if reason is None else f"{row['state']}: {escape(reason)}"
    if blocked["reason"] is not None:
        return f"blocked for {_span(blocked['seconds'])}: {escape(blocked['reason'])}"
    owner = "not known" if blocked["owner"] is None else f"<code>{escape(blocked['owner'])}</code>"
    session = "" if blocked["session"] is None else f", session {blocked['session']}"
    return f"blocked for {_span(blocked['seconds'])} by owner {owner}{session}"


def _action(row: dict[str, Any], name: str, word: str) -> str:
    if row["position"] is None:
        return ""
    verb = "resume" if row["paused"] else "pause"
    return (
        f'<form method="post" action="/{verb}"><input type="hidden" name="word" value="{word}">'
        f'<input type="hidden" name="subscription" value="{escape(row["subscription"], quote=True)}">'
        f'<input type="hidden" name="partition" value="{escape(name, quote=True)}">'
        f'<button aria-label="{verb.title()} {escape(name, quote=True)}">{verb.title()}</button></form>'
    )


def _members(subscription: dict[str, Any], *, named: bool) -> str:
    members, group = subscription["members"], subscription["group"]
    if members is None:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(each["id"])}</code></th>'
        f"<td>{'this member' if each['this'] else 'live'}</td>{_number(each['partitions'])}</tr>\n"
        for each in members["live"] or ()
    ) + "".join(
        f'<tr><th scope="row"><code>{escape(each["id"])}</code></th><td class="bad">not a live member</td>'
        f"{_number(each['partitions'])}</tr>\n"
        for each in members["not_live"] or ()
    )
    notes = "" if members["time"] is None else f'<p class="quiet">As of {_when(members["time"])}</p>\n'
    if members["unowned"]:
        notes += f'<p class="bad">Unowned: {_list(members["unowned"])}</p>\n'
    if members["failure"]:
        notes += f'<p class="bad">The group could not be read: {escape(members["failure"])}</p>\n'
    nothing = "It is not known yet." if members["live"] is None else "It has no members."
    key = f"members-{subscription['name']}" if named else "members"
    title = f"The group {escape(group)}" if named else "The group"
    return _table(key, title, ["Member", "State", ">Partitions"], rows, nothing, notes)


def _rebalances(rebalances: list[dict[str, Any]], *, several: bool) -> str:
    rows = "".join(_rebalance(each, several=several) for each in rebalances[:10])
    columns = ["Ended", *(["Subscription"] if several else []), ">Took", ">Partitions", "Gained", "Lost"]
    return _table("rebalances", "Last rebalances", columns, rows, "None yet.")


def _rebalance(each: dict[str, Any], *, several: bool) -> str:
    subscription = f"<td>{escape(each['subscription'])}</td>" if several else ""
    return (
        f'<tr><th scope="row">{_when(each["time"])}</th>{subscription}<td class="number">{each["seconds"]:.2f} s</td>'
        f'{_number(each["partitions"])}<td class="list">{_list(each["gained"])}</td>'
        f'<td class="list">{_list(each["lost"])}</td></tr>\n'
    )


def _errors(errors: list[dict[str, Any]]) -> str:
    """Events of one kind are one row, with the last of them."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in errors:  # the newest first
        kinds.setdefault((each["level"], each["event"]), []).append(each)
    rows = "".join(
        f'<tr><th scope="row">{_when(same[0]["time"])}</th>{_number(len(same))}<td>{escape(level)}</td>'
        f"<td><code>{escape(event)}</code></td><td>"
        f"{_details(same[0]['fields'])}</td></tr>\n"
        for (level, event), same in kinds.items()
    )
    columns = ["Last", ">Times", "Level", "Event", "Details of the last"]
    return _table("errors", "Last warnings and errors", columns, rows, "None since the start.")


def _details(fields: dict[str, str]) -> str:
    """The fields of an event, and below them its traceback."""
    traceback = fields.get("traceback")
    text = escape(", ".join(f"{name}={value}" for name, value in fields.items() if name != "traceback"))
    return f"{text}<pre>{escape(traceback)}</pre>" if traceback else text


def _table(key: str, title: str, columns: Iterable[str], rows: str, nothing: str, notes: str = "") -> str:
    heads = "".join(_column(each) for each in columns)
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{key}-title"><table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
    return (
        f'<section id="{key}" aria-labelledby="{key}-title">\n<h2 id="{key}-title">{title}</h2>\n'
        f"{notes}{table if rows else f'<p>{nothing}</p>'}</section>\n"
    )


def _column(name: str) -> str:
    """The head of a column; `>` before its name: of numbers."""
    of_numbers = ' class="number"' if name[0] == ">" else ""
    return f'<th scope="col"{of_numbers}>{name.removeprefix(">")}</th>'


def _number(value: int | None) -> str:
    return f'<td class="number">{"" if value is None else f"{value:,}"}</td>'


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(_whole, names[:_LISTED])) + more


def _whole(name: str) -> str:
    """The name of a partition, which no line ends in unless it is long."""
    return f'<span class="name">{escape(name)}</span>' if len(name) <= _LONG else escape(name)


def _when(text: str) -> str:
    return f'<time datetime="{text}">{text.replace("T", " ").replace("Z", " UTC")}</time>'


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if hours < 2:
        return f"{minutes:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
