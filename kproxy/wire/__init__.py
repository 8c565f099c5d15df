"""What is on the wire: a wing of two rooms, which know no proxy, no file and no clock.

::

    bytes of a connection ─▶ protocol   frames, messages, record batches
    bytes of keys, values ─▶ payloads   what they mean: by a schema, by Kafka, by a user's decoder
"""
