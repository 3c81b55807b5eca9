"""Alembic's environment and the revisions of the store's schema."""
