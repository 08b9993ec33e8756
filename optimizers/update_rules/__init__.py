"""The update rules of Keras on the copies of one replica, and on shards."""
