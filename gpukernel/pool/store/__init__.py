"""The pool's database: schema, migrations, compiled SQL, and one module for each subject.  Imported by every room but `domain`."""
