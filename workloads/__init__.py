"""The programs that run in hosts. They import nothing of the harness but its contract."""
