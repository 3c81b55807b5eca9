"""Run by Alembic: migrates on the connection that the store hands over."""

from alembic import context

from mansard.history.tables import METADATA


def _migrate() -> None:
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # the name under which Alembic runs this file; there is no context when it is imported
    _migrate()
