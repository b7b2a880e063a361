"""Alembic's entry: runs the migrations on the connection it is handed (``horde.native.db.engine.migrate``)."""

from alembic import context

from horde.native.db.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
