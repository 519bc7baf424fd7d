"""The terminal's side of the command line: words and exit statuses, character set, width, listings, completion, manual pages.

Nothing here asks a pool or knows what a lease is, but for `completion`, whose candidates a pool names.
"""
