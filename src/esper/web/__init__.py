"""The dashboard in a browser. Imports neither torch nor Textual, and needs the extra `serve`."""
