"""The scripts of the repository itself, which nothing installs: metrics of the tree, and generated records of the front end."""
