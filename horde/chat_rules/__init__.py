"""The rules behind :mod:`horde.chat_contract`, one subject a module; import the names from there."""
