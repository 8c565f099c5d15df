"""The meaning of the bytes of keys and values: by a schema, by Kafka's own definitions, by a user's
decoder."""
