"""What every part of the program uses: configuration, charts, the code of the user, the system, words and numbers."""
