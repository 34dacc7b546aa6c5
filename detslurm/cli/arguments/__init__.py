"""What commands take: ids, seconds, a cluster, and what Tab offers for them."""
