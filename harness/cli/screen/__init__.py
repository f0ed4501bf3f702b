"""What people see: the live view, tables that fit 80 columns."""
