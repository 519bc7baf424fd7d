"""The instructor console and the administrator's page: a JupyterHub service.

``python -m hub_spawner.console`` is the command that the Hub starts.  It keeps nothing: everything it shows comes from the pool, and the pool
decides what each person may do.

Modules by subject: `base` (who is asking, languages, errors), `desk` (what pages and the JSON API ask the pool), `courses`, `leases`,
`quotas`, `history`, `admin` (the pages), `api` and `openapi` (the JSON below them), `drawing` (pictures), `texts` (translations).
"""
