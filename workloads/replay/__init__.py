"""Learning traffic without learning: the bursts of an exchange, offered as they were recorded, whatever becomes of
them; and replay.record, which records them (fold makes the recording).

May import: workloads.errors, workloads.transport."""
