"""Checks of the code and data of a task, each by a dry run of the functions that the user wrote."""
