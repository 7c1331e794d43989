"""What `benchmarks.group` is made of: a slow line to ZooKeeper, members as processes, a feed, and the account."""
