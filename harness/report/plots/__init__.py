"""One kind of plot each; figures lists them, canvas draws and saves."""
