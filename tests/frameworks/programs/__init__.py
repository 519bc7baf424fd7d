"""Programs that run under a framework alone, and import nothing of this project."""
