"""Materializations in a store: offered by a host that has them, brought to hosts that have neither source nor Hub."""
