"""GPU slices in JupyterHub: per-course profiles and quotas."""
