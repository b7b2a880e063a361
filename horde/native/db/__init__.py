"""Schema, migrations and named statements of the native Horde."""
