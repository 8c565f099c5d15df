"""What the bytes of keys and values mean: by a schema, by Kafka's own definitions, by a user's
decoder."""
