"""The way to the database: statements without SQLAlchemy's work on each, commits that are on disk, and pools that stand still in the middle."""
