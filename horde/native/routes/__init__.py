"""HTTP routes of the native Horde: parse, call one function, answer."""
