"""Charts, scatter plots and sparklines: axes, braille dots, and their drawing as text and as SVG."""
