"""The engine in numpy, where there is no C compiler: the same protocol as native/, file by file, several times slower.

Read native/engine.h and engine.c first; what is said there is not said again here."""
