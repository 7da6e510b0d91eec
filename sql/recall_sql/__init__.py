"""The SQL room: migrations, queries, connections and the embedded server."""
