"""The API room: the HTTP API, search, and everything that reads the store for a person or agent."""
