"""Copying topics from one cluster to another: the handler, the placement of messages, and the detection of loops.

In: batches of a member. Out: the messages in a 0.7 cluster, on partitions that keep their order.

Files in reading order: handler, placing, topics, circles.
"""
