"""Arguments of commands: ids, seconds, a cluster, and their completion by Tab."""
