"""The instructor console and the administrator's page: a JupyterHub service.

``python -m hub_spawner.console`` is the command that the Hub starts.  It keeps nothing: everything it shows comes from the pool, and the pool
decides what each person may do.  README.md says which module does what, and who may import it.
"""
