"""Every parser of foreign bytes, given what nobody would send: `make fuzz`, or `python -m fuzz` in tests/."""
