"""What a run says, who hears it, and what is true because of it (Leyline's contracts, Nissa's hub and files).

Nothing here imports torch or Textual: a recording can be read on a machine that has neither.
"""
