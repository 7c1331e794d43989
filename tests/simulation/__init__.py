"""Whole members in one process and in virtual time: the daemon's real code against servers in memory.

Theory. Every simulated process has an asyncio event loop of its own (`process.ProcessLoop`), and one `kernel.Kernel`
decides whose turn it is and what time it is. When no loop has anything to do, the time jumps to the next event. The
loop is also the port to the rest of the world: `create_connection`, `getaddrinfo`, `run_in_executor`, signals and
`time` are methods of a loop, so the daemon's code needs to know nothing of all this. `daemon.Daemon` composes a member
as the command does: session, member and service, from a configuration.

On the other side are plain objects without a loop, called by the kernel: `network.Network` carries bytes with latency,
throughput and faults; `zookeeper.SimulatedZooKeeper` speaks ZooKeeper's protocol over a tree, `broker.SimulatedBroker`
that of a 0.7 broker over logs in memory; `kafka_broker.SimulatedKafka` is a cluster of later brokers with a group
coordinator. `world.World` and `kafka_world.KafkaWorld` put them together and keep the account of hand-overs
(`account.Account`), which sees the servers' side only and never asks a member what it believes.

What members store is simulated, too: `disk` forgets what was not synced (`sink_world`, `parquet_world`,
`letter_crashes`), and `postgres_server` is a database at the level of its protocol (`table_world`). `producer_crashes`
and `v07_producer_crashes` have no group: there the cluster is the place where messages go.
`copy_world` has a cluster on both sides of mirrors (`mirror_world`) or of daemons that forward (`forward_world`). Each
has a module `planted_*` with defects to find.

A process that is killed simply gets no more turns and its sockets close; one that is stopped (SIGSTOP) gets none until
it is continued, while time and its leases run on. Nothing here depends on the machine's clock or on the addresses of
objects, so the same seed gives the same run; from one process to the next it needs a fixed PYTHONHASHSEED besides.
"""
