"""A double of PostgREST 16.2: the same SQL on a real database, the same bytes on the wire.

It exists because most machines that run the tests have no ``postgrest``. What it answers is held to
recorded exchanges of the real server by ``tests/db/test_postgrest_double.py``. Resource embedding,
media type handlers, domain representations and the OpenAPI document are not reproduced.
"""
